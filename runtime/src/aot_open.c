#ifndef _GNU_SOURCE /* C++ compilers define it themselves */
#define _GNU_SOURCE /* dladdr */
#endif
#include "aot_open.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "aot_error.h"
#include "aot_files.h"
#include "aot_lock.h"
#include "aot_sha256.h"
#include "aot_trace.h"
#include "aot_tuning.h"

#pragma weak TVMFFIGetVersion /* a release without it has the interface that this was compiled for */

/* Guarded by AOT_LOCK_SETTINGS. */
static int verification_asked; /* by any loader */
static int verification_waived;
static int opened_unchecked; /* a file was opened, or is being opened, of which nobody knows what it is */
static char configured[AOT_MAX_PATH]; /* directory of the entry library, as the last loader gave it */

static void* support; /* handle of the support library, opened once, under AOT_LOCK_SUPPORT */

static int check_directory(const char* directory) {
  if (directory[0] != '\0' && directory[0] != '/') {
    return aot_raise("AotArgumentError", "configure: `%s` is not an absolute path", directory);
  }
  if (strlen(directory) < sizeof configured) return 0;
  return aot_raise("AotArgumentError", "configure: the path of the directory is too long: `%s`", directory);
}

/* A loader that hashed this library has opened it through a descriptor. */
static int name_entry(const char* directory) {
  Dl_info info;
  char path[AOT_MAX_PATH + 256];
  if (directory[0] == '\0' || dladdr((const void*)&support, &info) == 0 || info.dli_fname == NULL) return 0;
  if (strncmp(info.dli_fname, "/proc/self/fd/", 14) != 0) return 0;
  void* self = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  snprintf(path, sizeof path, "%s/lib%s.so", directory, aot_this_bundle.name);
  if (self == NULL || aot_file_name(self, path) == 0) return 0;
  return aot_raise("AotBundleError", "out of memory");
}

/* TVM-FFI raises its major version when its binary interface changes. */
static int check_tvm_ffi(void) {
  TVMFFIVersion seen = {TVM_FFI_VERSION_MAJOR, 0, 0};
  if (TVMFFIGetVersion != NULL) TVMFFIGetVersion(&seen);
  if (seen.major == TVM_FFI_VERSION_MAJOR) return 0;
  return aot_raise("AotBundleError",
                   "bundle `%s` was built for version %d of TVM-FFI's binary interface, the libtvm_ffi of this process is "
                   "%u.%u.%u\nhint: `pip install \"apache-tvm-ffi<%d\"`, or rebuild the bundle with that version",
                   aot_this_bundle.name, TVM_FFI_VERSION_MAJOR, (unsigned)seen.major, (unsigned)seen.minor,
                   (unsigned)seen.patch, TVM_FFI_VERSION_MAJOR + 1);
}

int aot_configure(int verify, const char* directory) {
  aot_error_prepare();
  aot_linker_prepare();
  if (check_tvm_ffi() != 0 || check_directory(directory) != 0 || name_entry(directory) != 0) return -1;
  aot_lock(AOT_LOCK_SETTINGS);
  int too_late = verify && opened_unchecked;
  if (verify) verification_asked = 1;
  else verification_waived = 1;
  if (directory[0] != '\0') memcpy(configured, directory, strlen(directory) + 1);
  aot_unlock(AOT_LOCK_SETTINGS);
  if (!too_late) return 0;
  return aot_raise("AotDigestError",
                   "bundle `%s`: this process has opened code of it without a check, so that a check comes too late\nhint: "
                   "load the bundle with checks wherever this process loads it", aot_this_bundle.name);
}

/* The directory that the loader gave, or where the dynamic linker found the entry library; without a final slash. */
static int entry_directory(char directory[AOT_MAX_PATH], int* verify) {
  Dl_info info;
  aot_lock(AOT_LOCK_SETTINGS);
  /* If nobody said anything, as a C program that links the bundle does not, digests are compared. */
  *verify = verification_asked || !verification_waived;
  if (!*verify) opened_unchecked = 1; /* before it is opened: a check that is asked for meanwhile comes too late */
  memcpy(directory, configured, sizeof configured);
  aot_unlock(AOT_LOCK_SETTINGS);
  if (directory[0] != '\0') return 0;
  if (dladdr((const void*)&support, &info) == 0 || info.dli_fname == NULL || strlen(info.dli_fname) >= AOT_MAX_PATH) {
    return aot_raise("AotBundleError", "bundle `%s`: the path of its entry library is unknown", aot_this_bundle.name);
  }
  const char* slash = strrchr(info.dli_fname, '/');
  if (slash == NULL) {
    memcpy(directory, ".", 2);
    return 0;
  }
  memcpy(directory, info.dli_fname, (size_t)(slash - info.dli_fname));
  directory[slash - info.dli_fname] = '\0';
  return 0;
}

