// Every allocation that aot.h and the entry library make fails once, and every open, read and seek of theirs: each gives
// one clear error, and the next try works.
// Usage: test_memory BUNDLE LIBTVM_FFI SCRATCH
#include <cstdarg>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <stdlib.h> /* before malloc means something else */

extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* memory, std::size_t size);
}

static const void* watched;               // the entry library
static thread_local long countdown = -1;  // allocations to let pass before one fails; -1: all pass
static thread_local long file_countdown = -1;  // the same for calls to the file system
static thread_local int failed = 0;

static bool fails() {
  if (countdown < 0 || countdown-- > 0) return false;
  ++failed;
  return true;
}

// The allocations of aot.h, and no others of this program: a C++ library may be a part of it.
static void* aot_malloc(std::size_t size) { return fails() ? nullptr : __libc_malloc(size); }
static void* aot_calloc(std::size_t count, std::size_t size) { return fails() ? nullptr : __libc_calloc(count, size); }
static void* aot_realloc(void* memory, std::size_t size) { return fails() ? nullptr : __libc_realloc(memory, size); }
#define malloc aot_malloc
#define calloc aot_calloc
#define realloc aot_realloc
#include <aot/aot.hpp>
#undef malloc
#undef calloc
#undef realloc

#include "digest.hpp"
#include "harness.hpp"

namespace fs = std::filesystem;

// The allocations of the entry library.
static bool is_watched(const void* caller) {
  Dl_info info;
  return countdown >= 0 && watched != nullptr && dladdr(caller, &info) != 0 && info.dli_fbase == watched;
}

extern "C" void* malloc(std::size_t size) {
  return is_watched(__builtin_return_address(0)) && fails() ? nullptr : __libc_malloc(size);
}
extern "C" void* calloc(std::size_t count, std::size_t size) {
  return is_watched(__builtin_return_address(0)) && fails() ? nullptr : __libc_calloc(count, size);
}
extern "C" void* realloc(void* memory, std::size_t size) {
  return is_watched(__builtin_return_address(0)) && fails() ? nullptr : __libc_realloc(memory, size);
}

// Calls to the file system while an action runs: aot.h and the entry library are all that makes any by these names.
static bool file_fails() {
  if (file_countdown < 0 || file_countdown-- > 0) return false;
  ++failed;
  errno = EIO;
  return true;
}

extern "C" int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const int mode = (flags & O_CREAT) != 0 ? va_arg(rest, int) : 0;
  va_end(rest);
  return file_fails() ? -1 : static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
extern "C" ssize_t read(int descriptor, void* buffer, std::size_t size) {
  return file_fails() ? -1 : static_cast<ssize_t>(syscall(SYS_read, descriptor, buffer, size));
}
extern "C" off_t lseek(int descriptor, off_t offset, int whence) noexcept {
  return file_fails() ? -1 : static_cast<off_t>(syscall(SYS_lseek, descriptor, offset, whence));
}

static const void* base_of(const void* address) {
  Dl_info info;
  CHECK(dladdr(address, &info) != 0);
  return info.dli_fbase;
}

static aot::Options options;
static fs::path original, scratch;

// A bundle that nothing in this process has used: code and state belong to a file.
static std::string fresh() {
  static int copies = 0;
  const fs::path copy = scratch / std::to_string(copies++);
  fs::remove_all(copy);
  fs::create_directories(copy / "lib" / AOT_HOST);
  fs::copy(original / "manifest.json", copy);
  for (const auto& item : fs::directory_iterator(original / "lib" / AOT_HOST)) {
    if (item.path().extension() == ".a") continue;
    fs::copy(item.path(), copy / "lib" / AOT_HOST / item.path().filename(), fs::copy_options::recursive);
  }
  return copy.string();
}

// What an action says when the call after so many others fails; "" if nothing was thrown.
static std::string outcome(const std::function<void()>& action, long& left, long passing) {
  std::string said;
  left = passing;
  try {
    action();
  } catch (const aot::Error& error) {
    left = -1;
    said = error.what();
  }
  left = -1;
  return said;
}

