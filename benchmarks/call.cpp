// What a call costs: the compiled entry by itself, and through the generated function. Prints JSON.
//
// Against the stand-in for CUDA with recording off, where a launch costs a few nanoseconds; `entry` is the kernel library's
// own function, as the dispatcher calls it. Usage: call BUNDLE
#include <aot/aot.hpp>
#include <bundle.hpp>

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

extern "C" {
#include "../tests/standin/state.h"
}

using Clock = std::chrono::steady_clock;

// Nanoseconds of one call of each, the median of many short rounds taken in turns: a busy moment hits few of them, and
// all alike.
static std::vector<double> measure(const std::vector<std::function<void(int)>>& works) {
  constexpr int rounds = 401, calls = 1000;
  std::vector<std::vector<double>> times(works.size());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < works.size(); ++i) {
      const auto start = Clock::now();
      works[i](calls);
      times[i].push_back(std::chrono::duration<double, std::nano>(Clock::now() - start).count() / calls);
    }
  }
  std::vector<double> medians;
  for (auto& samples : times) {
    std::nth_element(samples.begin(), samples.begin() + rounds / 2, samples.end());
    medians.push_back(samples[rounds / 2]);
  }
  return medians;
}

template <typename Call>
static std::function<void(int)> repeated(Call call) {
  return [call](int calls) {
    for (int i = 0; i < calls; ++i) call();
  };
}

int main(int count, char** arguments) {
  if (count != 2) return 2;
  const standin_device device{9, 0, 132};
  standin_reset(1, &device, 13000);
  const std::string path = arguments[1];
  const auto out = aot::tensor(reinterpret_cast<float*>(std::uintptr_t{0x7F0000000000}), {1000});

  aot::Bundle bundle(path);
  bundle::fill(out); /* loads the code */
  bundle["fill"](out, 1.0);
  standin_set_recording(0);

  const std::string kernel = path + "/lib/" AOT_HOST "/sm_90a/fill.so";
  void* library = dlopen(kernel.c_str(), RTLD_NOW | RTLD_NOLOAD);
  void* address = library == nullptr ? nullptr : dlsym(library, "__tvm_ffi_fill__f32__aligned");
  if (address == nullptr) {
    std::fprintf(stderr, "the compiled entry was not found in %s\n", kernel.c_str());
    return 1;
  }
  aot_entry entry;
  std::memcpy(&entry, &address, sizeof entry);
  const aot_value args[] = {aot_from_tensor(out.get()), aot_from_float(1.0)};
  aot_value result{};

  const auto found = bundle["fill"];
  const auto ns = measure({
      repeated([&] { entry(nullptr, args, 2, &result); }),
      repeated([&] { bundle::fill(out); }),
      repeated([&] { found(out, 1.0); }),
      repeated([&] { bundle::fill(out, 1.0, aot::Stream(nullptr)); }),
  });
  std::printf("{\"entry_ns\": %.1f, \"generated_ns\": %.1f, \"generated_over_entry_ns\": %.1f, \"opened_ns\": %.1f, "
              "\"on_stream_ns\": %.1f}\n",
              ns[0], ns[1], ns[1] - ns[0], ns[2], ns[3]);
}
