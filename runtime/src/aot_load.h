/* Loading a variant's code on a device. */
#ifndef AOT_LOAD_H_
#define AOT_LOAD_H_

#include <stddef.h>

#include "aot_bundle.h"

/* Each returns 0, or -1 with an error raised. Different variants are loaded at the same time. */
int aot_variant_load(const aot_kernel_library_t* library, const aot_variant_t* variant, int32_t device);
int aot_variant_active_clusters(const aot_variant_t* variant, int32_t device, int32_t* clusters);

/* Zeros for a launch on that stream. */
int aot_variant_zero(const aot_variant_t* variant, int32_t device, void* address, size_t bytes, void* stream);

/* Opens all that a function may run on a device, and loads it. */
int aot_function_load(aot_function_t* function, int32_t device);

#endif /* AOT_LOAD_H_ */
