// Demo 3: a bundle opened at run time, by header alone. Usage: open_at_run_time BUNDLE [LIBTVM_FFI]
#include <aot/aot.hpp>

#include "checks.hpp"

int main(int count, char** arguments) {
  if (count < 2) {
    std::fprintf(stderr, "usage: %s BUNDLE [path of libtvm_ffi.so]\n", arguments[0]);
    return EXIT_USAGE;
  }
  try {
    aot::Options options;
    if (count > 2) options.tvm_ffi = arguments[2];
    aot::Bundle bundle(arguments[1], options);
    for (const aot::Function& function : bundle.functions()) std::printf("has  : %s\n", function.signature());
    const aot::Function axpy = bundle["axpy"];
    return run_demo(
        "open",
        [&](const device_driver& driver, int& failures) {
          Vectors v(driver, 12345);
          bundle.preload(0);
          axpy(v.view(v.x), v.view(v.y), v.view(v.out), 0.5);
          report("open: axpy", v.holds([](float a, float b) { return 0.5f * a + b; }), &failures);
          bundle["activate__relu"](v.view(v.x), v.view(v.out));
          report("open: activate, relu", v.holds([](float a, float) { return std::max(a, 0.0f); }), &failures);
        },
        [&](const aot::TensorView& any) { axpy(any, any, any, 1.0); });
  } catch (const aot::Error& error) {
    std::printf("open: FAIL: %s\n", error.what());
    return EXIT_FAILED;
  }
}
