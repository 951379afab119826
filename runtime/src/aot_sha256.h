/* SHA-256 with the processor's own instructions, if it has them; the rest is in aot/detail/sha256.h. */
#ifndef AOT_SHA256_CPU_H_
#define AOT_SHA256_CPU_H_

#include "aot_files.h"

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(hidden)

/* Before clang 16 the instructions are there only if the whole file may use them, which is not wanted. */
#if defined(__aarch64__) && !defined(__AARCH64EB__) && !(defined(__clang__) && __clang_major__ < 16)
#define AOT_SHA256_ARM 1
#endif

/* The fastest that this processor runs. Asks the processor each time. */
aot_sha256_blocks_fn aot_sha256_blocks(void);

/* 1 if this processor has SHA-256 instructions that aot_sha256_blocks would choose, else 0. */
int aot_sha256_has_cpu_instructions(void);

/* The policy of bundles allows SHA instructions in these two functions alone, by name, and they may run only if
 * aot_sha256_has_cpu_instructions() says so. */
#if defined(__x86_64__)
void aot_sha256_blocks_x86_sha(uint32_t state[8], const uint8_t* data, size_t count);
#elif defined(AOT_SHA256_ARM)
void aot_sha256_blocks_arm_sha2(uint32_t state[8], const uint8_t* data, size_t count);
#endif

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif /* AOT_SHA256_CPU_H_ */
