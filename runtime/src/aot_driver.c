#include "aot_driver.h"

#include <dlfcn.h>
#include <string.h>

#include "aot_error.h"
#include "aot_lock.h"

/* Numbers of the CUDA driver API, as documented; its headers are not needed to build. */
enum {
  ATTRIBUTE_MULTIPROCESSORS = 16,
  ATTRIBUTE_MEMORY_CLOCK = 36,     /* kHz */
  ATTRIBUTE_MEMORY_BUS_WIDTH = 37, /* bits */
  ATTRIBUTE_MAJOR = 75,
  ATTRIBUTE_MINOR = 76,
  LAUNCH_ATTRIBUTE_CLUSTER = 4,
  CAPTURE_STATUS_NONE = 0,
  ERROR_CAPTURE_IMPLICIT = 906
};

typedef struct {
  int32_t id;
  char padding[4];
  union {
    char bytes[64];
    uint32_t cluster[3];
  } value;
} launch_attribute_t;

typedef struct {
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t shared_memory;
  void* stream;
  launch_attribute_t* attributes;
  uint32_t attribute_count;
} launch_config_t;

typedef struct {
  int (*init)(unsigned);
  int (*get_version)(int*);
  int (*get_device)(int*, int);
  int (*get_device_count)(int*);
  int (*get_attribute)(int*, int, int);
  int (*get_name)(char*, int, int);
  int (*get_context)(void**);
  int (*get_context_device)(int*);
  int (*is_capturing)(void*, int*);
  int (*exchange_capture_mode)(int*);
  int (*active_clusters)(int*, void*, const launch_config_t*);
  int (*error_name)(int, const char**);
} driver_t;

/* Filled under AOT_LOCK_DRIVER by the thread that comes first, read without once `driver_ready` says so. */
static driver_t driver;
static int driver_ready;

static aot_device_t devices[AOT_MAX_DEVICES];
static int device_ready[AOT_MAX_DEVICES];
static int32_t bandwidths[AOT_MAX_DEVICES];

static int raise_code(const driver_t* bound, const char* what, int code) {
  const char* name = NULL;
  bound->error_name(code, &name);
  return aot_raise("AotDriverError", "%s failed: %s (%d)\nhint: run `nvidia-smi` to see whether the driver finds the GPU",
                   what, name == NULL ? "unknown error" : name, code);
}

static int find_symbol(void* library, const char* name, void* function) {
  void* address = dlsym(library, name);
  memcpy(function, &address, sizeof address);
  return address != NULL;
}

static int bind(driver_t* bound) {
  aot_linker_enter();
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  aot_linker_leave();
  if (library == NULL) {
    return aot_raise("AotDriverError", "there is no NVIDIA driver on this machine: %s\nhint: install the driver, or in a "
                     "container pass the GPU through (`--gpus all`)", dlerror());
  }
  int found = find_symbol(library, "cuInit", &bound->init) &
              find_symbol(library, "cuDriverGetVersion", &bound->get_version) &
              find_symbol(library, "cuDeviceGet", &bound->get_device) &
              find_symbol(library, "cuDeviceGetCount", &bound->get_device_count) &
              find_symbol(library, "cuDeviceGetAttribute", &bound->get_attribute) &
              find_symbol(library, "cuDeviceGetName", &bound->get_name) &
              find_symbol(library, "cuCtxGetCurrent", &bound->get_context) &
              find_symbol(library, "cuCtxGetDevice", &bound->get_context_device) &
              find_symbol(library, "cuStreamIsCapturing", &bound->is_capturing) &
              find_symbol(library, "cuThreadExchangeStreamCaptureMode", &bound->exchange_capture_mode) &
              find_symbol(library, "cuGetErrorName", &bound->error_name);
  /* Clusters came with CUDA 11.8: needed only by kernels that ask for them. */
  find_symbol(library, "cuOccupancyMaxActiveClusters", &bound->active_clusters);
  if (found) return 0;
  return aot_raise("AotDriverError", "libcuda.so.1 lacks functions of CUDA 11\nhint: update the NVIDIA driver");
}

static int start_locked(void) {
  driver_t bound;
  if (driver_ready) return 0;
  memset(&bound, 0, sizeof bound);
  if (bind(&bound) != 0) return -1;
  int code = bound.init(0);
  if (code != 0) return raise_code(&bound, "cuInit", code);
  driver = bound;
  __atomic_store_n(&driver_ready, 1, __ATOMIC_RELEASE);
  return 0;
}

static int start(void) {
  if (__atomic_load_n(&driver_ready, __ATOMIC_ACQUIRE)) return 0;
  aot_lock(AOT_LOCK_DRIVER);
  int status = start_locked();
  aot_unlock(AOT_LOCK_DRIVER);
  return status;
}

