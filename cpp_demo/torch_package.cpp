// Demo 6, second half: runs a package of AOTInductor that calls the kernels of a bundle, without Python.
//
//   torch_package libtvm_ffi.so BUNDLE/lib/<host>/libdemo_torch.so PACKAGE DEVICE
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdio>
#include <exception>
#include <stdexcept>

namespace {

void* open(const char* path) {
  void* opened = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (opened == nullptr) throw std::runtime_error(dlerror());
  return opened;
}

// Opening the library registers torch.ops.demo.*, since this program has torch. Bundles need libtvm_ffi.
void register_operators(const char* tvm_ffi, const char* library) {
  open(tvm_ffi);
  void* opened = open(library);
  auto error = reinterpret_cast<const char* (*)()>(dlsym(opened, "aot_demo_torch_error"));
  if (error() != nullptr) throw std::runtime_error(error());
}

bool is_right(torch::inductor::AOTIModelPackageLoader& model, const at::Device& device, int64_t size) {
  const at::Tensor x = at::arange(size, at::device(device).dtype(at::kFloat)) - 5;
  const at::Tensor y = at::ones_like(x);
  const at::Tensor got = model.run({x, y}).at(0);
  return at::allclose(got, (2 * x + y).clamp_min(-1) + 1);
}

int run(char** arguments) {
  const at::Device device{std::string(arguments[4])};
  if (device.is_cuda() && !at::hasCUDA()) {
    std::puts("skip : this torch has no CUDA");
    return 77;
  }
  register_operators(arguments[1], arguments[2]);
  const c10::InferenceMode guard;
  torch::inductor::AOTIModelPackageLoader model(arguments[3]);
  int failures = 0;
  for (int64_t size : {64, 1000}) {
    const bool right = is_right(model, device, size);
    std::printf("%s : a package of AOTInductor, %d numbers\n", right ? "ok  " : "FAIL", static_cast<int>(size));
    failures += !right;
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) {
    std::fprintf(stderr, "usage: %s LIBTVM_FFI LIBRARY PACKAGE DEVICE\n", arguments[0]);
    return 2;
  }
  try {
    return run(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "FAIL : %s\n", error.what());
    return 1;
  }
}
