// What the C++ tests share: a check that counts, and the stand-in for CUDA in this process.
#ifndef AOT_TESTS_HARNESS_HPP_
#define AOT_TESTS_HARNESS_HPP_

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

extern "C" {
#include "../standin/state.h"
}

inline std::atomic<int> failures{0};

#define CHECK(condition)                                                              \
  do {                                                                                \
    if (!(condition)) {                                                               \
      std::printf("%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);      \
      ++failures;                                                                     \
    }                                                                                 \
  } while (0)

#define CHECK_THROWS(type, part, ...)                                                                     \
  do {                                                                                                    \
    try {                                                                                                 \
      __VA_ARGS__;                                                                                        \
      std::printf("%s:%d: nothing was thrown: %s\n", __FILE__, __LINE__, #__VA_ARGS__);                   \
      ++failures;                                                                                         \
    } catch (const type& error) {                                                                         \
      if (std::string(error.what()).find(part) == std::string::npos) {                                    \
        std::printf("%s:%d: `%s` is not in: %s\n", __FILE__, __LINE__, part, error.what());               \
        ++failures;                                                                                       \
      }                                                                                                   \
    }                                                                                                     \
  } while (0)

// Opened before anything of CUDA, so that its names are found in the process; linking is up to the build.
inline void play(std::initializer_list<standin_device> devices) {
  const std::vector<standin_device> all(devices);
  standin_reset(static_cast<int>(all.size()), all.data(), 13000);
}

inline const standin_device h100{9, 0, 132}, a100{8, 0, 108}, b200{10, 0, 148};
inline void* const fake_memory = reinterpret_cast<void*>(std::uintptr_t{0x7F0000000000});
inline void* const other_memory = reinterpret_cast<void*>(std::uintptr_t{0x7F0000100000});

inline standin_launch_record last_launch() {
  standin_launch_record record{};
  if (standin_launch_count() > 0) standin_launch_at(standin_launch_count() - 1, &record);
  return record;
}

inline int finish(const char* name) {
  std::printf("%s: %s\n", name, failures == 0 ? "ok" : "FAILED");
  return failures == 0 ? 0 : 1;
}

#endif  // AOT_TESTS_HARNESS_HPP_