static int find_file(const aot_file_t* file, char path[AOT_MAX_PATH], int* verify) {
  char directory[AOT_MAX_PATH];
  if (entry_directory(directory, verify) != 0) return -1;
  int size = snprintf(path, AOT_MAX_PATH, "%s/%s", directory, file->path);
  if (size > 0 && size < AOT_MAX_PATH) return 0;
  return aot_raise("AotBundleError", "bundle `%s`: the path of `%s` is too long", aot_this_bundle.name, file->path);
}

static void append_hex(aot_text_t* text, const uint8_t digest[32]) {
  for (int i = 0; i < 32; ++i) aot_text_append(text, "%02x", digest[i]);
}

static const char* const REPLACED =
    "\nhint: the bundle was altered, or rebuilt after this process loaded it; `python -m aot verify` tells which, "
    "a restart loads what is there now";

static int raise_digest(const char* path, const uint8_t seen[32], const uint8_t expected[32]) {
  aot_text_t text = AOT_TEXT_EMPTY;
  aot_text_append(&text, "`%s` is not the file this bundle was built with: sha256 ", path);
  append_hex(&text, seen);
  aot_text_append(&text, ", expected ");
  append_hex(&text, expected);
  aot_text_append(&text, "%s", REPLACED);
  return aot_raise_text("AotDigestError", &text);
}

/* `name==version`, as the builder writes it. No loader checks that file, and people paste what they are shown. */
static int is_distribution(const char* text) {
  const char* allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-=+!";
  return text[0] != '\0' && text[0] != '-' && text[strspn(text, allowed)] == '\0';
}

/* Which distribution installs an absent architecture: a split bundle names it in `sm_90a.part`, beside the folder
 * `sm_90a`. */
static int read_installer(const char* path, char installer[256]) {
  char note[AOT_MAX_PATH];
  int fd = -1;
  size_t got = 0;
  const char* slash = strrchr(path, '/');
  int size = snprintf(note, sizeof note, "%.*s.part", slash == NULL ? 0 : (int)(slash - path), path);
  if (size <= 0 || size >= (int)sizeof note || aot_file_open(note, &fd) != 0) return 0;
  int error = aot_file_read(fd, installer, 255, &got);
  close(fd);
  if (error != 0) return 0;
  installer[got] = '\0';
  installer[strcspn(installer, "\r\n")] = '\0';
  return is_distribution(installer);
}

static int raise_missing(const char* path) {
  char installer[256];
  if (read_installer(path, installer)) {
    return aot_raise("AotBundleError", "`%s` is missing: this part of bundle `%s` is not installed\nhint: `pip install %s`",
                     path, aot_this_bundle.name, installer);
  }
  return aot_raise("AotBundleError", "`%s` is missing\nhint: reinstall or rebuild the bundle", path);
}

static int raise_unreadable(const char* path, int error) {
  if (error == ENOENT) return raise_missing(path);
  return aot_raise("AotBundleError", "cannot read `%s`: %s", path, strerror(error));
}

static int check_file(const aot_file_t* file, const char* path, int fd) {
  uint8_t digest[32];
  uint64_t size = 0;
  int error = aot_file_hash(fd, file->size, aot_sha256_blocks(), digest, &size);
  if (error != 0) return raise_unreadable(path, error);
  if (size != file->size) {
    return aot_raise("AotDigestError", "`%s` has %llu bytes, expected %llu%s", path, (unsigned long long)size,
                     (unsigned long long)file->size, REPLACED);
  }
  return memcmp(digest, file->digest, 32) == 0 ? 0 : raise_digest(path, digest, file->digest);
}

static void* map_file(const char* path, int fd) {
  const char* error = "";
  aot_linker_enter();
  void* library = aot_file_map(fd, path, &error);
  aot_linker_leave();
  if (library == NULL) aot_raise("AotBundleError", "cannot open `%s`: %s", path, error);
  return library;
}

