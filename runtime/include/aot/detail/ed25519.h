/* Whether a key signed a message: Ed25519 (RFC 8032), and SHA-512 (FIPS 180-4), which it is made of.
 *
* Only public values come in, so that the time of a check may depend on them. There is no signing here. What
     counts as
 * a signature is what aot_runtime/core/signature.py says: S is below the order of the base point, the key is encoded
 * canonically, neither the key nor R has small order, and S*B - h*A, encoded, is R byte for byte.
 *
 * No allocation, no global state, nothing runs at load time.
 */
#ifndef AOT_ED25519_H_
#define AOT_ED25519_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "linkage.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { AOT_ED25519_KEY_SIZE = 32, AOT_ED25519_SIGNATURE_SIZE = 64 };

/* 1 if the owner of the key signed these bytes, else 0. */
int aot_ed25519_verify(const uint8_t key[AOT_ED25519_KEY_SIZE], const uint8_t signature[AOT_ED25519_SIGNATURE_SIZE],
                       const void* message, size_t size);

/* ---- SHA-512 ---- */

typedef struct aot_sha512_state_ {
  uint64_t words[8];
  uint64_t length; /* bytes seen so far; length % 128 of them wait in `pending` */
  uint8_t pending[128];
} aot_sha512_state_;

static inline uint64_t aot_sha512_turn_(uint64_t x, int by) { return x >> by | x << (64 - by); }

AOT_SHARED void aot_sha512_block_(uint64_t state[8], const uint8_t* block) {
  static const uint64_t rounds[80] = {
UINT64_C(0x428a2f98d728ae22), UINT64_C(0x7137449123ef65cd), UINT64_C(0xb5c0fbcfec4d3b2f),
          UINT64_C(0xe9b5dba58189dbbc),
UINT64_C(0x3956c25bf348b538), UINT64_C(0x59f111f1b605d019), UINT64_C(0x923f82a4af194f9b),
          UINT64_C(0xab1c5ed5da6d8118),
UINT64_C(0xd807aa98a3030242), UINT64_C(0x12835b0145706fbe), UINT64_C(0x243185be4ee4b28c),
          UINT64_C(0x550c7dc3d5ffb4e2),
UINT64_C(0x72be5d74f27b896f), UINT64_C(0x80deb1fe3b1696b1), UINT64_C(0x9bdc06a725c71235),
          UINT64_C(0xc19bf174cf692694),
UINT64_C(0xe49b69c19ef14ad2), UINT64_C(0xefbe4786384f25e3), UINT64_C(0x0fc19dc68b8cd5b5),
          UINT64_C(0x240ca1cc77ac9c65),
UINT64_C(0x2de92c6f592b0275), UINT64_C(0x4a7484aa6ea6e483), UINT64_C(0x5cb0a9dcbd41fbd4),
          UINT64_C(0x76f988da831153b5),
UINT64_C(0x983e5152ee66dfab), UINT64_C(0xa831c66d2db43210), UINT64_C(0xb00327c898fb213f),
          UINT64_C(0xbf597fc7beef0ee4),
UINT64_C(0xc6e00bf33da88fc2), UINT64_C(0xd5a79147930aa725), UINT64_C(0x06ca6351e003826f),
          UINT64_C(0x142929670a0e6e70),
UINT64_C(0x27b70a8546d22ffc), UINT64_C(0x2e1b21385c26c926), UINT64_C(0x4d2c6dfc5ac42aed),
          UINT64_C(0x53380d139d95b3df),
UINT64_C(0x650a73548baf63de), UINT64_C(0x766a0abb3c77b2a8), UINT64_C(0x81c2c92e47edaee6),
          UINT64_C(0x92722c851482353b),
UINT64_C(0xa2bfe8a14cf10364), UINT64_C(0xa81a664bbc423001), UINT64_C(0xc24b8b70d0f89791),
          UINT64_C(0xc76c51a30654be30),
UINT64_C(0xd192e819d6ef5218), UINT64_C(0xd69906245565a910), UINT64_C(0xf40e35855771202a),
          UINT64_C(0x106aa07032bbd1b8),
UINT64_C(0x19a4c116b8d2d0c8), UINT64_C(0x1e376c085141ab53), UINT64_C(0x2748774cdf8eeb99),
          UINT64_C(0x34b0bcb5e19b48a8),
UINT64_C(0x391c0cb3c5c95a63), UINT64_C(0x4ed8aa4ae3418acb), UINT64_C(0x5b9cca4f7763e373),
          UINT64_C(0x682e6ff3d6b2b8a3),
UINT64_C(0x748f82ee5defb2fc), UINT64_C(0x78a5636f43172f60), UINT64_C(0x84c87814a1f0ab72),
          UINT64_C(0x8cc702081a6439ec),
UINT64_C(0x90befffa23631e28), UINT64_C(0xa4506cebde82bde9), UINT64_C(0xbef9a3f7b2c67915),
          UINT64_C(0xc67178f2e372532b),
UINT64_C(0xca273eceea26619c), UINT64_C(0xd186b8c721c0c207), UINT64_C(0xeada7dd6cde0eb1e),
          UINT64_C(0xf57d4f7fee6ed178),
UINT64_C(0x06f067aa72176fba), UINT64_C(0x0a637dc5a2c898a6), UINT64_C(0x113f9804bef90dae),
          UINT64_C(0x1b710b35131c471b),
UINT64_C(0x28db77f523047d84), UINT64_C(0x32caab7b40c72493), UINT64_C(0x3c9ebe0a15c9bebc),
          UINT64_C(0x431d67c49c100d4c),
UINT64_C(0x4cc5d4becb3e42b6), UINT64_C(0x597f299cfc657e2a), UINT64_C(0x5fcb6fab3ad6faec),
          UINT64_C(0x6c44198c4a475817),
  };
  uint64_t w[80], s[8];
  for (int i = 0; i < 16; ++i) {
    w[i] = 0;
    for (int j = 0; j < 8; ++j) w[i] = w[i] << 8 | block[8 * i + j];
  }
  for (int i = 16; i < 80; ++i) {
    const uint64_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (aot_sha512_turn_(a, 1) ^ aot_sha512_turn_(a, 8) ^ a >> 7) +
           (aot_sha512_turn_(b, 19) ^ aot_sha512_turn_(b, 61) ^ b >> 6);
  }
  memcpy(s, state, sizeof s);
  for (int i = 0; i < 80; ++i) {
    const uint64_t a = s[0], e = s[4];
    const uint64_t first = s[7] + rounds[i] + w[i] + ((e & s[5]) ^ (~e & s[6])) +
                           (aot_sha512_turn_(e, 14) ^ aot_sha512_turn_(e, 18) ^ aot_sha512_turn_(e, 41));
    const uint64_t second = ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2])) +
                            (aot_sha512_turn_(a, 28) ^ aot_sha512_turn_(a, 34) ^ aot_sha512_turn_(a, 39));
    memmove(s + 1, s, 7 * sizeof *s);
    s[0] = first + second;
    s[4] += first;
  }
  for (int i = 0; i < 8; ++i) state[i] += s[i];
}

