// Multiplies four numbers by three on the GPU. The archives of the bundle contain the CUDA runtime, so this needs no CUDA
// toolkit; with one, include <cuda_runtime.h> instead of declaring two of its functions.
#include <sample_kernels.hpp>

#include <cstddef>
#include <cstdio>

extern "C" int cudaMalloc(void** memory, std::size_t bytes);
extern "C" int cudaMemcpy(void* to, const void* from, std::size_t bytes, int kind);  // kind 1: to the GPU, 2: from it

int main() {
  float numbers[4] = {1, 2, 3, 4};
  void *x = nullptr, *out = nullptr;
  if (cudaMalloc(&x, sizeof numbers) != 0 || cudaMalloc(&out, sizeof numbers) != 0 ||
      cudaMemcpy(x, numbers, sizeof numbers, 1) != 0) {
    std::fprintf(stderr, "there is no GPU, or no memory left on it\n");
    return 1;
  }
  try {
    sample_kernels::scale(aot::tensor(x, {4}, aot::float32), aot::tensor(out, {4}, aot::float32), 3.0);
  } catch (const aot::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  if (cudaMemcpy(numbers, out, sizeof numbers, 2) != 0) return 1;  // waits for the kernel
  std::printf("%g %g %g %g\n", numbers[0], numbers[1], numbers[2], numbers[3]);
  return 0;
}
