// A static link that declined sm_80 says so when such a device comes along.
#include <bundle.hpp>

#include "harness.hpp"

int main() {
  play({a100, h100});
  const auto on = [](int device) { return aot::tensor(static_cast<float*>(fake_memory), {1000}, device); };
  CHECK_THROWS(aot::DeviceError, "sm_80: is in the bundle, but was not linked into this program", bundle::fill(on(0)));
  bundle::fill(on(1));
  CHECK(standin_launch_count() == 1);
  CHECK(bundle::aot().explain("fill", 8, 0, on(0), 1.0).find("was not linked") != std::string::npos);
  return finish("test_declined");
}
