/* Functions of an open bundle. Included by aot.h, after what it declares. */
#ifndef AOT_DETAIL_CALLING_H_
#define AOT_DETAIL_CALLING_H_

#include <stdio.h>
#include <string.h>

#include "errors.h"
#include "linkage.h"

#ifdef __cplusplus
extern "C" {
#endif

AOT_SHARED int aot_describe(aot_bundle bundle, const aot_interface** library) {
  if (library == NULL) return aot_fail_(AOT_ERROR_USAGE, "aot_describe: a null pointer was given", NULL, NULL, NULL);
  *library = bundle.library;
  return bundle.library != NULL ? AOT_OK : aot_refuse_unopened_();
}

/* Entries may be longer than this header knows. */
static inline const aot_function_info* aot_info_(const aot_interface* library, uint32_t index) {
  return (const aot_function_info*)(const void*)((const char*)library->functions + (size_t)index * library->function_size);
}

AOT_SHARED int aot_function_at(aot_bundle bundle, uint32_t index, aot_function* function) {
  const aot_interface* library = bundle.library;
  if (function == NULL) return aot_fail_(AOT_ERROR_USAGE, "aot_function_at: a null pointer was given", NULL, NULL, NULL);
  memset(function, 0, sizeof *function);
  if (library == NULL) return aot_refuse_unopened_();
  if (index >= library->function_count) {
    return aot_fail_(AOT_ERROR_NOT_FOUND, "bundle `%s` has fewer functions than that", library->name, NULL, NULL);
  }
  function->info = aot_info_(library, index);
  function->core = library->core;
  return AOT_OK;
}

/* The index of the first function whose name does not come before this one. */
static inline uint32_t aot_first_at_(const aot_interface* library, const char* name) {
  uint32_t low = 0, high = library->function_count;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (strcmp(aot_info_(library, middle)->name, name) < 0) low = middle + 1;
    else high = middle;
  }
  return low;
}

/* "bundle `kernels` has no kernel `ad`; it has add, rmsnorm", as far as there is room. */
static inline int aot_refuse_kernel_(const aot_interface* library, const char* kernel) {
  char known[1024] = "none";
  size_t at = 0;
  for (uint32_t i = 0; i < library->function_count && at + 6 < sizeof known; ++i) {
    const char* name = aot_info_(library, i)->name;
    const char* shown = at + strlen(name) + 6 < sizeof known ? name : "...";
    at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i == 0 ? "" : ", ", shown);
    if (shown != name) break;
  }
  return aot_fail_(AOT_ERROR_NOT_FOUND, "bundle `%s` has no kernel `%s`; it has %s", library->name, kernel, known);
}

AOT_SHARED int aot_find(aot_bundle bundle, const char* kernel, aot_function* function) {
  const aot_interface* library = bundle.library;
  if (kernel == NULL || function == NULL) {
    return aot_fail_(AOT_ERROR_USAGE, "aot_find: a null pointer was given", NULL, NULL, NULL);
  }
  memset(function, 0, sizeof *function);
  if (library == NULL) return aot_refuse_unopened_();
  uint32_t index = aot_first_at_(library, kernel);
  if (index == library->function_count || strcmp(aot_info_(library, index)->name, kernel) != 0) {
    return aot_refuse_kernel_(library, kernel);
  }
  return aot_function_at(bundle, index, function);
}

static inline int aot_call(aot_function function, const aot_value* args, int32_t count) {
  aot_value result = {AOT_NONE, 0, {0}};
  if (function.core == NULL) return aot_refuse_unopened_();
  if (function.info == NULL || (args == NULL && count != 0)) {
    return aot_fail_(AOT_ERROR_USAGE, "aot_call: a null pointer was given", NULL, NULL, NULL);
  }
  if (function.info->call(NULL, args, count, &result) == 0) return AOT_OK;
  return aot_raised_(function.core);
}

/* The device of the first tensor, elements of tuples included; -1 if there is none. */
static inline int32_t aot_first_device_(const aot_value* args, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (args[i].type == AOT_TENSOR && args[i].as.pointer != NULL) {
      return ((const aot_tensor*)args[i].as.pointer)->device_id;
    }
    if (args[i].type == AOT_TUPLE && args[i].as.pointer != NULL) {
      const aot_tuple_header* tuple = (const aot_tuple_header*)args[i].as.pointer;
      int32_t device = aot_first_device_((const aot_value*)tuple->values, tuple->values == NULL ? 0 : tuple->size);
      if (device >= 0) return device;
    }
  }
  return -1;
}

/* Calls with `stream` set meanwhile. Without a tensor there is no device whose stream it could be: such functions take
 * their stream as an argument. */
static inline int aot_call_entry_on_(const aot_core* core, aot_entry entry, void* stream, const aot_value* args,
                                     int32_t count) {
  aot_value result = {AOT_NONE, 0, {0}};
  void* previous = NULL;
  int32_t device = aot_first_device_(args, count);
  if (device < 0) {
    return aot_fail_(AOT_ERROR_ARGUMENT, "a stream was given, but no tensor says on which device\nhint: a function without "
                     "tensors takes its stream as an argument", NULL, NULL, NULL);
  }
  if (core->set_stream(device, stream, &previous) != 0) return aot_raised_(core);
  int code = entry(NULL, args, count, &result) == 0 ? AOT_OK : aot_raised_(core);
  if (core->set_stream(device, previous, NULL) != 0 && code == AOT_OK) return aot_raised_(core);
  return code;
}