static inline void aot_sha512_begin_(aot_sha512_state_* hash) {
  static const uint64_t start[8] = {
UINT64_C(0x6a09e667f3bcc908), UINT64_C(0xbb67ae8584caa73b), UINT64_C(0x3c6ef372fe94f82b),
          UINT64_C(0xa54ff53a5f1d36f1),
UINT64_C(0x510e527fade682d1), UINT64_C(0x9b05688c2b3e6c1f), UINT64_C(0x1f83d9abfb41bd6b),
          UINT64_C(0x5be0cd19137e2179),
  };
  memset(hash, 0, sizeof *hash);
  memcpy(hash->words, start, sizeof start);
}

static inline void aot_sha512_update_(aot_sha512_state_* hash, const void* data, size_t size) {
  const uint8_t* bytes = (const uint8_t*)data;
  for (size_t i = 0; i < size; ++i) {
    hash->pending[hash->length++ % 128] = bytes[i];
    if (hash->length % 128 == 0) aot_sha512_block_(hash->words, hash->pending);
  }
}

static inline void aot_sha512_final_(aot_sha512_state_* hash, uint8_t digest[64]) {
  static const uint8_t padding[128] = {0x80};
  const uint64_t bits = hash->length * 8;
  uint8_t tail[16] = {0};
  for (int i = 0; i < 8; ++i) tail[15 - i] = (uint8_t)(bits >> 8 * i);
  const size_t used = (size_t)(hash->length % 128);
  aot_sha512_update_(hash, padding, (used < 112 ? 112 : 240) - used);
  aot_sha512_update_(hash, tail, sizeof tail);
  for (int i = 0; i < 64; ++i) digest[i] = (uint8_t)(hash->words[i / 8] >> (56 - 8 * (i % 8)));
}

/* ---- numbers modulo p = 2^255 - 19: sixteen limbs of 16 bits, loosely reduced ---- */

typedef struct aot_field_ {
  int64_t limb[16];
} aot_field_;

