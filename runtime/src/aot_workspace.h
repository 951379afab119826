/* Scratch memory of a call: the caller's, or from the allocator of the framework that made the call. */
#ifndef AOT_WORKSPACE_H_
#define AOT_WORKSPACE_H_

#include "aot_bundle.h"
#include "aot_select.h"

/* What one call holds of it. */
typedef struct {
  DLTensor tensor; /* as the compiled entry takes it */
  int64_t shape;
  int64_t stride;
  TVMFFIObjectHandle owner; /* NULL if the caller owns the memory */
} aot_workspace_held_t;

/* How many bytes a variant needs for these arguments, or -1 with an error raised. */
int64_t aot_workspace_bytes(const aot_kernel_library_t* library, const aot_variant_t* variant,
                            const aot_arguments_t* arguments);

/* 0, or -1 with an error raised and nothing held. Never calls an allocator of CUDA's. */
int aot_workspace_take(const aot_function_t* function, const aot_kernel_library_t* library,
                       const aot_variant_t* variant, const aot_arguments_t* arguments, void* stream,
                       aot_workspace_held_t* held);

/* The framework's allocator gives the memory to later work on the same stream alone, so that the launch need not have
 * ended. */
void aot_workspace_give_back(aot_workspace_held_t* held);

#endif /* AOT_WORKSPACE_H_ */
