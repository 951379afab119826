/* What the entry library asks of the CUDA driver. It links nothing of CUDA: libcuda.so.1 is opened
 * at the first call, so that a bundle loads and explains itself on machines without a driver. */
#ifndef AOT_DRIVER_H_
#define AOT_DRIVER_H_

#include <stdint.h>

#include "aot_arch.h"
#include "aot_tables.h"

typedef struct {
  aot_capability_t capability;
  int32_t multiprocessors;
  int32_t bandwidth; /* of its memory in GB/s; 0 if it is not known, or if nobody needs it */
  int32_t driver; /* the CUDA version that the driver supports, 12080 for 12.8; 0: any, of a device that is only asked about */
  char name[128]; /* as the driver gives it; "": none, of a device that is only asked about */
} aot_device_t;

/* Each returns 0, or raises a TVM-FFI error and returns -1. */
int aot_driver_device(int32_t index, aot_device_t* device);
int aot_driver_current_device(int32_t* index);
int aot_driver_active_clusters(const aot_variant_t* variant, int32_t* clusters);

/* Of the memory of a device in GB/s, or 0; aot_driver_device succeeded for it. Asked apart: the driver takes longer for the
 * clock than for all else. */
int32_t aot_driver_bandwidth(int32_t index);

/* 1 while work given to the stream is being captured into a graph. */
int aot_driver_is_capturing(void* stream);

/* Loading code may not disturb captures that other streams of this thread have under way. */
int32_t aot_driver_relax_capture(int32_t mode);
#define AOT_CAPTURE_MODE_RELAXED 2

#endif /* AOT_DRIVER_H_ */