/* In GB/s: memory transfers twice per clock. 0 if the driver does not tell. */
static int32_t ask_bandwidth(int32_t index) {
  int handle, clock = 0, width = 0;
  if (driver.get_device(&handle, index) != 0) return 0;
  if (driver.get_attribute(&clock, ATTRIBUTE_MEMORY_CLOCK, handle) != 0) return 0;
  if (driver.get_attribute(&width, ATTRIBUTE_MEMORY_BUS_WIDTH, handle) != 0) return 0;
  return clock > 0 && width > 0 ? (int32_t)((int64_t)clock * width / 4 / 1000000) : 0;
}

int32_t aot_driver_bandwidth(int32_t index) {
  int32_t known = __atomic_load_n(&bandwidths[index], __ATOMIC_RELAXED); /* one more than it is; 0: nobody asked */
  if (known == 0) {
    known = ask_bandwidth(index) + 1;
    __atomic_store_n(&bandwidths[index], known, __ATOMIC_RELAXED);
  }
  return known - 1;
}

static int ask_device(int32_t index, aot_device_t* device) {
  int handle, count = 0;
  int code = driver.get_device_count(&count);
  if (code != 0) return raise_code(&driver, "cuDeviceGetCount", code);
  if (index >= count) {
    return aot_raise("AotDriverError", "device %d was asked for, but there are %d\nhint: check CUDA_VISIBLE_DEVICES", index, count);
  }
  code = driver.get_device(&handle, index);
  if (code == 0) code = driver.get_attribute(&device->capability.major, ATTRIBUTE_MAJOR, handle);
  if (code == 0) code = driver.get_attribute(&device->capability.minor, ATTRIBUTE_MINOR, handle);
  if (code == 0) code = driver.get_attribute(&device->multiprocessors, ATTRIBUTE_MULTIPROCESSORS, handle);
  if (code == 0) code = driver.get_version(&device->driver);
  if (code == 0) code = driver.get_name(device->name, (int)sizeof device->name, handle);
  device->bandwidth = 0; /* see aot_driver_bandwidth */
  return code == 0 ? 0 : raise_code(&driver, "asking for the device's capability", code);
}

int aot_driver_device(int32_t index, aot_device_t* device) {
  if (__atomic_load_n(&device_ready[index], __ATOMIC_ACQUIRE)) {
    *device = devices[index];
    return 0;
  }
  if (start() != 0 || ask_device(index, device) != 0) return -1;
  aot_lock(AOT_LOCK_DRIVER);
  if (!device_ready[index]) {
    devices[index] = *device;
    __atomic_store_n(&device_ready[index], 1, __ATOMIC_RELEASE);
  }
  aot_unlock(AOT_LOCK_DRIVER);
  return 0;
}

int aot_driver_current_device(int32_t* index) {
  void* context = NULL;
  *index = 0; /* what the CUDA runtime would take if nothing was chosen yet */
  if (start() != 0) return -1;
  int code = driver.get_context(&context);
  if (code == 0 && context != NULL) code = driver.get_context_device(index);
  return code == 0 ? 0 : raise_code(&driver, "asking for the current device", code);
}

int aot_driver_is_capturing(void* stream) {
  int status = CAPTURE_STATUS_NONE;
  if (start() != 0) return 0;
  int code = driver.is_capturing(stream, &status);
  return code == ERROR_CAPTURE_IMPLICIT || (code == 0 && status != CAPTURE_STATUS_NONE);
}

int32_t aot_driver_relax_capture(int32_t mode) {
  int exchanged = mode;
  if (start() != 0 || driver.exchange_capture_mode(&exchanged) != 0) return mode;
  return exchanged;
}

int aot_driver_active_clusters(const aot_variant_t* variant, int32_t* clusters) {
  launch_attribute_t cluster = {LAUNCH_ATTRIBUTE_CLUSTER, {0}, {{0}}};
  launch_config_t config = {{1, 1, 1}, {0}, variant->dynamic_shared_memory, NULL, &cluster, 1};
  if (driver.active_clusters == NULL) {
    return aot_raise("AotDriverError", "libcuda.so.1 lacks cuOccupancyMaxActiveClusters\nhint: update the NVIDIA driver");
  }
  memcpy(config.block, variant->block, sizeof config.block);
  memcpy(config.grid, variant->cluster, sizeof config.grid);
  memcpy(cluster.value.cluster, variant->cluster, sizeof cluster.value.cluster);
  int code = driver.active_clusters(clusters, *variant->first_kernel, &config);
  if (code != 0) return raise_code(&driver, "cuOccupancyMaxActiveClusters", code);
  if (*clusters > 0) return 0;
  return aot_raise("AotDriverError", "%s: no cluster of %ux%ux%u blocks fits on this device", variant->name,
                   variant->cluster[0], variant->cluster[1], variant->cluster[2]);
}
