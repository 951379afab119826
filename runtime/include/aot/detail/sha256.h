/* SHA-256 (FIPS 180-4), to compare a file with a digest before it is used.
 *
 * The entry library of a bundle adds block functions that use instructions of the processor (aot_sha256.c); programs
 * that include aot.h check one file, the entry library itself, and use the portable one.
 *
 * No allocation, no global state, nothing runs at load time.
 */
#ifndef AOT_SHA256_H_
#define AOT_SHA256_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "linkage.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { AOT_SHA256_DIGEST_SIZE = 32, AOT_SHA256_BLOCK_SIZE = 64 };

/* Folds `count` blocks of 64 bytes, of any alignment, into `state`. */
typedef void (*aot_sha256_blocks_fn)(uint32_t state[8], const uint8_t* data, size_t count);

typedef struct aot_sha256_state {
  uint32_t words[8];
  uint64_t length; /* bytes seen so far; length % 64 of them wait in `pending` */
  uint8_t pending[AOT_SHA256_BLOCK_SIZE];
  aot_sha256_blocks_fn blocks;
} aot_sha256_state;

const uint32_t* aot_sha256_constants(void);
void aot_sha256_blocks_portable(uint32_t state[8], const uint8_t* data, size_t count);

void aot_sha256_begin(aot_sha256_state* hash, aot_sha256_blocks_fn blocks);
void aot_sha256_update(aot_sha256_state* hash, const void* data, size_t size);
/* `hash` must begin again before it is used for another message. */
void aot_sha256_final(aot_sha256_state* hash, uint8_t digest[AOT_SHA256_DIGEST_SIZE]);

#ifndef AOT_DECLARATIONS_ONLY

/* ---- one block after the other ---- */

AOT_SHARED const uint32_t* aot_sha256_constants(void) {
  static const uint32_t rounds[64] __attribute__((aligned(16))) = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
      0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
      0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
      0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
      0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
  };
  return rounds;
}

static inline uint32_t aot_sha256_load_(const uint8_t* p) {
  return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
}

static inline void aot_sha256_store_(uint8_t* p, uint32_t value) {
  p[0] = (uint8_t)(value >> 24);
  p[1] = (uint8_t)(value >> 16);
  p[2] = (uint8_t)(value >> 8);
  p[3] = (uint8_t)value;
}

#define AOT_SHA256_ROTATE_(x, n) ((x) >> (n) | (x) << (32 - (n)))

static inline void aot_sha256_expand_(uint32_t w[64], const uint8_t* block) {
  for (int t = 0; t < 16; ++t) w[t] = aot_sha256_load_(block + 4 * t);
  for (int t = 16; t < 64; ++t) {
    uint32_t near = w[t - 15], late = w[t - 2];
    near = AOT_SHA256_ROTATE_(near, 7) ^ AOT_SHA256_ROTATE_(near, 18) ^ near >> 3;
    late = AOT_SHA256_ROTATE_(late, 17) ^ AOT_SHA256_ROTATE_(late, 19) ^ late >> 10;
    w[t] = late + w[t - 7] + near + w[t - 16];
  }
}

/* One round. The caller rotates the names of the eight variables instead of their values. */
#define AOT_SHA256_ROUND_(a, b, c, d, e, f, g, h, t)                                                          \
  do {                                                                                                        \
    uint32_t sum = AOT_SHA256_ROTATE_(e, 6) ^ AOT_SHA256_ROTATE_(e, 11) ^ AOT_SHA256_ROTATE_(e, 25);          \
    sum += h + (g ^ (e & (f ^ g))) + k[t] + w[t];                                                             \
    d += sum;                                                                                                 \
    h = sum + (AOT_SHA256_ROTATE_(a, 2) ^ AOT_SHA256_ROTATE_(a, 13) ^ AOT_SHA256_ROTATE_(a, 22)) +            \
        ((a & b) | (c & (a | b)));                                                                            \
  } while (0)

AOT_SHARED void aot_sha256_blocks_portable(uint32_t state[8], const uint8_t* data, size_t count) {
  const uint32_t* k = aot_sha256_constants();
  uint32_t w[64];
  for (; count > 0; --count, data += AOT_SHA256_BLOCK_SIZE) {
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    aot_sha256_expand_(w, data);
    for (int t = 0; t < 64; t += 8) {
      AOT_SHA256_ROUND_(a, b, c, d, e, f, g, h, t);
      AOT_SHA256_ROUND_(h, a, b, c, d, e, f, g, t + 1);
      AOT_SHA256_ROUND_(g, h, a, b, c, d, e, f, t + 2);
      AOT_SHA256_ROUND_(f, g, h, a, b, c, d, e, t + 3);
      AOT_SHA256_ROUND_(e, f, g, h, a, b, c, d, t + 4);
      AOT_SHA256_ROUND_(d, e, f, g, h, a, b, c, t + 5);
      AOT_SHA256_ROUND_(c, d, e, f, g, h, a, b, t + 6);
      AOT_SHA256_ROUND_(b, c, d, e, f, g, h, a, t + 7);
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
  }
}

/* ---- streaming ---- */

AOT_SHARED void aot_sha256_begin(aot_sha256_state* hash, aot_sha256_blocks_fn blocks) {
  static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  memcpy(hash->words, initial, sizeof hash->words);
  hash->length = 0;
  hash->blocks = blocks;
}

AOT_SHARED void aot_sha256_update(aot_sha256_state* hash, const void* data, size_t size) {
  if (size == 0) return; /* `data` may be NULL then, which memcpy must not see */
  const uint8_t* from = (const uint8_t*)data;
  size_t used = (size_t)(hash->length % AOT_SHA256_BLOCK_SIZE);
  hash->length += size;

  if (used > 0) {
    size_t room = AOT_SHA256_BLOCK_SIZE - used;
    size_t taken = size < room ? size : room;
    memcpy(hash->pending + used, from, taken);
    from += taken;
    size -= taken;
    if (taken < room) return;
    hash->blocks(hash->words, hash->pending, 1);
  }
  size_t whole = size / AOT_SHA256_BLOCK_SIZE;
  if (whole > 0) hash->blocks(hash->words, from, whole);
  memcpy(hash->pending, from + whole * AOT_SHA256_BLOCK_SIZE, size % AOT_SHA256_BLOCK_SIZE);
}

AOT_SHARED void aot_sha256_final(aot_sha256_state* hash, uint8_t digest[AOT_SHA256_DIGEST_SIZE]) {
  const size_t length_offset = AOT_SHA256_BLOCK_SIZE - 8;
  const uint64_t bits = hash->length * 8;
  size_t used = (size_t)(hash->length % AOT_SHA256_BLOCK_SIZE);
  hash->pending[used++] = 0x80;
  if (used > length_offset) {
    memset(hash->pending + used, 0, AOT_SHA256_BLOCK_SIZE - used);
    hash->blocks(hash->words, hash->pending, 1);
    used = 0;
  }
  memset(hash->pending + used, 0, length_offset - used);
  aot_sha256_store_(hash->pending + length_offset, (uint32_t)(bits >> 32));
  aot_sha256_store_(hash->pending + length_offset + 4, (uint32_t)bits);
  hash->blocks(hash->words, hash->pending, 1);
  for (int i = 0; i < 8; ++i) aot_sha256_store_(digest + 4 * i, hash->words[i]);
}

#endif /* AOT_DECLARATIONS_ONLY */

#ifdef __cplusplus
}
#endif

#endif /* AOT_SHA256_H_ */
