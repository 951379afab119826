// The file that was hashed is the file that is mapped. Usage: test_replaced BUNDLE NEWER LIBTVM_FFI SCRATCH
//
// NEWER is the same bundle with other code: blocks of 224 threads instead of 96 tell that it ran.
#include <aot/aot.hpp>

#include <sys/stat.h>
#include <sys/time.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <thread>

#include "digest.hpp"
#include "harness.hpp"

namespace fs = std::filesystem;

static aot::Options options;
static fs::path original, newer, scratch;
static int copies = 0;
static std::function<void(const char*)> before_opening;

// Stands between everything in this process and the dynamic linker: what happens here happens after a file was hashed.
extern "C" void* dlopen(const char* name, int flags) {
  using function = void* (*)(const char*, int);
  static const function real = reinterpret_cast<function>(dlsym(RTLD_NEXT, "dlopen"));
  if (before_opening && name != nullptr) before_opening(name);
  return real(name, flags);
}

// Whether it is a file of a bundle, by its path or by a descriptor, that is about to be mapped.
static bool is_of_a_bundle(const std::string& name) {
  return name.find("/proc/self/fd/") == 0 || name.find("/lib/" AOT_HOST "/") != std::string::npos;
}

static fs::path fresh() {
  const fs::path copy = scratch / std::to_string(copies++);
  fs::remove_all(copy);
  fs::create_directories(copy / "lib");
  fs::copy(original / "manifest.json", copy);
  fs::copy(original / "lib" / AOT_HOST, copy / "lib" / AOT_HOST, fs::copy_options::recursive);
  return copy;
}

static const char* const entry = "lib/" AOT_HOST "/libbundle.so";
static const char* const kernel = "lib/" AOT_HOST "/sm_90a/fill_epilogue.so";

// As an installer replaces a file.
static void replace(const fs::path& file, const fs::path& by) {
  const fs::path staged = file.string() + ".new";
  fs::copy(by, staged, fs::copy_options::overwrite_existing);
  fs::rename(staged, file);
}

static unsigned block_of_a_call(const aot::Bundle& bundle) {
  bundle["fill_epilogue__identity"](aot::tensor(static_cast<float*>(fake_memory), {1000}));
  return last_launch().block[0];
}

static void test_kernel_library_replaced_before_it_is_mapped() {
  play({h100});
  const fs::path path = fresh();
  aot::Bundle bundle(path.string(), options);
  int opened = 0;
  before_opening = [&](const char* name) {
    if (is_of_a_bundle(name) && opened++ == 0) replace(path / kernel, newer / kernel);
  };
  CHECK(block_of_a_call(bundle) == 96);
  before_opening = nullptr;
  CHECK(opened > 0);
}

static void test_entry_library_replaced_before_it_is_mapped() {
  play({h100});
  const fs::path path = fresh();
  const std::string expected = aot::Bundle(original.string(), options).build();
  int opened = 0;
  before_opening = [&](const char* name) {
    if (is_of_a_bundle(name) && opened++ == 0) replace(path / entry, newer / entry);
  };
  aot::Bundle bundle(path.string(), options);
  before_opening = nullptr;
  CHECK(opened == 1 && bundle.build() == expected);
  CHECK(block_of_a_call(bundle) == 96);  // the siblings are found beside it
}

// At any moment: what runs is what the digests say, or nothing.
static void test_files_replaced_all_the_time() {
  play({h100});
  for (int round = 0; round < 40; ++round) {
    const fs::path path = fresh(), file = path / (round % 2 == 0 ? kernel : entry);
    const fs::path theirs = newer / file.lexically_relative(path), ours = original / file.lexically_relative(path);
    std::atomic<bool> done{false};
    std::thread replacing([&] {
      for (int i = 0; !done; ++i) replace(file, i % 2 == 0 ? theirs : ours);
    });
    try {
      CHECK(block_of_a_call(aot::Bundle(path.string(), options)) == 96);
    } catch (const aot::DigestError&) {
    }
    done = true;
    replacing.join();
    fs::remove_all(path);
  }
}

// The dynamic linker goes by names; descriptors have the same numbers again and again.
static void test_descriptor_numbers_are_used_again() {
  play({h100});
  aot::Bundle bundle(fresh().string(), options);
  std::set<std::string> names;
  std::map<std::string, int> numbers;
  before_opening = [&](const char* name) {
    const std::string spelled = name;
    if (!is_of_a_bundle(spelled)) return;
    CHECK(names.insert(spelled).second);
    ++numbers[spelled.substr(spelled.rfind('/'))];
  };
  const auto out = aot::tensor(static_cast<float*>(fake_memory), {1000});
  bundle["fill"](out, 1.0);
  CHECK(last_launch().block[0] == 128);
  bundle["fill_optional"](out, nullptr);
  CHECK(last_launch().block[0] == 32);
  CHECK(block_of_a_call(bundle) == 96);
  before_opening = nullptr;
  CHECK(names.size() == 4 && numbers.size() == 1);  // three kernels and the support library, all by one number
}

