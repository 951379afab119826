// Two bundles in one binary, with kernels of the same names.
#include <bundle.hpp>
#include <other.hpp>

#include "harness.hpp"

int main() {
  play({h100});
  const auto out = aot::tensor(static_cast<float*>(fake_memory), {1000});
  bundle::fill(out);
  CHECK(standin_load_count() == 1);
  other::fill(out);
  CHECK(standin_load_count() == 2); /* each has code and state of its own */
  bundle::fill(out);
  other::fill(out);
  CHECK(standin_launch_count() == 4 && standin_load_count() == 2);
  CHECK(bundle::aot().name() == "bundle" && other::aot().name() == "other");
  CHECK(other::aot().functions().size() == 1);
  return finish("test_two_bundles");
}
