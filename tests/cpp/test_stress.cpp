// Threads and failures, to be run under the sanitizers. Usage: test_stress BUNDLE LIBTVM_FFI SCRATCH
#include <aot/aot.hpp>

#include <filesystem>
#include <thread>

#include "harness.hpp"

namespace fs = std::filesystem;

static aot::Options options;
static fs::path original, scratch;
static int copies = 0;

// A bundle that nothing in this process has used: code and state belong to a file.
static std::string fresh() {
  const fs::path copy = scratch / std::to_string(copies++);
  fs::remove_all(copy);
  fs::create_directories(copy / "lib" / AOT_HOST);
  fs::copy(original / "manifest.json", copy / "manifest.json");
  for (const auto& item : fs::directory_iterator(original / "lib" / AOT_HOST)) {
    if (item.path().extension() != ".a") {
      fs::copy(item.path(), copy / "lib" / AOT_HOST / item.path().filename(), fs::copy_options::recursive);
    }
  }
  return copy.string();
}

template <typename Work>
static void together(int count, Work work) {
  std::atomic<int> waiting{count};
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      --waiting;
      while (waiting > 0) std::this_thread::yield();
      try {
        work(i);
      } catch (const std::exception& error) {
        std::printf("thread %d: %s\n", i, error.what());
        ++failures;
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

static aot::TensorView vector_on(int device) { return aot::tensor(static_cast<float*>(fake_memory), {1000}, device); }

static void test_first_calls_together() {
  play({h100, a100, h100, h100});
  aot::Bundle bundle(fresh(), options);
  together(16, [&](int i) {
    for (int round = 0; round < 4; ++round) {
      bundle["fill"](vector_on((i + round) % 4), 1.0);
      bundle["fill_optional"](vector_on(i % 4), nullptr);
      bundle["fill_everywhere"](vector_on(i % 4));
    }
    bundle["fill_pointer"](static_cast<const void*>(fake_memory), 64, static_cast<void*>(nullptr));
  });
  CHECK(standin_launch_count() == 16 * 13);
}

static void test_preload_races_with_calls() {
  play({h100, a100});
  aot::Bundle bundle(fresh(), options);
  together(16, [&](int i) {
    if (i % 4 == 0) bundle.preload(i % 8 / 4);
    bundle["fill"](vector_on(i % 2), 1.0);
    bundle.explain("fill", 9, 0, vector_on(0), 1.0);
  });
  CHECK(standin_launch_count() == 16);
}

// Different kernels are loaded at the same time: each call into CUDA waits there for the other.
static void test_kernels_are_loaded_side_by_side() {
  play({h100});
  aot::Bundle bundle(fresh(), options);
  const char* const functions[] = {"fill", "fill_optional"};
  standin_meet("cudaLibraryLoadData", 2);
  together(2, [&](int i) { bundle.preload(functions[i], 0); });
  CHECK(standin_met());
}

// Three rounds: while nothing is open, while others open it, and when it is open. Each hashes the entry library, which under
// a sanitizer takes most of the time of this program.
static void test_open_in_loops() {
  play({h100});
  const std::string path = fresh();
  together(16, [&](int) {
    for (int round = 0; round < 3; ++round) {
      aot::Bundle bundle(path, options);
      bundle["fill"](vector_on(0), 1.0);
    }
  });
  CHECK(standin_launch_count() == 16 * 3);
}

static void test_errors_in_threads() {
  play({h100});
  aot::Bundle bundle(fresh(), options);
  together(16, [&](int i) {
    for (int round = 0; round < 20; ++round) {
      const std::string name = "nothing" + std::to_string(i);
      CHECK_THROWS(aot::NotFoundError, name.c_str(), bundle[name]);
      CHECK_THROWS(aot::ArgumentError, "out.dtype", bundle["fill"](aot::tensor(static_cast<int*>(fake_memory), {8}), 1.0));
    }
  });
}

// Every call into CUDA that a first use makes fails once, each at each of its positions; the next try succeeds.
static void test_failing_cuda_calls() {
  const char* const names[] = {
      "cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetAttribute", "cuStreamIsCapturing",
      "cuThreadExchangeStreamCaptureMode", "cudaGetDevice", "cudaSetDevice", "cudaLibraryLoadData",
      "cudaLibraryGetKernel", "cudaKernelSetAttributeForDevice", "cudaFuncSetAttribute", "cudaLaunchKernelExC",
      "cudaGetDriverEntryPointByVersion", "cudaDeviceGetAttribute", "cudaGetDeviceCount",
  };
  const auto first_use = [](aot::Bundle& bundle) {
    bundle["fill"](vector_on(1), 1.0);
    bundle["fill_everywhere"](vector_on(1));
  };
  play({h100, h100});
  std::vector<long> counts;
  {
    aot::Bundle bundle(fresh(), options);
    first_use(bundle);
    for (const char* name : names) counts.push_back(standin_calls(name));
  }
  int failed = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    for (long position = 0; position < counts[i]; ++position) {
      play({h100, h100});
      aot::Bundle bundle(fresh(), options);
      standin_fail(names[i], 2, -1, position, 1);
      try {
        first_use(bundle);
      } catch (const aot::Error& error) {
        ++failed;
        // NVIDIA's launch support answers 999, "unknown", for failures of some functions that it calls itself.
        const std::string text = error.what();
        const bool named = text.find("(2)") != std::string::npos || text.find("(999)") != std::string::npos;
        if (!named) std::printf("%s at %ld: %s\n", names[i], position, error.what());
        CHECK(named);
      }
      first_use(bundle);
      CHECK(standin_launch_count() >= 2);
    }
  }
  CHECK(failed >= 8);
}

// What abi.h promises to whoever calls the functions of a bundle without our headers.
static void test_a_preload_that_fails_is_minus_one() {
  play({h100});
  aot_bundle bundle;
  CHECK(aot_open(fresh().c_str(), nullptr, &bundle) == AOT_OK);
  standin_fail("cudaLibraryLoadData", 2, -1, 0, 1);
  CHECK(bundle.library->preload(nullptr, 0) == -1);
  CHECK(aot_raised_(bundle.library->core) != AOT_OK);
  CHECK(bundle.library->preload(nullptr, 0) == 0);
}

int main(int count, char** arguments) {
  if (count != 4) return 2;
  original = arguments[1];
  options.tvm_ffi = arguments[2];
  scratch = arguments[3];
  test_first_calls_together();
  test_preload_races_with_calls();
  test_kernels_are_loaded_side_by_side();
  test_open_in_loops();
  test_errors_in_threads();
  test_failing_cuda_calls();
  test_a_preload_that_fails_is_minus_one();
  std::error_code ignored;
  fs::remove_all(scratch, ignored);
  return finish("test_stress");
}
