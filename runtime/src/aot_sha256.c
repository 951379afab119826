#include "aot_sha256.h"

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

/* Both versions keep the last 16 message words in four vectors m0..m3. FOUR_ROUNDS(i, m0) runs
 * rounds 4i..4i+3 on m0; EXPAND(m0, ...) then replaces m0 with the four words 16 further on. Macros,
 * not helpers: one that is not inlined would carry the instructions out of the named function. */

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
  const __m128i* const k = (const __m128i*)(const void*)aot_sha256_constants();
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
    const uint32x4_t wk = vaddq_u32(m, vld1q_u32(k + 4 * (i))); \
    uint32x4_t abcd_copy = abcd;                                     \
    __asm__("" : "+w"(abcd_copy));                                   \
    abcd = vsha256hq_u32(abcd, efgh, wk);                            \
    efgh = vsha256h2q_u32(efgh, abcd_copy, wk);                      \
  } while (0)

#define EXPAND(w0, w1, w2, w3) w0 = vsha256su1q_u32(vsha256su0q_u32(w0, w1), w2, w3)

#define LOAD(i) vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(data + 16 * (i))))

__attribute__((noinline, target(TARGET_SHA2))) void aot_sha256_blocks_arm_sha2(
    uint32_t state[8], const uint8_t* data, size_t count) {
  const uint32_t* const k = aot_sha256_constants();
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

aot_sha256_blocks_fn aot_sha256_blocks(void) {
  return aot_sha256_has_cpu_instructions() ? CPU_BLOCKS : aot_sha256_blocks_portable;
}
