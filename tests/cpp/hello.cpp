// One kernel, for measuring what a static link costs: see test_linking.py and benchmarks/.
#include <bundle.hpp>

int main(int count, char**) {
  if (count < 2) return 0;
  bundle::fill(aot::tensor(reinterpret_cast<float*>(256), {1}));
}