/* Twice makes limbs of 16 bits of what a product or a few sums have left. */
static inline void aot_field_carry_(aot_field_* a) {
  for (int i = 0; i < 16; ++i) {
    const int64_t carry = a->limb[i] >> 16;
    a->limb[i] -= carry * 65536;
    if (i < 15) a->limb[i + 1] += carry;
    else a->limb[0] += 38 * carry; /* 2^256 is 38 */
  }
}

static inline aot_field_ aot_field_sum_(const aot_field_* a, const aot_field_* b, int64_t factor) {
  aot_field_ sum;
  for (int i = 0; i < 16; ++i) sum.limb[i] = a->limb[i] + factor * b->limb[i];
  return sum;
}

AOT_SHARED aot_field_ aot_field_product_(const aot_field_* a, const aot_field_* b) {
  int64_t wide[31] = {0};
  aot_field_ product;
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) wide[i + j] += a->limb[i] * b->limb[j];
  }
  for (int i = 0; i < 16; ++i) product.limb[i] = wide[i] + (i < 15 ? 38 * wide[i + 16] : 0);
  aot_field_carry_(&product);
  aot_field_carry_(&product);
  return product;
}

/* a to the power whose binary digits are `bits` + 1 ones, but for one or two zeros at these places. */
static inline aot_field_ aot_field_power_(const aot_field_* a, int bits, int zero, int other_zero) {
  aot_field_ power = *a;
  for (int i = bits - 1; i >= 0; --i) {
    power = aot_field_product_(&power, &power);
    if (i != zero && i != other_zero) power = aot_field_product_(&power, a);
  }
  return power;
}

static inline void aot_field_write_(const aot_field_* a, uint8_t bytes[32]) {
  aot_field_ reduced = *a;
  for (int i = 0; i < 4; ++i) aot_field_carry_(&reduced);
  /* Below 2^256 now: p goes off as often as it can, which is twice at most. */
  for (int round = 0; round < 2; ++round) {
    aot_field_ less;
    int64_t borrow = 0;
    for (int i = 0; i < 16; ++i) {
      const int64_t limb = reduced.limb[i] - (i == 0 ? 0xffed : i == 15 ? 0x7fff : 0xffff) - borrow;
      borrow = limb < 0;
      less.limb[i] = limb + borrow * 65536;
    }
    if (!borrow) reduced = less;
  }
  for (int i = 0; i < 32; ++i) bytes[i] = (uint8_t)(reduced.limb[i / 2] >> 8 * (i % 2));
}

static inline aot_field_ aot_field_read_(const uint8_t bytes[32]) {
  aot_field_ a;
  for (int i = 0; i < 16; ++i) a.limb[i] = bytes[2 * i] + 256 * (int64_t)bytes[2 * i + 1];
  a.limb[15] &= 0x7fff; /* the highest bit is a sign */
  return a;
}

static inline int aot_field_equal_(const aot_field_* a, const aot_field_* b) {
  uint8_t left[32], right[32];
  aot_field_write_(a, left);
  aot_field_write_(b, right);
  return memcmp(left, right, 32) == 0;
}

/* ---- points: -x^2 + y^2 = 1 + d x^2 y^2, as X, Y, Z, T with x = X/Z, y = Y/Z, xy = T/Z ---- */

typedef struct aot_point_ {
  aot_field_ x, y, z, t;
} aot_point_;

static inline aot_field_ aot_field_one_(void) {
  aot_field_ one = {{1}};
  return one;
}

/* These formulas hold for any two points, equal ones too. */
AOT_SHARED aot_point_ aot_point_sum_(const aot_point_* p, const aot_point_* q) {
static const aot_field_ twice_d = {{0xf159, 0x26b2, 0x9b94, 0xebd6, 0xb156,
                                     0x8283, 0x149a, 0x00e0, 0xd130, 0xeef3, 0x80f2, 0x198e, 0xfce7, 0x56df, 0xd9dc,
                                     0x2406}};
  aot_point_ sum;
  aot_field_ a = aot_field_sum_(&p->y, &p->x, -1), b = aot_field_sum_(&q->y, &q->x, -1);
  const aot_field_ less = aot_field_product_(&a, &b);
  a = aot_field_sum_(&p->y, &p->x, 1);
  b = aot_field_sum_(&q->y, &q->x, 1);
  const aot_field_ more = aot_field_product_(&a, &b);
  a = aot_field_product_(&p->t, &q->t);
  const aot_field_ c = aot_field_product_(&a, &twice_d);
  a = aot_field_product_(&p->z, &q->z);
  const aot_field_ d = aot_field_sum_(&a, &a, 1);
  const aot_field_ e = aot_field_sum_(&more, &less, -1), f = aot_field_sum_(&d, &c, -1);
  const aot_field_ g = aot_field_sum_(&d, &c, 1), h = aot_field_sum_(&more, &less, 1);
  sum.x = aot_field_product_(&e, &f);
  sum.y = aot_field_product_(&g, &h);
  sum.z = aot_field_product_(&f, &g);
  sum.t = aot_field_product_(&e, &h);
  return sum;
}

