#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* O_CLOEXEC under -std=c99 */
#endif

#include "aot_sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(AOT_SHA256_ARM)
#include <arm_neon.h>
#include <sys/auxv.h>
#ifndef HWCAP_SHA2
#define HWCAP_SHA2 (1UL << 6)
#endif
#endif

enum { READ_SIZE = 64 * 1024, LENGTH_OFFSET = AOT_SHA256_BLOCK_SIZE - 8 };

static const uint32_t kInitialState[8] = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
};

static const uint32_t kRound[64] __attribute__((aligned(16))) = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t load_be32(const uint8_t* p) {
  return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
}

static void store_be32(uint8_t* p, uint32_t value) {
  p[0] = (uint8_t)(value >> 24);
  p[1] = (uint8_t)(value >> 16);
  p[2] = (uint8_t)(value >> 8);
  p[3] = (uint8_t)value;
}

/* ---- portable ---- */

#define ROTR(x, n) ((x) >> (n) | (x) << (32 - (n)))
#define SIGMA0(x) (ROTR(x, 7) ^ ROTR(x, 18) ^ (x) >> 3)
#define SIGMA1(x) (ROTR(x, 17) ^ ROTR(x, 19) ^ (x) >> 10)
#define SUM0(x) (ROTR(x, 2) ^ ROTR(x, 13) ^ ROTR(x, 22))
#define SUM1(x) (ROTR(x, 6) ^ ROTR(x, 11) ^ ROTR(x, 25))
#define CHOOSE(x, y, z) ((z) ^ ((x) & ((y) ^ (z))))
#define MAJORITY(x, y, z) (((x) & (y)) | ((z) & ((x) | (y))))

/* One round. The caller rotates the names of the eight variables instead of their values. */
#define ROUND(a, b, c, d, e, f, g, h, t)                                  \
  do {                                                                    \
    const uint32_t t1 = h + SUM1(e) + CHOOSE(e, f, g) + kRound[t] + w[t]; \
    d += t1;                                                              \
    h = t1 + SUM0(a) + MAJORITY(a, b, c);                                 \
  } while (0)

static void expand_message(uint32_t w[64], const uint8_t* block) {
  for (int t = 0; t < 16; t++) w[t] = load_be32(block + 4 * t);
  for (int t = 16; t < 64; t++) {
    w[t] = SIGMA1(w[t - 2]) + w[t - 7] + SIGMA0(w[t - 15]) + w[t - 16];
  }
}

void aot_sha256_blocks_portable(uint32_t state[8], const uint8_t* data, size_t count) {
  uint32_t w[64];
  for (; count > 0; count--, data += AOT_SHA256_BLOCK_SIZE) {
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    expand_message(w, data);
    for (int t = 0; t < 64; t += 8) {
      ROUND(a, b, c, d, e, f, g, h, t);
      ROUND(h, a, b, c, d, e, f, g, t + 1);
      ROUND(g, h, a, b, c, d, e, f, t + 2);
      ROUND(f, g, h, a, b, c, d, e, t + 3);
      ROUND(e, f, g, h, a, b, c, d, t + 4);
      ROUND(d, e, f, g, h, a, b, c, t + 5);
      ROUND(c, d, e, f, g, h, a, b, t + 6);
      ROUND(b, c, d, e, f, g, h, a, t + 7);
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
  }
}

/*
 * ---- SHA instructions ----
 *
 * Both versions keep the last 16 message words in four vectors m0..m3. FOUR_ROUNDS(i, m0) runs
 * rounds 4i..4i+3 on m0; EXPAND(m0, ...) then replaces m0 with the four words 16 further on. Macros,
 * not helpers: one that is not inlined would carry the instructions out of the named function.
 */

#define SIXTEEN_ROUNDS(i)   \
  FOUR_ROUNDS((i), m0);     \
  EXPAND(m0, m1, m2, m3);   \
  FOUR_ROUNDS((i) + 1, m1); \
  EXPAND(m1, m2, m3, m0);   \
  FOUR_ROUNDS((i) + 2, m2); \
  EXPAND(m2, m3, m0, m1);   \
  FOUR_ROUNDS((i) + 3, m3); \
  EXPAND(m3, m0, m1, m2)

#define LAST_SIXTEEN_ROUNDS(i) \
  FOUR_ROUNDS((i), m0);        \
  FOUR_ROUNDS((i) + 1, m1);    \
  FOUR_ROUNDS((i) + 2, m2);    \
  FOUR_ROUNDS((i) + 3, m3)

#if defined(__x86_64__)

/* The instructions want the state as (a, b, e, f) and (c, d, g, h), highest word first. */
#define FOUR_ROUNDS(i, m)                                                  \
  do {                                                                     \
    const __m128i wk = _mm_add_epi32(m, _mm_load_si128(k + (i)));          \
    cdgh = _mm_sha256rnds2_epu32(cdgh, abef, wk);                          \
    abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(wk, 0x0E)); \
  } while (0)

