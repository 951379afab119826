// An engine with one step: a kernel of the bundle, called with raw device pointers. No Python, no torch.
#include <sample_kernels.hpp>

#include <cstdint>
#include <cstdio>

extern "C" int engine_scale(float* x, float* out, std::int64_t n, float factor, void* stream) {
  try {
    sample_kernels::scale(aot::tensor(x, {n}), aot::tensor(out, {n}), factor, aot::Stream(stream));
    return 0;
  } catch (const aot::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
