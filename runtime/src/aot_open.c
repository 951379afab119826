/* Opening native code: find it beside the entry library, check its digest, map it for good. */
#ifndef _GNU_SOURCE /* C++ compilers define it themselves */
#define _GNU_SOURCE /* dladdr */
#endif
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "aot_bundle.h"
#include "aot_sha256.h"
#include "aot_text.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int verification_asked; /* by any loader */
static int verification_waived;
static char configured[PATH_MAX]; /* directory of the entry library, as the last loader gave it */
static void* support; /* handle of the support library, opened once */

void aot_lock(void) { pthread_mutex_lock(&lock); }
void aot_unlock(void) { pthread_mutex_unlock(&lock); }

static int check_directory(const char* directory) {
  if (directory[0] != '\0' && directory[0] != '/') {
    return aot_raise("AotArgumentError", "configure: `%s` is not an absolute path", directory);
  }
  if (strlen(directory) < sizeof configured) return 0;
  return aot_raise("AotArgumentError", "configure: the path of the directory is too long: `%s`", directory);
}

int aot_configure(int verify, const char* directory) {
  if (check_directory(directory) != 0) return -1;
  aot_lock();
  if (verify) verification_asked = 1;
  else verification_waived = 1;
  if (directory[0] != '\0') memcpy(configured, directory, strlen(directory) + 1);
  aot_unlock();
  return 0;
}

/* If nobody said anything, as a C program that links the bundle does not, digests are checked. */
static int verifies(void) { return verification_asked || !verification_waived; }

static int raise_too_long(const char* relative) {
  return aot_raise("AotBundleError", "bundle `%s`: the path of `%s` is too long", aot_bundle.name, relative);
}

static int beside_entry_library(const char* relative, char path[PATH_MAX]) {
  Dl_info info;
  int size;
  if (configured[0] != '\0') {
    size = snprintf(path, PATH_MAX, "%s/%s", configured, relative);
    return size > 0 && size < PATH_MAX ? 0 : raise_too_long(relative);
  }
  if (dladdr(&lock, &info) == 0 || info.dli_fname == NULL) {
    return aot_raise("AotBundleError", "bundle `%s`: the path of its entry library is unknown", aot_bundle.name);
  }
  const char* slash = strrchr(info.dli_fname, '/');
  int directory = slash == NULL ? 0 : (int)(slash - info.dli_fname + 1);
  size = snprintf(path, PATH_MAX, "%.*s%s", directory, info.dli_fname, relative);
  return size > 0 && size < PATH_MAX ? 0 : raise_too_long(relative);
}

static void append_hex(aot_text_t* text, const uint8_t digest[32]) {
  for (int i = 0; i < 32; ++i) aot_text_append(text, "%02x", digest[i]);
}

static const char* const REPLACED =
    "\nhint: the bundle was altered, or built anew after this process loaded it; `python -m aot verify` tells, "
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

/* What installs an absent architecture: a split bundle says it in `sm_90a.part`, beside the folder `sm_90a`. */
static int read_installer(const char* path, char installer[256]) {
  char note[PATH_MAX];
  const char* slash = strrchr(path, '/');
  int size = snprintf(note, sizeof note, "%.*s.part", slash == NULL ? 0 : (int)(slash - path), path);
  FILE* file = size > 0 && size < (int)sizeof note ? fopen(note, "re") : NULL;
  if (file == NULL) return 0;
  int found = fgets(installer, 256, file) != NULL;
  fclose(file);
  if (found) installer[strcspn(installer, "\r\n")] = '\0';
  return found;
}

static int raise_missing(const char* path) {
  char installer[256];
  if (read_installer(path, installer)) {
    return aot_raise("AotBundleError", "`%s` is missing: this part of bundle `%s` is not installed\nhint: `pip install %s`",
                     path, aot_bundle.name, installer);
  }
  return aot_raise("AotBundleError", "`%s` is missing\nhint: install or build the bundle again", path);
}

