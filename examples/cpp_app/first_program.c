/* The same in C: multiplies four numbers by three on the GPU. */
#include <sample_kernels.h>

#include <stdio.h>

int cudaMalloc(void** memory, size_t bytes);
int cudaMemcpy(void* to, const void* from, size_t bytes, int kind); /* kind 1: to the GPU, 2: from it */

static int failed(void) {
  int code = AOT_OK;
  const char* text = "";
  aot_last_error(&code, &text);
  fprintf(stderr, "%s\n", text);
  return 1;
}

int main(void) {
  float numbers[4] = {1, 2, 3, 4};
  void *x = NULL, *out = NULL;
  int64_t shape[1] = {4}, strides[1] = {1};
  const aot_dtype f32 = aot_make_dtype(AOT_DTYPE_FLOAT, 32);
  aot_tensor tensor_x, tensor_out;
  if (cudaMalloc(&x, sizeof numbers) != 0 || cudaMalloc(&out, sizeof numbers) != 0 ||
      cudaMemcpy(x, numbers, sizeof numbers, 1) != 0) {
    fprintf(stderr, "there is no memory on a GPU\n");
    return 1;
  }
  if (aot_make_tensor(&tensor_x, x, 0, f32, 1, shape, strides, NULL) != AOT_OK) return failed();
  if (aot_make_tensor(&tensor_out, out, 0, f32, 1, shape, strides, NULL) != AOT_OK) return failed();
  if (sample_kernels_scale(&tensor_x, &tensor_out, 3.0) != AOT_OK) return failed();
  if (cudaMemcpy(numbers, out, sizeof numbers, 2) != 0) return 1; /* waits for the kernel */
  printf("%g %g %g %g\n", numbers[0], numbers[1], numbers[2], numbers[3]);
  return 0;
}
