// What opening a bundle costs in a process that has libtvm_ffi and not the bundle. Usage: open BUNDLE LIBTVM_FFI
#include <aot/aot.hpp>

#include <chrono>

int main(int count, char** arguments) {
  using Clock = std::chrono::steady_clock;
  if (count != 3 || dlopen(arguments[2], RTLD_NOW | RTLD_GLOBAL) == nullptr) return 2;
  const auto start = Clock::now();
  aot::Bundle first(arguments[1]);
  const auto middle = Clock::now();
  aot::Bundle second(arguments[1]);
  const auto end = Clock::now();
  using Milliseconds = std::chrono::duration<double, std::milli>;
  std::printf("{\"first_open_ms\": %.3f, \"next_open_ms\": %.3f}\n", Milliseconds(middle - start).count(),
              Milliseconds(end - middle).count());
}