static void* open_file(const aot_file_t* file) {
  char path[AOT_MAX_PATH];
  int verify, fd = -1;
  int64_t start = aot_trace_now();
  if (find_file(file, path, &verify) != 0) return NULL;
  int error = aot_file_open(path, &fd);
  if (error != 0) {
    raise_unreadable(path, error);
    return NULL;
  }
  void* library = NULL;
  if (verify) {
    if (check_file(file, path, fd) == 0) library = map_file(path, fd);
  } else {
    uint64_t size;
    error = aot_file_size(fd, &size); /* the dynamic linker would wait for a writer to a FIFO */
    if (error != 0) raise_unreadable(path, error);
    else library = map_file(path, -1);
  }
  close(fd);
  if (library != NULL) {
    aot_trace_log("opened `%s` (%llu bytes, %s) in %.3f ms", path, (unsigned long long)file->size,
                  verify ? "digest checked" : "not checked", (double)(aot_trace_now() - start) * 1e-6);
  }
  return library;
}

static const aot_kernel_library_t* open_kernel(const aot_build_t* build) {
  if (check_tvm_ffi() != 0) return NULL; /* a program that links the bundle has configured nothing */
  void* library = open_file(&build->file);
  if (library == NULL) return NULL;
  const aot_kernel_library_t* tables = (const aot_kernel_library_t*)dlsym(library, "aot_kernel_library");
  if (tables == NULL) {
    aot_raise("AotBundleError", "`%s` is not a kernel library", build->file.path);
    return NULL;
  }
  if (tables->major != AOT_TABLES_MAJOR) {
    aot_raise("AotBundleError", "`%s` has tables of version %u.%u, this bundle reads %u.%u\nhint: rebuild the bundle",
              build->file.path, tables->major, tables->minor, AOT_TABLES_MAJOR, AOT_TABLES_MINOR);
    return NULL;
  }
  return tables;
}

static const aot_group_t* find_group(const aot_kernel_library_t* library, const char* name) {
  for (uint32_t i = 0; i < library->group_count; ++i) {
    if (strcmp(library->groups[i].name, name) == 0) return &library->groups[i];
  }
  return NULL;
}

static const aot_kernel_library_t* opened_library(aot_build_t* build) {
  const aot_kernel_library_t* library = __atomic_load_n(&build->opened, __ATOMIC_ACQUIRE);
  if (library != NULL) return library;
  library = open_kernel(build);
  if (library != NULL) __atomic_store_n(&build->opened, library, __ATOMIC_RELEASE);
  return library;
}

/* A table that does not fit is an error, not something to pass over: it was compiled in with the digest of the library. */
static int resolve_table(aot_candidate_t* candidate, const aot_kernel_library_t* library) {
  if (candidate->tuning == NULL || candidate->group == NULL) return 0;
  candidate->tuned = aot_tuning_resolve(candidate->tuning, library, candidate->group);
  return candidate->tuned == NULL ? -1 : 0;
}

int aot_candidate_open(const aot_function_t* function, aot_candidate_t* candidate) {
  if (__atomic_load_n(&candidate->library, __ATOMIC_ACQUIRE) != NULL) return 0;
  int lock = aot_lock_of(candidate->build);
  aot_lock(lock);
  const aot_kernel_library_t* library = candidate->library;
  if (library == NULL && (library = opened_library(candidate->build)) != NULL) {
    candidate->group = find_group(library, function->group);
    if (resolve_table(candidate, library) == 0) __atomic_store_n(&candidate->library, library, __ATOMIC_RELEASE);
    else library = NULL;
  }
  aot_unlock(lock);
  return library == NULL ? -1 : 0;
}

int aot_support_open(void) {
  if (aot_this_bundle.provided != NULL || __atomic_load_n(&support, __ATOMIC_ACQUIRE) != NULL) return 0;
  aot_lock(AOT_LOCK_SUPPORT);
  void* library = support != NULL ? support : open_file(&aot_this_bundle.support);
  __atomic_store_n(&support, library, __ATOMIC_RELEASE);
  aot_unlock(AOT_LOCK_SUPPORT);
  return library == NULL ? -1 : 0;
}

void* aot_support_symbol(const char* name) {
  if (aot_this_bundle.provided == NULL) return dlsym(__atomic_load_n(&support, __ATOMIC_ACQUIRE), name);
  for (const aot_provided_t* provided = aot_this_bundle.provided; provided->name != NULL; ++provided) {
    if (strcmp(provided->name, name) == 0) return provided->address;
  }
  return NULL;
}

const char* aot_support_name(void) {
  return aot_this_bundle.support.path == NULL ? "the support archive" : aot_this_bundle.support.path;
}
