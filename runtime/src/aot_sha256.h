/*
 * SHA-256 (FIPS 180-4), to compare a native library with its manifest before it is opened.
 *
 * No allocation, no global state, nothing runs at load time: aot_sha256_init asks the processor
 * each time. Everything here is hidden: it is linked into the runtime, never exported from it.
 */
#ifndef AOT_SHA256_H_
#define AOT_SHA256_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(hidden)

/* Before clang 16 the instructions are there only if the whole file may use them, which is not wanted. */
#if defined(__aarch64__) && !defined(__AARCH64EB__) && !(defined(__clang__) && __clang_major__ < 16)
#define AOT_SHA256_ARM 1
#endif

enum { AOT_SHA256_DIGEST_SIZE = 32, AOT_SHA256_BLOCK_SIZE = 64 };

/* Folds `count` blocks of 64 bytes, of any alignment, into `state`. */
typedef void (*aot_sha256_blocks_fn)(uint32_t state[8], const uint8_t* data, size_t count);

typedef struct {
  uint32_t state[8];
  uint64_t length; /* bytes seen so far; length % 64 of them wait in `pending` */
  uint8_t pending[AOT_SHA256_BLOCK_SIZE];
  aot_sha256_blocks_fn blocks; /* chosen by aot_sha256_init */
} aot_sha256_t;

void aot_sha256_init(aot_sha256_t* hash);
void aot_sha256_update(aot_sha256_t* hash, const void* data, size_t size);
/* `hash` must be initialised again before it is used for another message. */
void aot_sha256_final(aot_sha256_t* hash, uint8_t digest[AOT_SHA256_DIGEST_SIZE]);

/*
 * Digest of a regular file that should have `expected_size` bytes.
 *
 * Returns 0 or an errno value (EISDIR for a directory, EINVAL for anything else that is not a
 * regular file). With 0, `*seen_size` is the size found, and `digest` is valid only if that equals
 * `expected_size`. A file of another size is not read, one that changes its size meanwhile is given
 * up; in both cases, and after an error, the digest is all zero.
 */
int aot_sha256_file(const char* path, uint64_t expected_size,
                    uint8_t digest[AOT_SHA256_DIGEST_SIZE], uint64_t* seen_size);

/* 1 if this processor has SHA-256 instructions that aot_sha256_init would choose, else 0. */
int aot_sha256_has_cpu_instructions(void);

/*
 * The block functions. The build policy allows SHA instructions in the last two alone, by name,
 * and they may run only where aot_sha256_has_cpu_instructions() says so.
 */
void aot_sha256_blocks_portable(uint32_t state[8], const uint8_t* data, size_t count);
#if defined(__x86_64__)
void aot_sha256_blocks_x86_sha(uint32_t state[8], const uint8_t* data, size_t count);
#elif defined(AOT_SHA256_ARM)
void aot_sha256_blocks_arm_sha2(uint32_t state[8], const uint8_t* data, size_t count);
#endif

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif /* AOT_SHA256_H_ */
