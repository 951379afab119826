// What the C++ demos have in common: vectors on the GPU, and the numbers that a kernel should have written.
#ifndef CHECKS_HPP_
#define CHECKS_HPP_

#include <aot/aot.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "device.h"

class Vectors {
 public:
  Vectors(const device_driver& driver, std::size_t n) : driver_(driver), x_(n), y_(n), out_(n, -7.0f) {
    for (std::size_t i = 0; i < n; ++i) {
      x_[i] = 0.25f * static_cast<float>(i % 64) - 8.0f;
      y_[i] = static_cast<float>(i % 7);
    }
    if (!device_fill(&driver_, &x, x_.data(), n) || !device_fill(&driver_, &y, y_.data(), n) ||
        !device_fill(&driver_, &out, out_.data(), n)) {
      throw std::runtime_error("the GPU gave no memory");
    }
  }
  ~Vectors() {
    for (float* vector : {x, y, out}) driver_.release(device_at(vector));
  }
  Vectors(const Vectors&) = delete;
  Vectors& operator=(const Vectors&) = delete;

  // Whether `out` on the GPU holds f(x, y) after `stream` is done.
  template <typename Formula>
  bool holds(Formula formula, void* stream = nullptr) {
    if (driver_.synchronize(stream) != 0) return false;
    if (driver_.download(out_.data(), device_at(out), out_.size() * sizeof(float)) != 0) return false;
    for (std::size_t i = 0; i < out_.size(); ++i) {
      if (std::fabs(out_[i] - formula(x_[i], y_[i])) > 1e-6f) return false;
    }
    return true;
  }

  std::int64_t size() const { return static_cast<std::int64_t>(x_.size()); }
  aot::TensorView view(float* vector) const { return aot::tensor(vector, {size()}); }

  float *x = nullptr, *y = nullptr, *out = nullptr;

 private:
  const device_driver& driver_;
  std::vector<float> x_, y_, out_;
};

// Runs a demo's checks if there is a GPU. If there is none, shows how a bundle refuses: `call` is made with an address
// that is never accessed.
template <typename Checks, typename Call>
int run_demo(const char* name, Checks checks, Call call) {
  device_driver driver{};
  int failures = 0;
  try {
    if (!device_open(&driver)) {
      call(aot::tensor(reinterpret_cast<float*>(256), {1}));
      std::printf("%s: a kernel ran without a GPU?\n", name);
      return EXIT_FAILED;
    }
    checks(driver, failures);
  } catch (const aot::DriverError& error) {
    std::printf("%s: refused: %s\n", name, error.what());
    return EXIT_NO_GPU;
  } catch (const std::exception& error) {
    std::printf("%s: FAIL: %s\n", name, error.what());
    return EXIT_FAILED;
  }
  return failures == 0 ? EXIT_OK : EXIT_FAILED;
}

#endif  // CHECKS_HPP_
