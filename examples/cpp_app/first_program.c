/* The same in C: multiplies four numbers by three on the GPU. */
#include <sample_kernels.h>

#include <stdio.h>

int cudaMalloc(void** memory, size_t bytes);
int cudaMemcpy(void* to, const void* from, size_t bytes, int kind); /* kind 1: to the GPU, 2: from it */

int main(void) {
  float numbers[4] = {1, 2, 3, 4};
  void *x = NULL, *out = NULL;
  if (cudaMalloc(&x, sizeof numbers) != 0 || cudaMalloc(&out, sizeof numbers) != 0 ||
      cudaMemcpy(x, numbers, sizeof numbers, 1) != 0) {
    fprintf(stderr, "there is no GPU, or no memory left on it\n");
    return 1;
  }
  if (sample_kernels_scale(aot_tensor_of(x, AOT_FLOAT32, 4), aot_tensor_of(out, AOT_FLOAT32, 4), 3.0) != AOT_OK) {
    fprintf(stderr, "%s\n", aot_error_text());
    return 1;
  }
  if (cudaMemcpy(numbers, out, sizeof numbers, 2) != 0) return 1; /* waits for the kernel */
  printf("%g %g %g %g\n", numbers[0], numbers[1], numbers[2], numbers[3]);
  return 0;
}
