/* The bundle is opened when an operator is first called, so that what is wrong with it arrives as an exception. */
#define _GNU_SOURCE /* dladdr */
#include "aot_torch_bundle.h"

#include <aot/aot.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char directory[4096]; /* of the bundle: this library is lib/<host>/lib<name>_torch.so in there */
static char pin[65]; /* the SHA-256 of the manifest that a loader has checked; "": any bundle that is whole */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static aot_bundle bundle;
static int opened; /* after a failure the next call tries once more */

/* A loader that hashed this library opens it through a descriptor: the name that it was opened by. From now on the
 * dynamic linker calls it by the path of the file. If another file has that path by now, "(deleted)" follows. */
static const char* name_by_path(Dl_info* info) {
  static const char deleted[] = " (deleted)";
  static char path[4096];
  if (strncmp(info->dli_fname, "/proc/self/fd/", 14) != 0) return NULL;
  ssize_t size = readlink(info->dli_fname, path, sizeof path);
  if (size <= 0 || (size_t)size >= sizeof path) return "the path of this library is not known";
  path[size] = '\0';
  size_t end = sizeof deleted - 1;
  if ((size_t)size > end && strcmp(path + size - end, deleted) == 0) path[(size_t)size - end] = '\0';
  void* self = dlopen(info->dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (self != NULL && aot_file_name(self, path) != 0) return "out of memory";
  info->dli_fname = path;
  return NULL;
}

const char* aot_torch_locate(void) {
  Dl_info info;
  char here[4096] = "";
  if (dladdr(&aot_torch_this_bundle, &info) == 0 || info.dli_fname == NULL) return "the path of this library is not known";
  const char* wrong = name_by_path(&info);
  if (wrong != NULL) return wrong;
  if (info.dli_fname[0] != '/' && getcwd(here, sizeof here) == NULL) return "the current directory is not known";
  int size = snprintf(directory, sizeof directory, "%s%s%s", here, here[0] == '\0' ? "" : "/", info.dli_fname);
  if (size < 0 || (size_t)size >= sizeof directory) return "the path of this library is too long";
  for (int i = 0; i < 3; ++i) {
    char* end = strrchr(directory, '/');
    if (end == NULL) return "this library does not lie in a bundle";
    *end = '\0';
  }
  return NULL;
}

/* The functions of the bundle must take what the generated tables pass. */
static int find(aot_bundle opening, const aot_torch_operator* operator_) {
  for (uint32_t i = 0; i < operator_->function_count; ++i) {
    const char* name = operator_->functions[i];
    aot_function function;
    int code = aot_find(opening, name, &function);
    if (code != AOT_OK) return code;
    const char* signature = function.info->signature;
    if (strncmp(signature, name, strlen(name)) != 0 || strcmp(signature + strlen(name), operator_->parameters) != 0) {
      return aot_fail_(AOT_ERROR_BUNDLE, "`%s` holds %s, but its library for torch calls it with %s\nhint: the bundle was "
                       "altered or copied incompletely; `python -m aot verify` lists what differs", directory, signature,
                       operator_->parameters);
    }
    operator_->found[i] = function.info;
  }
  return AOT_OK;
}

static int open_pinned(aot_bundle* opening) {
  aot_options options;
  memset(&options, 0, sizeof options);
  options.manifest_sha256 = pin[0] == '\0' ? NULL : pin;
  return aot_open(directory, &options, opening);
}

static int open_all(void) {
  aot_bundle opening;
  int code = open_pinned(&opening);
  for (uint32_t i = 0; i < aot_torch_this_bundle.operator_count && code == AOT_OK; ++i) {
    code = find(opening, &aot_torch_this_bundle.operators[i]);
  }
  if (code != AOT_OK) return -1;
  bundle = opening;
  __atomic_store_n(&opened, 1, __ATOMIC_RELEASE);
  return 0;
}

int aot_torch_open(void) {
  if (__atomic_load_n(&opened, __ATOMIC_ACQUIRE)) return 0;
  pthread_mutex_lock(&lock);
  int status = opened ? 0 : open_all();
  pthread_mutex_unlock(&lock);
  return status;
}

/* The operators call what was opened first. So a loader that asks for another version, or that checks what was opened
 * unchecked, must find the same library. */
static int is_opened(void) {
  aot_bundle asked;
  if (open_pinned(&asked) != AOT_OK) return -1;
  if (asked.library == bundle.library) return 0;
  return aot_torch_fail("the operators of `torch.ops.%s` call another version of the bundle than `%s`, which was opened "
                        "before it\nhint: restart the process", aot_torch_this_bundle.name, directory, NULL);
}

const char* aot_torch_open_at(const char* path, const char* manifest_sha256) {
  int fits = strlen(path) < sizeof directory && (manifest_sha256 == NULL || strlen(manifest_sha256) < sizeof pin);
  if (!fits) return "the path of the bundle, or the digest of its manifest, is too long";
  pthread_mutex_lock(&lock);
  /* Kept if opening fails: no later call may open what was refused here. */
  strcpy(directory, path);
  strcpy(pin, manifest_sha256 == NULL ? "" : manifest_sha256);
  int status = opened ? is_opened() : open_all();
  pthread_mutex_unlock(&lock);
  return status == 0 ? NULL : aot_torch_error();
}

int aot_torch_invoke(const aot_function_info* function, void* stream, const aot_value* values, uint32_t count) {
  const aot_function called = {function, bundle.library->core};
  return aot_call_on(called, stream, values, (int32_t)count) == AOT_OK ? 0 : -1;
}

int aot_torch_workspace_size(const aot_function_info* function, const aot_value* values, uint32_t count, int64_t* bytes) {
  const aot_function asked = {function, bundle.library->core};
  size_t size = 0;
  int code = aot_workspace_size(asked, values, (int32_t)count, &size);
  *bytes = (int64_t)size;
  return code == AOT_OK ? 0 : -1;
}

int aot_torch_fail(const char* format, const char* first, const char* second, const char* third) {
  aot_fail_(AOT_ERROR_ARGUMENT, format, first, second, third);
  return -1;
}

const char* aot_torch_error(void) { return aot_error_text(); }