/* The points whose order divides eight, by their y; `bytes` may carry a sign, and may not be reduced. */
static inline int aot_point_is_small_(const uint8_t bytes[32]) {
  static const uint8_t small[5][32] = {
{0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
       0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00},
{0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
       0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00},
{0xec, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
       0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
{0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0, 0xd5, 0xdf,
       0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05},
{0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67, 0x0f, 0x2a, 0x20,
       0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a},
  };
  uint8_t y[32];
  memcpy(y, bytes, 32);
  y[31] &= 0x7f;
  for (int i = 0; i < 5; ++i) {
    if (memcmp(y, small[i], 32) == 0) return 1;
  }
  return 0;
}

/* The point that is minus the encoded one; 0 if this is no canonical encoding of a point of large order. */
static inline int aot_point_read_negated_(const uint8_t bytes[32], aot_point_* point) {
static const aot_field_ d = {{0x78a3, 0x1359, 0x4dca, 0x75eb, 0xd8ab, 0x4141, 0x0a4d,
                               0x0070, 0xe898, 0x7779, 0x4079, 0x8cc7, 0xfe73, 0x2b6f, 0x6cee, 0x5203}}, root =
                               {{0xa0b0, 0x4a0e, 0x1b27, 0xc4ee, 0xe478, 0xad2f, 0x1806, 0x2f43, 0xd7a7, 0x3dfb,
                               0x0099, 0x2b4d, 0xdf0b, 0x4fc1, 0x2480, 0x2b83}}; /* the square of `root` is -1 */
  const aot_field_ one = aot_field_one_(), zero = {{0}};
  uint8_t again[32];
  aot_field_ y = aot_field_read_(bytes), x;
  aot_field_write_(&y, again);
  again[31] |= bytes[31] & 0x80;
  if (memcmp(again, bytes, 32) != 0 || aot_point_is_small_(bytes)) return 0;
  const aot_field_ yy = aot_field_product_(&y, &y), dyy = aot_field_product_(&d, &yy);
  const aot_field_ u = aot_field_sum_(&yy, &one, -1), v = aot_field_sum_(&dyy, &one, 1);
  /* x = u v^3 (u v^7)^((p - 5) / 8): a root of u/v, of -u/v, or of neither. */
  const aot_field_ vv = aot_field_product_(&v, &v), v3 = aot_field_product_(&vv, &v);
  const aot_field_ uv3 = aot_field_product_(&u, &v3), v4 = aot_field_product_(&vv, &vv);
  const aot_field_ uv7 = aot_field_product_(&uv3, &v4), power = aot_field_power_(&uv7, 251, 1, -1);
  x = aot_field_product_(&uv3, &power);
  const aot_field_ xx = aot_field_product_(&x, &x), square = aot_field_product_(&v, &xx);
  const aot_field_ minus_u = aot_field_sum_(&zero, &u, -1);
  if (aot_field_equal_(&square, &minus_u)) x = aot_field_product_(&x, &root);
  else if (!aot_field_equal_(&square, &u)) return 0;
  aot_field_write_(&x, again);
  if ((again[0] & 1) == bytes[31] >> 7) x = aot_field_sum_(&zero, &x, -1);
  point->x = x;
  point->y = y;
  point->z = one;
  point->t = aot_field_product_(&x, &y);
  return 1;
}

static inline void aot_point_write_(const aot_point_* point, uint8_t bytes[32]) {
  uint8_t odd[32];
  const aot_field_ inverse = aot_field_power_(&point->z, 254, 2, 4); /* to the power p - 2 */
  const aot_field_ x = aot_field_product_(&point->x, &inverse), y = aot_field_product_(&point->y, &inverse);
  aot_field_write_(&y, bytes);
  aot_field_write_(&x, odd);
  bytes[31] |= (uint8_t)((odd[0] & 1) << 7);
}

/* ---- numbers modulo the order of the base point ---- */

/* Whether a 256-bit number is at least the order; if so, the order is taken off. */
static inline int aot_scalar_reduce_(uint64_t scalar[4]) {
static const uint64_t order[4] = {UINT64_C(0x5812631a5cf5d3ed),
                                    UINT64_C(0x14def9dea2f79cd6), UINT64_C(0x0000000000000000),
                                    UINT64_C(0x1000000000000000)};
  uint64_t less[4], borrow = 0;
  for (int i = 0; i < 4; ++i) {
    const uint64_t taken = order[i] + borrow; /* no limb of the order is all ones */
    less[i] = scalar[i] - taken;
    borrow = scalar[i] < taken;
  }
  if (borrow) return 0;
  memcpy(scalar, less, sizeof less);
  return 1;
}

/* A number of `size` bytes, lowest first, modulo the order: one bit after the other. */
static inline void aot_scalar_read_(const uint8_t* bytes, size_t size, uint64_t scalar[4]) {
  memset(scalar, 0, 4 * sizeof *scalar);
  for (size_t bit = 8 * size; bit-- > 0;) {
    for (int i = 3; i > 0; --i) scalar[i] = scalar[i] << 1 | scalar[i - 1] >> 63;
    scalar[0] = scalar[0] << 1 | (uint64_t)(bytes[bit / 8] >> bit % 8 & 1);
    aot_scalar_reduce_(scalar);
  }
}

/* The same; 0 if the number is not below the order. */
static inline int aot_scalar_read_reduced_(const uint8_t bytes[32], uint64_t scalar[4]) {
  for (int i = 0; i < 4; ++i) {
    scalar[i] = 0;
    for (int j = 7; j >= 0; --j) scalar[i] = scalar[i] << 8 | bytes[8 * i + j];
  }
  return !aot_scalar_reduce_(scalar);
}

/* s*B + h*A: one row of doublings for both. */
AOT_SHARED aot_point_ aot_point_products_(const uint64_t s[4], const uint64_t h[4], const aot_point_* a) {
static const aot_point_ base = {{{0xd51a, 0x8f25, 0x2d60, 0xc956, 0xa7b2, 0x9525,
                                  0xc760, 0x692c, 0xdc5c, 0xfdd6, 0xe231, 0xc0a4, 0x53fe, 0xcd6e, 0x36d3, 0x2169}},
{{0x6658, 0x6666, 0x6666, 0x6666, 0x6666, 0x6666, 0x6666, 0x6666, 0x6666, 0x6666,
                                   0x6666, 0x6666, 0x6666, 0x6666, 0x6666, 0x6666}},
                                  {{1}},
{{0xdda3, 0xa5b7, 0x8ab3, 0x6dde, 0x52f5, 0x7751, 0x9f80, 0x20f0, 0xe37d, 0x64ab,
                                   0x4e8e, 0x66ea, 0x7665, 0xd78b, 0x5f0f, 0x6787}}};
  const aot_field_ one = aot_field_one_(), zero = {{0}};
  const aot_point_ both = aot_point_sum_(&base, a);
  aot_point_ sum;
  sum.x = sum.t = zero;
  sum.y = sum.z = one;
  for (int bit = 255; bit >= 0; --bit) {
    const int of_base = (int)(s[bit / 64] >> bit % 64 & 1), of_a = (int)(h[bit / 64] >> bit % 64 & 1);
    sum = aot_point_sum_(&sum, &sum);
    if (of_base || of_a) sum = aot_point_sum_(&sum, of_base && of_a ? &both : of_base ? &base : a);
  }
  return sum;
}

AOT_SHARED int aot_ed25519_verify(const uint8_t key[AOT_ED25519_KEY_SIZE],
const uint8_t signature[AOT_ED25519_SIGNATURE_SIZE], const void* message, size_t
                                      size) {
  aot_sha512_state_ hash;
  aot_point_ negated;
  uint64_t s[4], h[4];
  uint8_t digest[64], r[32];
  if (!aot_scalar_read_reduced_(signature + 32, s) || aot_point_is_small_(signature)) return 0;
  if (!aot_point_read_negated_(key, &negated)) return 0;
  aot_sha512_begin_(&hash);
  aot_sha512_update_(&hash, signature, 32);
  aot_sha512_update_(&hash, key, 32);
  aot_sha512_update_(&hash, message, size);
  aot_sha512_final_(&hash, digest);
  aot_scalar_read_(digest, 64, h);
  const aot_point_ sum = aot_point_products_(s, h, &negated);
  aot_point_write_(&sum, r);
  return memcmp(r, signature, 32) == 0;
}

#ifdef __cplusplus
}
#endif

#endif /* AOT_ED25519_H_ */
