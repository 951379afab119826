// Calls `doubled` of limits.py on two streams, with scratch memory that this program allocates. Usage: BUNDLE LIBTVM_FFI
#include <aot/aot.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "../../cpp_demo/device.h"

static const std::size_t COUNT = 1 << 20;

struct Call {
  float *x, *out, *scratch;
  void* stream;
};

int main(int count, char** arguments) {
  if (count < 3) return EXIT_USAGE;
  device_driver driver;
  if (!device_open(&driver)) return EXIT_NO_GPU;
  int failures = 0;
  aot::Options options;
  options.tvm_ffi = arguments[2];
  aot::Bundle bundle(arguments[1], options);
  const aot::Function doubled = bundle["doubled"];
  std::vector<Call> calls(2);
  const std::vector<float> full(COUNT, 99.0f);  // the memory is not zero: a call clears it
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::vector<float> numbers(COUNT, 1.0f + static_cast<float>(i));
    Call& call = calls[i];
    const bool made = device_fill(&driver, &call.x, numbers.data(), COUNT) &&
                      device_fill(&driver, &call.out, full.data(), COUNT) &&
                      device_fill(&driver, &call.scratch, full.data(), COUNT) && driver.create_stream(&call.stream, 1) == 0;
    if (!made) return EXIT_FAILED;
  }
  const auto vector = [](float* data) { return aot::tensor(data, {COUNT}); };
  const std::size_t bytes = doubled.workspace_size(vector(calls[0].x), vector(calls[0].out), nullptr);
  report("the size", bytes == COUNT * sizeof(float), &failures);
  for (int repeat = 0; repeat < 20; ++repeat)
    for (const Call& call : calls) {
      const auto scratch = aot::tensor(reinterpret_cast<std::uint8_t*>(call.scratch), {static_cast<std::int64_t>(bytes)});
      doubled.on(call.stream)(vector(call.x), vector(call.out), scratch);
    }
  std::vector<float> read(COUNT);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    driver.synchronize(calls[i].stream);
    driver.download(read.data(), device_at(calls[i].out), COUNT * sizeof(float));
    const std::vector<float> wanted(COUNT, 2.0f * (1.0f + static_cast<float>(i)));
    report(("stream " + std::to_string(i)).c_str(), read == wanted, &failures);
  }
  try {
    doubled(vector(calls[0].x), vector(calls[0].out), nullptr);
    report("a call without memory is refused", 0, &failures);
  } catch (const aot::Error& error) {
    report("a call without memory is refused", std::string(error.what()).find("scratch") != std::string::npos, &failures);
  }
  return failures == 0 ? EXIT_OK : EXIT_FAILED;
}