// In a thread of its own: what aot.h keeps of an error belongs to a thread.
static int fail_each(const char* name, const std::function<std::function<void()>()>& prepare, const char* usual,
                     bool files = false) {
  const char* const telling = files ? "Input/output error" : "memory";
  long position = 0;
  for (bool hit = true; hit; ++position) {
    std::thread([&] {
      const std::function<void()> action = prepare();
      long& left = files ? file_countdown : countdown;
      failed = 0;
      const std::string said = outcome(action, left, position);
      hit = failed > 0;
      const bool clear = said.find(hit ? telling : usual) != std::string::npos;
      if (!clear) std::printf("%s, %s %ld: %s\n", name, files ? "file" : "allocation", position, said.c_str());
      CHECK(clear && failed <= 1);
      CHECK(outcome(action, left, -1).find(usual) != std::string::npos);
    }).join();
  }
  return static_cast<int>(position - 1);
}

// Opened before the failures begin; its entry library's allocations count from then on.
template <typename Action>
static std::function<std::function<void()>()> with_bundle(Action action) {
  return [action]() -> std::function<void()> {
    const aot::Bundle bundle(fresh(), options);
    watched = base_of(bundle.get().library);
    return [=] { action(bundle); };
  };
}

int main(int count, char** arguments) {
  if (count != 4) return 2;
  original = arguments[1];
  options.tvm_ffi = arguments[2];
  scratch = arguments[3];
  play({h100});
  aot::Bundle(fresh(), options);  // libtvm_ffi is there from now on

  aot::Options pinned = options;
  pinned.manifest_sha256 = sha256_of(original / "manifest.json");
  const auto opening = [](const aot::Options& asked) {
    return [asked]() -> std::function<void()> { return [path = fresh(), asked] { aot::Bundle(path, asked); }; };
  };
  const auto out = aot::tensor(static_cast<float*>(fake_memory), {1000});
  const auto integers = aot::tensor(static_cast<int*>(fake_memory), {1000});
  CHECK(fail_each("open", opening(options), "") == 2);
  CHECK(fail_each("open, pinned", opening(pinned), "") == 2);
  CHECK(fail_each("open nothing", [] { return [] { aot::Bundle("/nowhere", options); }; }, "not a bundle") == 2);
  CHECK(fail_each("call", with_bundle([=](const aot::Bundle& b) { b["fill"](out, 1.0); }), "") == 3);
  CHECK(fail_each("preload", with_bundle([=](const aot::Bundle& b) { b.preload(0); }), "") >= 5);
  CHECK(fail_each("explain", with_bundle([=](const aot::Bundle& b) { b.explain("fill", 9, 0, out, 1.0); }), "") >= 2);
  CHECK(fail_each("bad dtype", with_bundle([=](const aot::Bundle& b) { b["fill"](integers, 1.0); }), "out.dtype") >= 5);
  CHECK(fail_each("bad count", with_bundle([=](const aot::Bundle& b) { b["fill"](out); }), "takes 2 arguments") >= 3);
  CHECK(fail_each("no kernel", with_bundle([=](const aot::Bundle& b) { b["nothing"]; }), "has no kernel") == 2);
  CHECK(fail_each("no device", with_bundle([=](const aot::Bundle& b) { b.preload("fill", 9); }), "device 9") >= 3);

  CHECK(fail_each("open", opening(options), "", true) >= 6);
  CHECK(fail_each("open, pinned", opening(pinned), "", true) >= 8);
  CHECK(fail_each("call", with_bundle([=](const aot::Bundle& b) { b["fill"](out, 1.0); }), "", true) >= 8);
  CHECK(fail_each("preload", with_bundle([=](const aot::Bundle& b) { b.preload("fill", 0); }), "", true) >= 8);
  std::error_code ignored;
  fs::remove_all(scratch, ignored);
  return finish("test_memory");
}