static int check_file(const aot_file_t* file, const char* path) {
  uint8_t digest[32];
  uint64_t size = 0;
  int error = aot_sha256_file(path, file->size, digest, &size);
  if (error == ENOENT) return raise_missing(path);
  if (error != 0) return aot_raise("AotBundleError", "cannot read `%s`: %s", path, strerror(error));
  if (size != file->size) {
    return aot_raise("AotDigestError", "`%s` has %llu bytes, expected %llu%s", path, (unsigned long long)size,
                     (unsigned long long)file->size, REPLACED);
  }
  return memcmp(digest, file->digest, 32) == 0 ? 0 : raise_digest(path, digest, file->digest);
}

static void* open_file(const aot_file_t* file) {
  char path[PATH_MAX];
  if (beside_entry_library(file->path, path) != 0) return NULL;
  if (verifies() && check_file(file, path) != 0) return NULL;
  /* Never unmapped: CUDA graphs and other threads keep using the code. */
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == NULL && access(path, F_OK) != 0) raise_missing(path);
  else if (library == NULL) aot_raise("AotBundleError", "cannot open `%s`: %s", path, dlerror());
  return library;
}

static const aot_kernel_library_t* open_kernel(const aot_build_t* build) {
  void* library = open_file(&build->file);
  if (library == NULL) return NULL;
  const aot_kernel_library_t* tables = (const aot_kernel_library_t*)dlsym(library, "aot_kernel_library");
  if (tables == NULL) {
    aot_raise("AotBundleError", "`%s` is not a kernel library", build->file.path);
    return NULL;
  }
  if (tables->major != AOT_TABLES_MAJOR) {
    aot_raise("AotBundleError", "`%s` has tables of version %u.%u, this bundle reads %u.%u\nhint: build the bundle again",
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

int aot_candidate_open(const aot_function_t* function, aot_candidate_t* candidate) {
  aot_build_t* build = candidate->build;
  if (build->opened == NULL) build->opened = open_kernel(build);
  if (build->opened == NULL) return -1;
  candidate->group = find_group(build->opened, function->group);
  __atomic_store_n(&candidate->library, build->opened, __ATOMIC_RELEASE);
  return 0;
}

static int open_support(void) {
  if (aot_bundle.provided != NULL || support != NULL) return 0;
  support = open_file(&aot_bundle.support);
  return support == NULL ? -1 : 0;
}

static void* support_symbol(const char* name) {
  if (aot_bundle.provided == NULL) return dlsym(support, name);
  for (const aot_provided_t* provided = aot_bundle.provided; provided->name != NULL; ++provided) {
    if (strcmp(provided->name, name) == 0) return provided->address;
  }
  return NULL;
}

static const char* support_name(void) {
  return aot_bundle.support.path == NULL ? "the support archive" : aot_bundle.support.path;
}

static int bind_imports(const aot_kernel_library_t* library) {
  if (open_support() != 0) return -1;
  for (uint32_t i = 0; i < library->import_count; ++i) {
    const aot_import_t* import = &library->imports[i];
    void* address = support_symbol(import->name);
    if (address == NULL) {
      return aot_raise("AotBundleError", "`%s` lacks `%s`, which %s for %s needs\nhint: build the bundle again",
                       support_name(), import->name, library->kernel, library->arch);
    }
    /* Launches in other threads may be reading it: once written, a slot is left alone. */
    if (*import->slot == NULL) __atomic_store_n(import->slot, address, __ATOMIC_RELEASE);
  }
  return 0;
}

typedef struct {
  int32_t (*get_device)(int32_t*);
  int32_t (*set_device)(int32_t);
  const char* (*error_name)(int32_t);
  const char* (*error_text)(int32_t);
} runtime_t;

static int bind_runtime(runtime_t* runtime) {
  void* addresses[4] = {support_symbol("_cudaGetDevice"), support_symbol("_cudaSetDevice"),
                        support_symbol("aot_cuda_error_name"), support_symbol("aot_cuda_error_text")};
  for (int i = 0; i < 4; ++i) {
    if (addresses[i] == NULL) return aot_raise("AotBundleError", "`%s` is not a support library", support_name());
  }
  memcpy(&runtime->get_device, &addresses[0], sizeof addresses[0]);
  memcpy(&runtime->set_device, &addresses[1], sizeof addresses[1]);
  memcpy(&runtime->error_name, &addresses[2], sizeof addresses[2]);
  memcpy(&runtime->error_text, &addresses[3], sizeof addresses[3]);
  return 0;
}

static int raise_cuda(const runtime_t* runtime, const aot_variant_t* variant, int32_t device, int32_t code) {
  return aot_raise("AotCudaError", "cannot load %s on device %d: %s (%d): %s", variant->name, device,
                   runtime->error_name(code), code, runtime->error_text(code));
}

/* Runs with the device current and this thread's capture mode relaxed. */
static int load_on_current_device(const runtime_t* runtime, const aot_variant_t* variant, int32_t device) {
  uint64_t loaded_on = variant->state->loaded_on;
  int32_t code = 0;
  /* The libraries are shared by all devices, the kernels' attributes are set for each. */
  if (variant->libraries[0] == NULL) {
    code = variant->load_libraries(variant->libraries);
    if (code != 0) variant->libraries[0] = NULL; /* of several, some may be loaded: begin anew next time */
  }
  if (code == 0) code = variant->load_kernels(variant->libraries, device);
  if (code != 0) return raise_cuda(runtime, variant, device, code);
  __atomic_store_n(&variant->state->loaded_on, loaded_on | UINT64_C(1) << device, __ATOMIC_RELEASE);
  return 0;
}

static int with_device(const runtime_t* runtime, const aot_variant_t* variant, int32_t device,
                       int (*action)(const runtime_t*, const aot_variant_t*, int32_t)) {
  int32_t before = 0;
  int32_t code = runtime->get_device(&before);
  /* Even where it is current already: that makes its context current, which a new thread has not. */
  if (code == 0) code = runtime->set_device(device);
  if (code != 0) return raise_cuda(runtime, variant, device, code);
  int status = action(runtime, variant, device);
  if (before != device) runtime->set_device(before);
  return status;
}

int aot_variant_load(const aot_kernel_library_t* library, const aot_variant_t* variant, int32_t device) {
  runtime_t runtime;
  int status = -1;
  aot_lock();
  if (variant->state->loaded_on >> device & 1) {
    status = 0;
  } else if (bind_imports(library) == 0 && bind_runtime(&runtime) == 0) {
    int32_t mode = aot_driver_relax_capture(AOT_CAPTURE_MODE_RELAXED);
    status = with_device(&runtime, variant, device, load_on_current_device);
    aot_driver_relax_capture(mode);
  }
  aot_unlock();
  return status;
}

static int ask_clusters(const runtime_t* runtime, const aot_variant_t* variant, int32_t device) {
  (void)runtime;
  int32_t clusters = 0;
  if (aot_driver_active_clusters(variant, &clusters) != 0) return -1;
  __atomic_store_n(&variant->state->active_clusters[device], clusters, __ATOMIC_RELEASE);
  return 0;
}

int aot_variant_active_clusters(const aot_variant_t* variant, int32_t device, int32_t* clusters) {
  runtime_t runtime;
  int status = 0;
  *clusters = __atomic_load_n(&variant->state->active_clusters[device], __ATOMIC_ACQUIRE);
  if (*clusters != 0) return 0;
  aot_lock();
  status = bind_runtime(&runtime);
  if (status == 0) status = with_device(&runtime, variant, device, ask_clusters);
  *clusters = variant->state->active_clusters[device];
  aot_unlock();
  return status;
}
