// What a call costs on a real GPU: the compiled entry by itself, and through the generated function. Prints JSON.
//
// Usage: call_gpu BUNDLE, the bundle of cpp_demo. Exit code 77 where there is no GPU.
#include <demo.hpp>

#include <algorithm>
#include <chrono>
#include <functional>

#include "../cpp_demo/device.h"

using Clock = std::chrono::steady_clock;

struct Chosen {
  std::string arch, variant;
};

// What axpy runs on this device: the line with a star in what explain says.
static Chosen chosen_on_device_0(const aot::Bundle& bundle, const aot::TensorView& vector) {
  int (*get_attribute)(int*, int, int) = nullptr;
  int major = 0, minor = 0;
  device_find(dlopen("libcuda.so.1", RTLD_NOW), "cuDeviceGetAttribute", &get_attribute);
  get_attribute(&major, 75, 0);
  get_attribute(&minor, 76, 0);
  const std::string lines = bundle.explain("axpy", major, minor, vector, vector, vector, 1.0);
  const std::size_t star = lines.find('*');
  if (star == std::string::npos) throw std::runtime_error("the bundle has no axpy for this device:\n" + lines);
  const std::size_t tab = lines.find('\t', star), end = lines.find('\t', tab + 1);
  return {lines.substr(star + 1, tab - star - 1), lines.substr(tab + 1, end - tab - 1)};
}

static aot_entry entry_of(const std::string& bundle, const Chosen& chosen) {
  const std::string path = bundle + "/lib/" AOT_HOST "/" + chosen.arch + "/axpy.so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  aot_entry entry = nullptr;
  if (library == nullptr || !device_find(library, ("__tvm_ffi_" + chosen.variant).c_str(), &entry)) {
    throw std::runtime_error("the compiled entry was not found in " + path);
  }
  return entry;
}

// Nanoseconds of one call of each, the median of many rounds taken in turns. A round fits into the launch queue, and is
// waited for outside of the time taken.
static std::vector<double> measure(const device_driver& driver, const std::vector<std::function<void()>>& works) {
  constexpr int rounds = 501, calls = 200;
  std::vector<std::vector<double>> times(works.size());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < works.size(); ++i) {
      const auto start = Clock::now();
      for (int call = 0; call < calls; ++call) works[i]();
      times[i].push_back(std::chrono::duration<double, std::nano>(Clock::now() - start).count() / calls);
      driver.synchronize(nullptr);
    }
  }
  std::vector<double> medians;
  for (auto& samples : times) {
    std::nth_element(samples.begin(), samples.begin() + rounds / 2, samples.end());
    medians.push_back(samples[rounds / 2]);
  }
  return medians;
}

static int run(const std::string& path) {
  device_driver driver{};
  if (!device_open(&driver)) {
    std::printf("there is no usable GPU\n");
    return EXIT_NO_GPU;
  }
  const std::vector<float> ones(1000, 1.0f);
  float* memory[3];
  for (float*& vector : memory) {
    if (!device_fill(&driver, &vector, ones.data(), ones.size())) throw std::runtime_error("the GPU gave no memory");
  }
  const auto x = aot::tensor(memory[0], {1000}), y = aot::tensor(memory[1], {1000}), out = aot::tensor(memory[2], {1000});
  demo::axpy(x, y, out); /* loads the code */
  const aot::Bundle bundle = demo::aot();
  const Chosen chosen = chosen_on_device_0(bundle, x);
  const aot_entry entry = entry_of(path, chosen);
  const aot::Function found = bundle["axpy"];
  const aot_value args[] = {aot_from_tensor(x.get()), aot_from_tensor(y.get()), aot_from_tensor(out.get()), aot_from_float(1.0)};
  aot_value result = aot_none();

  const auto ns = measure(driver, {
                                      [&] { entry(nullptr, args, 4, &result); },
                                      [&] { demo::axpy(x, y, out); },
                                      [&] { found(x, y, out, 1.0); },
                                  });
  std::vector<float> back(ones.size());
  const bool right = driver.download(back.data(), device_at(memory[2]), back.size() * sizeof(float)) == 0 &&
                     std::all_of(back.begin(), back.end(), [](float value) { return value == 2.0f; });
  std::printf("{\"variant\": \"%s\", \"arch\": \"%s\", \"entry_ns\": %.1f, \"generated_ns\": %.1f, \"opened_ns\": %.1f, "
              "\"generated_over_entry\": %.4f, \"numbers_are_right\": %s}\n",
              chosen.variant.c_str(), chosen.arch.c_str(), ns[0], ns[1], ns[2], ns[1] / ns[0], right ? "true" : "false");
  return right ? EXIT_OK : EXIT_FAILED;
}

int main(int count, char** arguments) {
  if (count != 2) return EXIT_USAGE;
  try {
    return run(arguments[1]);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return EXIT_FAILED;
  }
}
