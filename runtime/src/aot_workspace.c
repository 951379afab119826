#include "aot_workspace.h"

#include <string.h>

#include "aot_error.h"
#include "aot_load.h"
#include "aot_overlap.h"

#include <tvm/ffi/extra/c_env_api.h>

#define ALIGNMENT 128 /* what frameworks' allocators promise (XLA the least), and what a declaration may ask for at most */

int64_t aot_workspace_bytes(const aot_kernel_library_t* library, const aot_variant_t* variant,
                            const aot_arguments_t* arguments) {
  if (variant->workspace == NULL) return 0;
  int64_t bytes = aot_subject_value(library, &library->subjects[variant->workspace->subject], arguments);
  if (bytes >= 0) return bytes;
  const char* label = library->subjects[variant->workspace->subject].label;
  return aot_raise("AotArgumentError", "%s: the size of its workspace, %s bytes, is %s for these arguments",
                   variant->name, label, bytes == AOT_MISSING ? "not a number of 64 bits" : "negative");
}

static int raise_no_allocator(const aot_function_t* function, const aot_workspace_t* workspace, int64_t bytes) {
  return aot_raise("AotArgumentError",
                   "%s needs %lld bytes of scratch memory, `%s`, and no framework that allocates made this call\n"
                   "hint: pass `%s`, a tensor of u8 on the device with that many elements, aligned to %d bytes",
                   function->name, (long long)bytes, workspace->name, workspace->name, ALIGNMENT);
}

static int allocate(const aot_function_t* function, const aot_variant_t* variant, int32_t device, int64_t bytes,
                    aot_workspace_held_t* held) {
  /* An allocator knows its framework's current stream. Memory that is used on another one could be given away while
   * the kernel still runs. */
  if (variant->stream_argument != AOT_STREAM_FROM_ENVIRONMENT || TVMFFIEnvGetDLPackManagedTensorAllocator() == NULL) {
    return raise_no_allocator(function, variant->workspace, bytes);
  }
  DLTensor wanted;
  memset(&wanted, 0, sizeof wanted);
  wanted.device.device_type = kDLCUDA;
  wanted.device.device_id = device;
  wanted.ndim = 1;
  wanted.dtype.code = kDLUInt;
  wanted.dtype.bits = 8;
  wanted.dtype.lanes = 1;
  wanted.shape = &bytes;
  if (TVMFFIEnvTensorAlloc(&wanted, &held->owner) != 0) return -1;
  const DLTensor* given = (const DLTensor*)((const char*)held->owner + sizeof(TVMFFIObject));
  held->tensor.data = (void*)(uintptr_t)aot_address(given);
  return 0;
}

static int is_long_enough(const DLTensor* tensor, int64_t bytes) {
  int is_bytes = tensor->dtype.bits == 8 && tensor->dtype.lanes == 1;
  return is_bytes && tensor->ndim == 1 && tensor->shape[0] >= bytes && (tensor->strides[0] == 1 || bytes <= 1);
}

static int take_given(const aot_function_t* function, const aot_workspace_t* workspace, const DLTensor* given,
                      int32_t device, int64_t bytes, aot_workspace_held_t* held) {
  int on_device = given != NULL && given->device.device_type == kDLCUDA && given->device.device_id == device;
  if (!on_device || !is_long_enough(given, bytes) || (aot_address(given) % ALIGNMENT != 0 && bytes > 0)) {
    return aot_raise("AotArgumentError",
                     "%s: `%s` must be a tensor of u8 on device %d with one dimension of at least %lld elements, "
                     "aligned to %d bytes", function->name, workspace->name, device, (long long)bytes, ALIGNMENT);
  }
  held->tensor.data = (void*)(uintptr_t)aot_address(given);
  return 0;
}

int aot_workspace_take(const aot_function_t* function, const aot_kernel_library_t* library,
                       const aot_variant_t* variant, const aot_arguments_t* arguments, void* stream,
                       aot_workspace_held_t* held) {
  const aot_workspace_t* workspace = variant->workspace;
  const aot_value_t* given = &arguments->values[workspace->argument];
  int32_t device = arguments->device, status = 0;
  int64_t bytes = aot_workspace_bytes(library, variant, arguments);
  if (bytes < 0) return -1;
  memset(held, 0, sizeof *held);
  held->stride = 1;
  if (given->kind != AOT_KIND_NONE) {
    status = take_given(function, workspace, given->tensor, device, bytes, held);
  } else if (bytes > 0) {
    status = allocate(function, variant, device, bytes, held);
  }
  if (status == 0 && workspace->zeroed && bytes > 0) {
    status = aot_variant_zero(variant, device, held->tensor.data, (size_t)bytes, stream);
  }
  if (status != 0) {
    aot_workspace_give_back(held);
    return -1;
  }
  held->shape = bytes * 8 / workspace->dtype.bits;
  held->tensor.device.device_type = kDLCUDA;
  held->tensor.device.device_id = device;
  held->tensor.ndim = 1;
  held->tensor.dtype = workspace->dtype;
  held->tensor.shape = &held->shape;
  held->tensor.strides = &held->stride;
  return 0;
}

void aot_workspace_give_back(aot_workspace_held_t* held) {
  if (held->owner != NULL) TVMFFIObjectDecRef(held->owner);
  held->owner = NULL;
}
