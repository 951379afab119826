// The tests that run under the sanitizers as one program: looking for leaks when a process ends takes seconds.
// Usage: under_sanitizer BUNDLE NEWER_BUNDLE LIBTVM_FFI SCRATCH
#include <filesystem>
#include <string>

// The functions `main` of those tests, which are compiled under these names.
int test_open_main(int count, char** arguments);
int test_stress_main(int count, char** arguments);
int test_two_versions_main(int count, char** arguments);

static int run(int (*test)(int, char**), std::string first, std::string second, std::string third) {
  std::string name = "under_sanitizer";
  char* arguments[] = {name.data(), first.data(), second.data(), third.data(), nullptr};
  return test(4, arguments);
}

int main(int count, char** arguments) {
  if (count != 5) return 2;
  const std::string bundle = arguments[1], newer = arguments[2], tvm_ffi = arguments[3], scratch = arguments[4];
  // Code is loaded once in a process: the test of two versions counts loads, and gets a bundle that nothing has used.
  const std::string older = scratch + "/older";
  std::filesystem::remove_all(scratch);
  std::filesystem::create_directories(scratch);
  std::filesystem::copy(bundle, older, std::filesystem::copy_options::recursive);
  const int opened = run(test_open_main, bundle, tvm_ffi, scratch + "/open");
  const int stressed = run(test_stress_main, bundle, tvm_ffi, scratch + "/stress");
  const int two_versions = run(test_two_versions_main, older, newer, tvm_ffi);
  return opened != 0 || stressed != 0 || two_versions != 0;
}
