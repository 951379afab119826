#include "aot_load.h"

#include <string.h>

#include "aot_error.h"
#include "aot_lock.h"
#include "aot_open.h"
#include "aot_rank.h"
#include "aot_trace.h"

static int bind_imports(const aot_kernel_library_t* library) {
  if (aot_support_open() != 0) return -1;
  for (uint32_t i = 0; i < library->import_count; ++i) {
    const aot_import_t* import = &library->imports[i];
    void* address = aot_support_symbol(import->name);
    if (address == NULL) {
      return aot_raise("AotBundleError", "`%s` lacks `%s`, which %s for %s needs\nhint: rebuild the bundle",
                       aot_support_name(), import->name, library->kernel, library->arch);
    }
    /* Launches in other threads may be reading it: once written, an address is left alone. */
    void* unbound = NULL;
    __atomic_compare_exchange_n(import->address, &unbound, address, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
  }
  return 0;
}

typedef struct {
  int32_t (*get_device)(int32_t*);
  int32_t (*set_device)(int32_t);
  const char* (*error_name)(int32_t);
  const char* (*error_text)(int32_t);
  int32_t (*zero)(void*, size_t, void*);
} runtime_t;

static int bind_runtime(runtime_t* runtime) {
  void* addresses[5] = {aot_support_symbol("_cudaGetDevice"), aot_support_symbol("_cudaSetDevice"),
                        aot_support_symbol("aot_cuda_error_name"), aot_support_symbol("aot_cuda_error_text"),
                        aot_support_symbol("aot_cuda_zero")};
  for (int i = 0; i < 5; ++i) {
    if (addresses[i] == NULL) return aot_raise("AotBundleError", "`%s` is not a support library", aot_support_name());
  }
  memcpy(&runtime->get_device, &addresses[0], sizeof addresses[0]);
  memcpy(&runtime->set_device, &addresses[1], sizeof addresses[1]);
  memcpy(&runtime->error_name, &addresses[2], sizeof addresses[2]);
  memcpy(&runtime->error_text, &addresses[3], sizeof addresses[3]);
  memcpy(&runtime->zero, &addresses[4], sizeof addresses[4]);
  return 0;
}

static int raise_cuda(const runtime_t* runtime, const aot_variant_t* variant, int32_t device, int32_t code) {
  return aot_raise("AotCudaError", "cannot load %s on device %d: %s (%d): %s", variant->name, device,
                   runtime->error_name(code), code, runtime->error_text(code));
}

/* Runs with the device current and this thread's capture mode relaxed. */
static int load_on_current_device(const runtime_t* runtime, const aot_variant_t* variant, int32_t device) {
  int32_t code = 0;
  /* The libraries are shared by all devices, the kernels' attributes are set for each. */
  if (variant->libraries[0] == NULL) {
    code = variant->load_libraries(variant->libraries);
    if (code != 0) variant->libraries[0] = NULL; /* of several, some may be loaded: the next call starts again */
  }
  if (code == 0) code = variant->load_kernels(variant->libraries, device);
  if (code != 0) return raise_cuda(runtime, variant, device, code);
  __atomic_fetch_or(&variant->state->loaded_on, UINT64_C(1) << device, __ATOMIC_RELEASE);
  return 0;
}

static int with_device(const runtime_t* runtime, const aot_variant_t* variant, int32_t device,
                       int (*action)(const runtime_t*, const aot_variant_t*, int32_t)) {
  int32_t before = 0;
  int32_t code = runtime->get_device(&before);
  /* Even if it is current already: that makes its context current, which a new thread has not. */
  if (code == 0) code = runtime->set_device(device);
  if (code != 0) return raise_cuda(runtime, variant, device, code);
  int status = action(runtime, variant, device);
  if (before != device) runtime->set_device(before);
  return status;
}

static int is_loaded(const aot_variant_t* variant, int32_t device) {
  return __atomic_load_n(&variant->state->loaded_on, __ATOMIC_ACQUIRE) >> device & 1;
}

static int load_locked(const aot_kernel_library_t* library, const aot_variant_t* variant, int32_t device) {
  runtime_t runtime;
  if (is_loaded(variant, device)) return 0;
  if (bind_imports(library) != 0 || bind_runtime(&runtime) != 0) return -1;
  int64_t start = aot_trace_now();
  int32_t mode = aot_driver_relax_capture(AOT_CAPTURE_MODE_RELAXED);
  int status = with_device(&runtime, variant, device, load_on_current_device);
  aot_driver_relax_capture(mode);
  if (status == 0) {
    aot_trace_log("loaded %s %s on device %d in %.3f ms", library->arch, variant->name, device,
                  (double)(aot_trace_now() - start) * 1e-6);
  }
  return status;
}

int aot_variant_load(const aot_kernel_library_t* library, const aot_variant_t* variant, int32_t device) {
  if (is_loaded(variant, device)) return 0;
  int lock = aot_lock_of(variant->state); /* variants of one launcher share it */
  aot_lock(lock);
  int status = load_locked(library, variant, device);
  aot_unlock(lock);
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
  *clusters = __atomic_load_n(&variant->state->active_clusters[device], __ATOMIC_ACQUIRE);
  if (*clusters != 0) return 0;
  /* Without a lock: threads that ask at the same time get the same answer. */
  if (bind_runtime(&runtime) != 0 || with_device(&runtime, variant, device, ask_clusters) != 0) return -1;
  *clusters = __atomic_load_n(&variant->state->active_clusters[device], __ATOMIC_ACQUIRE);
  return 0;
}

int aot_variant_zero(const aot_variant_t* variant, int32_t device, void* address, size_t bytes, void* stream) {
  runtime_t runtime;
  int32_t before = 0;
  if (bind_runtime(&runtime) != 0) return -1;
  int32_t code = runtime.get_device(&before);
  if (code == 0) code = runtime.set_device(device);
  if (code == 0) code = runtime.zero(address, bytes, stream);
  if (before != device) runtime.set_device(before);
  if (code == 0) return 0;
  return aot_raise("AotCudaError", "cannot clear the workspace of %s on device %d: %s (%d): %s", variant->name, device,
                   runtime.error_name(code), code, runtime.error_text(code));
}

static int load_group(const aot_candidate_t* candidate, int32_t device) {
  const aot_group_t* group = candidate->group;
  for (uint32_t i = 0; group != NULL && i < group->variant_count; ++i) {
    if (aot_variant_load(candidate->library, &group->variants[i], device) != 0) return -1;
  }
  return 0;
}

int aot_function_load(aot_function_t* function, int32_t device) {
  aot_ranking_t* ranking = aot_function_ranking(function, device);
  if (ranking == NULL) return -1;
  for (uint32_t i = 0; i < aot_ranking_count(ranking); ++i) {
    aot_candidate_t* candidate = &ranking->candidates[i];
    if (aot_candidate_open(function, candidate) != 0 || load_group(candidate, device) != 0) return -1;
  }
  return 0;
}