// A clock that stands still, as that of a sandbox may.
extern "C" int gettimeofday(struct timeval* now, void*) noexcept {
  now->tv_sec = now->tv_usec = 1;
  return 0;
}

// Files are told apart by what they are, not by when they were opened.
static void test_a_newer_version_is_opened_although_the_clock_stands_still() {
  play({h100});
  CHECK(block_of_a_call(aot::Bundle(fresh().string(), options)) == 96);
  const fs::path path = fresh();
  for (const char* file : {entry, kernel, "manifest.json", "lib/" AOT_HOST "/libbundle_cuda.so"}) {
    replace(path / file, newer / file);
  }
  CHECK(block_of_a_call(aot::Bundle(path.string(), options)) == 224);
}

static void make_fifo(const fs::path& file) {
  fs::remove(file);
  CHECK(mkfifo(file.c_str(), 0600) == 0);
}

static void test_a_fifo_is_refused_and_not_waited_for() {
  play({h100});
  for (const bool verify : {true, false}) {
    aot::Options asked = options;
    asked.verify = verify;
    fs::path path = fresh();
    make_fifo(path / kernel);
    aot::Bundle bundle(path.string(), asked);
    CHECK_THROWS(aot::BundleError, "cannot read", block_of_a_call(bundle));
    path = fresh();
    make_fifo(path / entry);
    CHECK_THROWS(aot::BundleError, "cannot read", aot::Bundle(path.string(), asked));
    path = fresh();
    make_fifo(path / "manifest.json");
    CHECK_THROWS(aot::BundleError, "cannot read", aot::Bundle(path.string(), asked));
  }
  aot::Options pinned = options;
  pinned.manifest_sha256 = std::string(64, '0');
  const fs::path path = fresh();
  make_fifo(path / "manifest.json");
  CHECK_THROWS(aot::BundleError, "cannot read", aot::Bundle(path.string(), pinned));
}

// ---- a pinned manifest ----

// Another entry library, and a manifest that names it, by someone who can write to the directory.
static void swap_entry(const fs::path& path) {
  replace(path / entry, newer / entry);
  replace(path / "manifest.json", newer / "manifest.json");
}

static void test_a_pinned_manifest_decides_which_code_runs() {
  play({h100});
  aot::Options pinned = options;
  pinned.manifest_sha256 = sha256_of(original / "manifest.json");
  fs::path path = fresh();
  CHECK(block_of_a_call(aot::Bundle(path.string(), pinned)) == 96);

  path = fresh();
  swap_entry(path);
  CHECK(aot::Bundle(path.string(), options).build() == aot::Bundle(newer.string(), options).build());
  path = fresh();
  swap_entry(path);
  CHECK_THROWS(aot::DigestError, "is not the manifest that this program was built for", aot::Bundle(path.string(), pinned));
  path = fresh();
  replace(path / entry, newer / entry);
  CHECK_THROWS(aot::DigestError, "is not the file this bundle was built with", aot::Bundle(path.string(), pinned));

  CHECK_THROWS(aot::DigestError, "is not the manifest that this program was built for", aot::Bundle(newer.string(), pinned));
  path = fresh();
  { std::ofstream(path / "manifest.json", std::ios::app) << "\n"; }
  int opened = 0;
  before_opening = [&](const char*) { ++opened; };
  CHECK_THROWS(aot::DigestError, pinned.manifest_sha256->c_str(), aot::Bundle(path.string(), pinned));
  before_opening = nullptr;
  CHECK(opened == 0);
  fs::remove(path / "manifest.json");
  CHECK_THROWS(aot::BundleError, "not a bundle", aot::Bundle(path.string(), pinned));
}

static void test_pins_that_cannot_be_right() {
  aot::Options pinned = options;
  for (const std::string& pin : {std::string(), std::string("abc"), std::string(64, 'A'), std::string(65, '0'), std::string(64, 'g')}) {
    pinned.manifest_sha256 = pin;
    CHECK_THROWS(aot::UsageError, "64 hex digits", aot::Bundle(original.string(), pinned));
  }
  pinned.manifest_sha256 = sha256_of(original / "manifest.json");
  for (const std::size_t at : {std::size_t{0}, std::size_t{63}}) {
    aot::Options other = pinned;
    char& digit = (*other.manifest_sha256)[at];
    digit = digit == '0' ? '1' : '0';
    CHECK_THROWS(aot::DigestError, "is not the manifest", aot::Bundle(original.string(), other));
  }
  pinned.verify = false;
  CHECK_THROWS(aot::UsageError, "skip_verification", aot::Bundle(original.string(), pinned));
}

