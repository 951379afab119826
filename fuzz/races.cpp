// Loads bundles as lines of its input say, for fuzz/races.py: `load DIRECTORY`, then `preload`.
// Usage: races LIBTVM_FFI
#include <aot/aot.hpp>

#include <iostream>
#include <memory>
#include <string>

#include "harness.hpp"

int main(int count, char** arguments) {
  if (count != 2) return 2;
  aot::Options options;
  options.tvm_ffi = arguments[1];
  play({h100});
  std::unique_ptr<aot::Bundle> bundle;
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    try {
      if (line == "preload") {
        bundle->preload(0);
      } else {
        bundle = std::make_unique<aot::Bundle>(line.substr(5), options);
      }
      std::cout << "accepted" << std::endl;
    } catch (const aot::Error&) {
      std::cout << "refused" << std::endl;
    }
  }
}
