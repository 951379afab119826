// Demos 1 and 2: kernels linked into the program, statically or from a shared library. Both use this source.
#include <demo.hpp>

#include "checks.hpp"

#ifndef DEMO_NAME
#define DEMO_NAME "linked"
#endif

static void checks(const device_driver& driver, int& failures) {
  Vectors v(driver, 10000);
  const auto x = v.view(v.x), y = v.view(v.y), out = v.view(v.out);

  demo::axpy(x, y, out, 3.0);
  report(DEMO_NAME ": axpy, alpha given", v.holds([](float a, float b) { return 3.0f * a + b; }), &failures);
  demo::axpy(x, y, out);
  report(DEMO_NAME ": axpy, alpha by default", v.holds([](float a, float b) { return a + b; }), &failures);

  void* stream = nullptr;
  driver.create_stream(&stream, 1);
  demo::axpy(x, y, out, 2.0, aot::Stream(stream));
  report(DEMO_NAME ": axpy on a stream", v.holds([](float a, float b) { return 2.0f * a + b; }, stream), &failures);
  {
    aot::StreamScope scope(aot_demo_core, stream);
    demo::activate(demo::activate_kind::relu, x, out);
  }
  report(DEMO_NAME ": activate, relu, in a stream scope", v.holds([](float a, float) { return std::max(a, 0.0f); }, stream),
         &failures);
  demo::activate__clamp(x, out);
  report(DEMO_NAME ": activate, clamp", v.holds([](float a, float) { return std::max(a, -1.0f); }), &failures);

  try {
    demo::axpy(x, y, aot::TensorView(v.out, {v.size()}, aot::float16));
    report(DEMO_NAME ": a wrong dtype is refused", 0, &failures);
  } catch (const aot::ArgumentError& error) {
    report(DEMO_NAME ": a wrong dtype is refused", std::string(error.what()).find("out.dtype") != std::string::npos, &failures);
  }
}

int main() {
  return run_demo(DEMO_NAME, checks, [](const aot::TensorView& any) { demo::axpy(any, any, any); });
}