static void test_an_empty_key_or_name_turns_no_check_off() {
  aot::Options asked = options;
  asked.key = "";
  CHECK_THROWS(aot::SignatureError, "is not signed", aot::Bundle(original.string(), asked));
  asked.key.reset();
  asked.name = "";
  CHECK_THROWS(aot::SignatureError, "is not the bundle", aot::Bundle(original.string(), asked));
}

static bool finds(const std::string& manifest) {
  aot_entry_record record;
  return aot_find_entry_(manifest.c_str(), &record) == 0 && record.size == 7 && std::string(record.name) == "libx.so" &&
         record.sha256 == std::string(64, 'a');
}

// Stands in front of libtvm_ffi's own.
static std::uint32_t tvm_ffi_major = 0;
extern "C" void TVMFFIGetVersion(std::uint32_t numbers[3]) {
  numbers[0] = tvm_ffi_major;
  numbers[1] = 2;
  numbers[2] = 3;
}

static void test_another_binary_interface_of_tvm_ffi_is_refused() {
  play({h100});
  const char* said = "was built for version 0 of TVM-FFI's binary interface, the libtvm_ffi of this process is 1.2.3";
  const std::string path = fresh().string();
  tvm_ffi_major = 1;
  CHECK_THROWS(aot::BundleError, said, aot::Bundle(path, options));
  tvm_ffi_major = 0;
  aot::Bundle bundle(path, options);
  tvm_ffi_major = 1; /* as in a program that links the bundle: nobody has asked before the first call */
  CHECK_THROWS(aot::BundleError, said, block_of_a_call(bundle));
  tvm_ffi_major = 0;
  CHECK(block_of_a_call(bundle) == 96);
}

static void test_the_entry_library_in_a_manifest() {
  const std::string host = "lib/" AOT_HOST "/", digest(64, 'a');
  const auto member = [](const std::string& path, const std::string& sha256, const std::string& rest) {
    return "\"entry\" :\n {\"path\": \"" + path + "\", \"sha256\": \"" + sha256 + "\"" + rest;
  };
  const std::string good = member(host + "libx.so", digest, ", \"size\": 7}");
  CHECK(finds("{" + good + "}"));
  CHECK(finds("{" + member("lib/riscv64-linux-gnu/libx.so", digest, ", \"size\": 7}") + ", " + good + "}"));
  CHECK(finds("{\"doc\": \"\\\"entry\\\": {\\\"path\\\": \", \"entry\": 5, " + good + "}"));
  CHECK(!finds("{" + good + ", " + good + "}"));
  CHECK(!finds("{" + member(host + "libx.so", digest, "}") + "}"));
  CHECK(!finds("{" + member(host + "libx.so", digest, ", \"size\": \"7\"}") + "}"));
  CHECK(!finds("{" + member(host + "libx.so", "aa", ", \"size\": 7}") + "}"));
  CHECK(!finds("{" + member(host + "../libx.so", digest, ", \"size\": 7}") + "}"));
  CHECK(!finds("{" + member("/etc/libx.so", digest, ", \"size\": 7}") + "}"));
  CHECK(!finds("{" + member(host + "libx.so", digest, ", \"size\": 7, \"more\": \"" + std::string(2000, 'x') + "\"}") + "}"));
  CHECK(!finds("{" + member(host + "libx.so", digest, ", \"size\": 7")));
  CHECK(!finds(""));
}

int main(int count, char** arguments) {
  if (count != 5) return 2;
  original = arguments[1];
  newer = arguments[2];
  options.tvm_ffi = arguments[3];
  scratch = arguments[4];
  test_kernel_library_replaced_before_it_is_mapped();
  test_entry_library_replaced_before_it_is_mapped();
  test_files_replaced_all_the_time();
  test_descriptor_numbers_are_used_again();
  test_a_newer_version_is_opened_although_the_clock_stands_still();
  test_a_fifo_is_refused_and_not_waited_for();
  test_a_pinned_manifest_decides_which_code_runs();
  test_pins_that_cannot_be_right();
  test_an_empty_key_or_name_turns_no_check_off();
  test_another_binary_interface_of_tvm_ffi_is_refused();
  test_the_entry_library_in_a_manifest();
  std::error_code ignored;
  fs::remove_all(scratch, ignored);
  return finish("test_replaced");
}