static inline int aot_call_on(aot_function function, void* stream, const aot_value* args, int32_t count) {
  if (function.core == NULL) return aot_refuse_unopened_();
  if (function.info == NULL || (args == NULL && count != 0)) {
    return aot_fail_(AOT_ERROR_USAGE, "aot_call_on: a null pointer was given", NULL, NULL, NULL);
  }
  return aot_call_entry_on_(function.core, function.info->call, stream, args, count);
}

static inline int aot_entry_workspace_size_(const aot_core* core, aot_entry entry, const aot_value* args, int32_t count,
                                            size_t* bytes) {
  aot_value result = {AOT_NONE, 0, {0}};
  if (bytes == NULL) {
    return aot_fail_(AOT_ERROR_USAGE, "workspace_size: a null pointer was given for the number of bytes", NULL, NULL, NULL);
  }
  *bytes = 0;
  if (core->minor < 1) return AOT_OK; /* before there were any */
  if (entry(AOT_ASK_WORKSPACE, args, count, &result) != 0) return aot_raised_(core);
  *bytes = (size_t)result.as.integer;
  return AOT_OK;
}

static inline int aot_workspace_size(aot_function function, const aot_value* args, int32_t count, size_t* bytes) {
  if (function.core == NULL) return aot_refuse_unopened_();
  if (function.info == NULL || bytes == NULL || (args == NULL && count != 0)) {
    return aot_fail_(AOT_ERROR_USAGE, "aot_workspace_size: a null pointer was given", NULL, NULL, NULL);
  }
  return aot_entry_workspace_size_(function.core, function.info->call, args, count, bytes);
}

AOT_SHARED int aot_set_stream(aot_bundle bundle, int32_t device, void* stream, void** previous) {
  const aot_interface* library = bundle.library;
  if (library == NULL) return aot_refuse_unopened_();
  /* TVM-FFI keeps a list as long as the largest number. */
  if (device < 0 || device > 63) {
    return aot_fail_(AOT_ERROR_USAGE, "aot_set_stream: the device is not one of 0 to 63", NULL, NULL, NULL);
  }
  return library->core->set_stream(device, stream, previous) == 0 ? AOT_OK : aot_raised_(library->core);
}

/* Whether that is a function of the kernel: its name, and perhaps "__" and choices. */
static inline int aot_is_of_kernel_(const char* function, const char* kernel) {
  const size_t size = strlen(kernel);
  return strncmp(function, kernel, size) == 0 && (function[size] == '\0' || strncmp(function + size, "__", 2) == 0);
}

AOT_SHARED int aot_preload(aot_bundle bundle, const char* kernel, int32_t device) {
  const aot_interface* library = bundle.library;
  uint32_t found = 0;
  if (library == NULL) return aot_refuse_unopened_();
  if (kernel == NULL) return library->preload(NULL, device) == 0 ? AOT_OK : aot_raised_(library->core);
  for (uint32_t i = 0; i < library->function_count; ++i) {
    const char* function = aot_info_(library, i)->name;
    if (!aot_is_of_kernel_(function, kernel)) continue;
    if (library->preload(function, device) != 0) return aot_raised_(library->core);
    ++found;
  }
  return found != 0 ? AOT_OK : aot_refuse_kernel_(library, kernel);
}

AOT_SHARED int aot_explain(aot_bundle bundle, const char* kernel, int32_t major, int32_t minor, const aot_value* args,
                           int32_t count, char* text, size_t room, size_t* needed) {
  const aot_interface* library = bundle.library;
  if (kernel == NULL || (args == NULL && count != 0) || (text == NULL && room != 0)) {
    return aot_fail_(AOT_ERROR_USAGE, "aot_explain: a null pointer was given", NULL, NULL, NULL);
  }
  if (library == NULL) return aot_refuse_unopened_();
  int status = library->explain(kernel, major, minor, args, count, text, room, needed);
  return status == 0 ? AOT_OK : aot_raised_(library->core);
}

AOT_SHARED int aot_make_tensor(aot_tensor* tensor, void* data, int32_t device, aot_dtype dtype, int32_t ndim,
                               int64_t* shape, int64_t* strides, int64_t* row_major) {
  int64_t elements = 1;
  if (tensor == NULL || (ndim > 0 && (shape == NULL || (strides == NULL && row_major == NULL)))) {
    return aot_fail_(AOT_ERROR_USAGE, "aot_make_tensor: a null pointer was given", NULL, NULL, NULL);
  }
  if (ndim < 0 || device < 0) return aot_fail_(AOT_ERROR_ARGUMENT, "aot_make_tensor: a negative rank or device", NULL, NULL, NULL);
  for (int32_t i = ndim; i-- > 0;) {
    if (shape[i] < 0) return aot_fail_(AOT_ERROR_ARGUMENT, "aot_make_tensor: a negative extent", NULL, NULL, NULL);
    if (strides == NULL) row_major[i] = elements;
    if (__builtin_mul_overflow(elements, shape[i], &elements)) {
      return aot_fail_(AOT_ERROR_ARGUMENT, "aot_make_tensor: more than 2^63 elements", NULL, NULL, NULL);
    }
  }
  if (data == NULL && elements > 0) {
    return aot_fail_(AOT_ERROR_ARGUMENT, "aot_make_tensor: the address is null, and the tensor is not empty", NULL, NULL, NULL);
  }
  memset(tensor, 0, sizeof *tensor);
  tensor->data = data;
  tensor->device_type = AOT_DEVICE_CUDA;
  tensor->device_id = device;
  tensor->ndim = ndim;
  tensor->dtype = dtype;
  tensor->shape = shape;
  tensor->strides = strides != NULL ? strides : row_major;
  return AOT_OK;
}

#ifdef __cplusplus
}
#endif

#endif /* AOT_DETAIL_CALLING_H_ */