#define EXPAND(w0, w1, w2, w3) \
  w0 = _mm_sha256msg2_epu32(   \
      _mm_add_epi32(_mm_sha256msg1_epu32(w0, w1), _mm_alignr_epi8(w3, w2, 4)), w3)

#define LOAD(i) \
  _mm_shuffle_epi8(_mm_loadu_si128((const __m128i*)(const void*)data + (i)), swap_bytes)

__attribute__((noinline, target("sha,sse4.1"))) void aot_sha256_blocks_x86_sha(
    uint32_t state[8], const uint8_t* data, size_t count) {
  const __m128i swap_bytes = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  const __m128i* const k = (const __m128i*)(const void*)kRound;
  __m128i* const out = (__m128i*)(void*)state;
  __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128(out), 0xB1);
  __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(out + 1), 0x1B);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8);
  __m128i cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);

  for (; count > 0; count--, data += AOT_SHA256_BLOCK_SIZE) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i m0 = LOAD(0), m1 = LOAD(1), m2 = LOAD(2), m3 = LOAD(3);
    SIXTEEN_ROUNDS(0);
    SIXTEEN_ROUNDS(4);
    SIXTEEN_ROUNDS(8);
    LAST_SIXTEEN_ROUNDS(12);
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }

  __m128i feba = _mm_shuffle_epi32(abef, 0x1B);
  __m128i dchg = _mm_shuffle_epi32(cdgh, 0xB1);
  _mm_storeu_si128(out, _mm_blend_epi16(feba, dchg, 0xF0));
  _mm_storeu_si128(out + 1, _mm_alignr_epi8(dchg, feba, 8));
}

int aot_sha256_has_cpu_instructions(void) {
  unsigned eax, ebx, ecx, edx;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return 0;
  if (!(ecx & (1u << 9)) || !(ecx & (1u << 19))) return 0; /* SSSE3, SSE4.1 */
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return 0;
  return (ebx >> 29) & 1; /* SHA */
}

#define CPU_BLOCKS aot_sha256_blocks_x86_sha

#elif defined(AOT_SHA256_ARM)

/* GCC 12 keeps the SHA-256 intrinsics behind "+crypto"; clang spells the narrower feature bare. */
#if defined(__clang__)
#define TARGET_SHA2 "sha2"
#else
#define TARGET_SHA2 "+crypto"
#endif

/*
 * The empty asm makes the copy a register of its own, so that sha256h works in place. Compilers
 * otherwise move both halves of the state first: 1.2 instead of 1.5 GB/s on Neoverse N1.
 */
#define FOUR_ROUNDS(i, m)                                            \
  do {                                                               \
    const uint32x4_t wk = vaddq_u32(m, vld1q_u32(kRound + 4 * (i))); \
    uint32x4_t abcd_copy = abcd;                                     \
    __asm__("" : "+w"(abcd_copy));                                   \
    abcd = vsha256hq_u32(abcd, efgh, wk);                            \
    efgh = vsha256h2q_u32(efgh, abcd_copy, wk);                      \
  } while (0)

#define EXPAND(w0, w1, w2, w3) w0 = vsha256su1q_u32(vsha256su0q_u32(w0, w1), w2, w3)

#define LOAD(i) vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(data + 16 * (i))))

__attribute__((noinline, target(TARGET_SHA2))) void aot_sha256_blocks_arm_sha2(
    uint32_t state[8], const uint8_t* data, size_t count) {
  uint32x4_t abcd = vld1q_u32(state);
  uint32x4_t efgh = vld1q_u32(state + 4);

  for (; count > 0; count--, data += AOT_SHA256_BLOCK_SIZE) {
    const uint32x4_t abcd_before = abcd, efgh_before = efgh;
    uint32x4_t m0 = LOAD(0), m1 = LOAD(1), m2 = LOAD(2), m3 = LOAD(3);
    SIXTEEN_ROUNDS(0);
    SIXTEEN_ROUNDS(4);
    SIXTEEN_ROUNDS(8);
    LAST_SIXTEEN_ROUNDS(12);
    abcd = vaddq_u32(abcd, abcd_before);
    efgh = vaddq_u32(efgh, efgh_before);
  }

  vst1q_u32(state, abcd);
  vst1q_u32(state + 4, efgh);
}

