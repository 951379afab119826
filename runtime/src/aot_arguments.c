#include "aot_arguments.h"

#include <stddef.h>

static int is_tuple(const TVMFFIAny* any) {
  if (any->type_index != kTVMFFIArray || any->v_obj == NULL) return 0;
  const TVMFFISeqCell* cell = (const TVMFFISeqCell*)aot_object_cell(any);
  return cell->size == 0 || cell->data != NULL;
}

static int32_t kind_of(const TVMFFIAny* any) {
  static const uint8_t kinds[] = {AOT_KIND_NONE, AOT_KIND_INT, AOT_KIND_BOOL, AOT_KIND_FLOAT, AOT_KIND_HANDLE};
  if (any->type_index <= kTVMFFIOpaquePtr && any->type_index >= 0) return kinds[any->type_index];
  return is_tuple(any) ? AOT_KIND_TUPLE : AOT_KIND_OTHER;
}

static int has_elements(const DLTensor* tensor) {
  for (int32_t i = 0; i < tensor->ndim; ++i) {
    if (tensor->shape[i] <= 0) return 0;
  }
  return 1;
}

/* The compiled entry reads shape and strides unasked, and hands the address to the GPU: both must be there. */
static inline int32_t tensor_kind(const DLTensor* tensor) {
  if (tensor == NULL || (tensor->ndim > 0 && (tensor->shape == NULL || tensor->strides == NULL))) {
    return AOT_KIND_BARE_TENSOR;
  }
  return tensor->data == NULL && has_elements(tensor) ? AOT_KIND_NULL_TENSOR : AOT_KIND_TENSOR;
}

static inline int is_unsound(const aot_value_t* value) { return value->kind > AOT_KIND_OTHER; }

static int32_t device_of_tensor(const DLTensor* tensor) {
  return tensor != NULL && tensor->device.device_type == kDLCUDA ? tensor->device.device_id : -1;
}

static inline void decode(aot_value_t* value, const TVMFFIAny* any) {
  const DLTensor* tensor;
  value->any = any;
  if (any->type_index == kTVMFFITensor) {
    tensor = (const DLTensor*)aot_object_cell(any);
  } else if (any->type_index == kTVMFFIDLTensorPtr) {
    tensor = (const DLTensor*)any->v_ptr;
  } else {
    value->tensor = NULL;
    value->kind = kind_of(any);
    return;
  }
  value->kind = tensor_kind(tensor);
  value->tensor = value->kind == AOT_KIND_TENSOR ? tensor : NULL;
}

static int32_t device_in_tuple(const TVMFFIAny* tuple, int depth) {
  const TVMFFISeqCell* cell = (const TVMFFISeqCell*)aot_object_cell(tuple);
  int32_t device = -1;
  for (int64_t i = 0; i < cell->size && device < 0; ++i) {
    aot_value_t element;
    decode(&element, (const TVMFFIAny*)cell->data + i);
    if (element.kind == AOT_KIND_TUPLE && depth > 1) device = device_in_tuple(element.any, depth - 1);
    else device = device_of_tensor(element.tensor);
  }
  return device;
}

static int32_t device_in_tuples(const aot_arguments_t* arguments) {
  int32_t device = -1;
  for (uint32_t i = 0; i < arguments->count && device < 0; ++i) {
    const aot_value_t* value = &arguments->values[i];
    if (value->kind == AOT_KIND_TUPLE) device = device_in_tuple(value->any, AOT_MAX_TUPLE_DEPTH);
    else device = device_of_tensor(value->tensor);
  }
  return device;
}

void aot_arguments_decode(aot_arguments_t* arguments, const TVMFFIAny* args, uint32_t count) {
  int32_t device = -1;
  int has_tuple = 0, unsound = 0;
  for (uint32_t i = 0; i < count; ++i) {
    aot_value_t* value = &arguments->values[i];
    decode(value, &args[i]);
    if (device < 0) device = device_of_tensor(value->tensor);
    has_tuple |= value->kind == AOT_KIND_TUPLE;
    unsound |= is_unsound(value);
  }
  arguments->count = count;
  arguments->unsound = unsound;
  /* A tuple may hold a tensor that comes before the one found. */
  arguments->device = has_tuple ? device_in_tuples(arguments) : device;
}

static const TVMFFIAny* tuple_element(const aot_value_t* tuple, uint32_t index) {
  if (tuple->kind != AOT_KIND_TUPLE) return NULL;
  const TVMFFISeqCell* cell = (const TVMFFISeqCell*)aot_object_cell(tuple->any);
  if ((int64_t)index >= cell->size) return NULL;
  return (const TVMFFIAny*)cell->data + index;
}

void aot_arguments_open_tuples(aot_arguments_t* arguments, const aot_group_t* group) {
  for (uint32_t i = group->argument_count; i < group->slot_count; ++i) {
    const aot_slot_t* slot = &group->slots[i];
    const TVMFFIAny* element = tuple_element(&arguments->values[slot->parent], slot->index);
    aot_value_t* value = &arguments->values[i];
    if (element != NULL) {
      decode(value, element);
      arguments->unsound |= is_unsound(value);
    } else {
      value->any = NULL;
      value->tensor = NULL;
      value->kind = AOT_KIND_OTHER;
    }
  }
}
