/* Memory on the GPU through the CUDA driver API, for the demos: C99 and C++.
 *
 * The driver is opened at run time, so that the demos build without a CUDA toolkit and start without a driver. A program
 * that has a toolkit uses cudaMalloc and its like instead: addresses and streams are the same things.
 */
#ifndef DEVICE_H_
#define DEVICE_H_

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_NO_GPU = 77 };

typedef unsigned long long device_address;

typedef struct {
  int (*init)(unsigned);
  int (*count)(int*);
  int (*retain)(void**, int);
  int (*set_current)(void*);
  int (*allocate)(device_address*, size_t);
  int (*release)(device_address);
  int (*upload)(device_address, const void*, size_t);
  int (*download)(void*, device_address, size_t);
  int (*create_stream)(void**, unsigned);
  int (*synchronize)(void*);
} device_driver;

static inline int device_find(void* library, const char* name, void* slot) {
  void* address = dlsym(library, name);
  memcpy(slot, &address, sizeof address);
  return address != NULL;
}

/* Returns 1, or 0 if this machine has no usable GPU. */
static inline int device_open(device_driver* driver) {
  void* context = NULL;
  int count = 0;
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) return 0;
  int found = device_find(library, "cuInit", &driver->init) & device_find(library, "cuDeviceGetCount", &driver->count) &
              device_find(library, "cuDevicePrimaryCtxRetain", &driver->retain) &
              device_find(library, "cuCtxSetCurrent", &driver->set_current) &
              device_find(library, "cuMemAlloc_v2", &driver->allocate) &
              device_find(library, "cuMemFree_v2", &driver->release) &
              device_find(library, "cuMemcpyHtoD_v2", &driver->upload) &
              device_find(library, "cuMemcpyDtoH_v2", &driver->download) &
              device_find(library, "cuStreamCreate", &driver->create_stream) &
              device_find(library, "cuStreamSynchronize", &driver->synchronize);
  return found && driver->init(0) == 0 && driver->count(&count) == 0 && count > 0 &&
         driver->retain(&context, 0) == 0 && driver->set_current(context) == 0;
}

/* Three vectors of `n` floats: x and y with numbers to compute with, out with none. NULL if it failed. */
typedef struct {
  float *x, *y, *out;
} device_vectors;

static inline int device_fill(const device_driver* driver, float** vector, const float* from, size_t n) {
  device_address address = 0;
  if (driver->allocate(&address, n * sizeof(float)) != 0) return 0;
  *vector = (float*)(size_t)address;
  return driver->upload(address, from, n * sizeof(float)) == 0;
}

static inline device_address device_at(const float* pointer) { return (device_address)(size_t)pointer; }

/* One line per check; adds to `failures`. */
static inline void report(const char* what, int good, int* failures) {
  printf("%s: %s\n", good ? "ok  " : "FAIL", what);
  if (!good) ++*failures;
}

#endif /* DEVICE_H_ */