int aot_sha256_has_cpu_instructions(void) { return (getauxval(AT_HWCAP) & HWCAP_SHA2) != 0; }

#define CPU_BLOCKS aot_sha256_blocks_arm_sha2

#else

int aot_sha256_has_cpu_instructions(void) { return 0; }

#define CPU_BLOCKS aot_sha256_blocks_portable

#endif

/* ---- streaming ---- */

void aot_sha256_init(aot_sha256_t* hash) {
  memcpy(hash->state, kInitialState, sizeof hash->state);
  hash->length = 0;
  hash->blocks = aot_sha256_has_cpu_instructions() ? CPU_BLOCKS : aot_sha256_blocks_portable;
}

void aot_sha256_update(aot_sha256_t* hash, const void* data, size_t size) {
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
    hash->blocks(hash->state, hash->pending, 1);
  }
  size_t whole = size / AOT_SHA256_BLOCK_SIZE;
  if (whole > 0) hash->blocks(hash->state, from, whole);
  memcpy(hash->pending, from + whole * AOT_SHA256_BLOCK_SIZE, size % AOT_SHA256_BLOCK_SIZE);
}

void aot_sha256_final(aot_sha256_t* hash, uint8_t digest[AOT_SHA256_DIGEST_SIZE]) {
  const uint64_t bits = hash->length * 8;
  size_t used = (size_t)(hash->length % AOT_SHA256_BLOCK_SIZE);
  hash->pending[used++] = 0x80;
  if (used > LENGTH_OFFSET) {
    memset(hash->pending + used, 0, AOT_SHA256_BLOCK_SIZE - used);
    hash->blocks(hash->state, hash->pending, 1);
    used = 0;
  }
  memset(hash->pending + used, 0, LENGTH_OFFSET - used);
  store_be32(hash->pending + LENGTH_OFFSET, (uint32_t)(bits >> 32));
  store_be32(hash->pending + LENGTH_OFFSET + 4, (uint32_t)bits);
  hash->blocks(hash->state, hash->pending, 1);
  for (int i = 0; i < 8; i++) store_be32(digest + 4 * i, hash->state[i]);
}

/* ---- files ---- */

/* Not by fstat: before glibc 2.33 that is a function of the linker's own, which would bring in a piece of the
 * toolchain with paths of the build machine in it. */
static int regular_file_size(int fd, uint64_t* size) {
  char nothing;
  if (pread(fd, &nothing, 0, 0) != 0) return errno == ESPIPE ? EINVAL : errno; /* a directory: EISDIR */
  const off_t end = lseek(fd, 0, SEEK_END);
  if (end < 0 || lseek(fd, 0, SEEK_SET) != 0) return errno;
  *size = (uint64_t)end;
  return 0;
}

/* Feeds at most `limit` bytes to `hash`; `*total` is less only where the file ended before. */
static int hash_contents(int fd, uint64_t limit, aot_sha256_t* hash, uint64_t* total) {
  /* read, not mmap: a file cut short while it is mapped would end the process with SIGBUS. */
  uint8_t buffer[READ_SIZE];
  *total = 0;
  while (*total < limit) {
    const uint64_t left = limit - *total;
    const ssize_t got = read(fd, buffer, left < READ_SIZE ? (size_t)left : (size_t)READ_SIZE);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) break;
    aot_sha256_update(hash, buffer, (size_t)got);
    *total += (uint64_t)got;
  }
  return 0;
}

static int hash_descriptor(int fd, uint64_t expected_size, uint8_t digest[AOT_SHA256_DIGEST_SIZE],
                           uint64_t* seen_size) {
  int error = regular_file_size(fd, seen_size);
  if (error != 0 || *seen_size != expected_size) return error;

  aot_sha256_t hash;
  uint64_t total;
  aot_sha256_init(&hash);
  error = hash_contents(fd, expected_size, &hash, &total);
  if (error != 0) return error;
  if (total < expected_size) {
    *seen_size = total;
    return 0;
  }
  /* Asked again: a file that grew while it was read is not the one expected either. */
  error = regular_file_size(fd, seen_size);
  if (error == 0 && *seen_size == expected_size) aot_sha256_final(&hash, digest);
  return error;
}

int aot_sha256_file(const char* path, uint64_t expected_size,
                    uint8_t digest[AOT_SHA256_DIGEST_SIZE], uint64_t* seen_size) {
  memset(digest, 0, AOT_SHA256_DIGEST_SIZE);
  *seen_size = 0;
  int fd;
  do {
    /* O_NONBLOCK: the open of a FIFO would wait for a writer; regular files ignore it. */
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return errno;
  const int error = hash_descriptor(fd, expected_size, digest, seen_size);
  close(fd);
  return error;
}
