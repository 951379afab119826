/* Compiled into the support library, beside NVIDIA's launch support.
 *
 * The static archive of the CuTe DSL lacks two functions that its launchers call; the public header
 * CuteDSLRuntime.h documents them. They are weak here, so that an archive which has them wins.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define WEAK __attribute__((weak, visibility("default")))
#define EXPORT __attribute__((visibility("default")))

typedef void (*set_error_t)(const char* kind, const char** parts, int32_t count);

const char* cudaGetErrorName(int32_t code);
const char* cudaGetErrorString(int32_t code);
int32_t cudaMemsetAsync(void* address, int32_t value, size_t bytes, void* stream);

EXPORT const char* aot_cuda_error_name(int32_t code) { return cudaGetErrorName(code); }
EXPORT const char* aot_cuda_error_text(int32_t code) { return cudaGetErrorString(code); }

EXPORT int32_t aot_cuda_zero(void* address, size_t bytes, void* stream) {
  return cudaMemsetAsync(address, 0, bytes, stream);
}

WEAK void CuteDSLRT_TVMFFISetRaisedCudaError(set_error_t set_error, int32_t code) {
  char number[24];
  snprintf(number, sizeof number, " (%d): ", code);
  const char* parts[] = {cudaGetErrorName(code), number, cudaGetErrorString(code)};
  set_error("AotCudaError", parts, 3);
}

WEAK void CuteDSLRT_TVMFFISetRaisedCudaLaunchError(
    set_error_t set_error, int32_t grid_x, int32_t grid_y, int32_t grid_z, int32_t block_x, int32_t block_y,
    int32_t block_z, int32_t block_threads, int64_t dynamic_smem, int32_t device, int32_t max_threads,
    int32_t max_block_x, int32_t max_block_y, int32_t max_block_z, int32_t max_grid_x, int32_t max_grid_y,
    int32_t max_grid_z, int32_t max_smem, int32_t max_smem_optin, const char* violation, const char* source_file,
    int32_t source_line, int32_t source_col, int32_t source_end_col) {
  char text[512];
  snprintf(text, sizeof text,
           "%s: grid (%d, %d, %d), block (%d, %d, %d) of %d threads, %lld bytes of dynamic shared memory; "
           "device %d allows %d threads, block (%d, %d, %d), grid (%d, %d, %d), %d bytes (%d by opt-in)",
           violation, grid_x, grid_y, grid_z, block_x, block_y, block_z, block_threads, (long long)dynamic_smem,
           device, max_threads, max_block_x, max_block_y, max_block_z, max_grid_x, max_grid_y, max_grid_z, max_smem,
           max_smem_optin);
  (void)source_file;
  (void)source_line;
  (void)source_col;
  (void)source_end_col;
  const char* parts[] = {text};
  set_error("AotCudaError", parts, 1);
}

#if defined(__aarch64__)
/* The launch support for aarch64 calls the compiler's helper for atomics. With this one nothing of a
 * compiler's runtime is linked, and no instruction beyond ARMv8.0 either. */
__attribute__((weak, visibility("hidden"))) uint64_t __aarch64_cas8_acq_rel(uint64_t expected, uint64_t desired,
                                                                          uint64_t* address);
uint64_t __aarch64_cas8_acq_rel(uint64_t expected, uint64_t desired, uint64_t* address) {
  uint64_t seen;
  uint32_t failed;
  __asm__ volatile(
      "1: ldaxr %0, [%3]\n"
      "   cmp %0, %4\n"
      "   b.ne 2f\n"
      "   stlxr %w1, %5, [%3]\n"
      "   cbnz %w1, 1b\n"
      "2:"
      : "=&r"(seen), "=&r"(failed), "+m"(*address)
      : "r"(address), "r"(expected), "r"(desired)
      : "cc", "memory");
  return seen;
}
#endif
