/* Arguments of calls as values. Included by aot.h, after what it declares. */
#ifndef AOT_DETAIL_VALUES_H_
#define AOT_DETAIL_VALUES_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

static inline aot_value aot_none(void) {
  aot_value value = {AOT_NONE, 0, {0}};
  return value;
}

static inline aot_value aot_from_int(int64_t integer) {
  aot_value value = {AOT_INT, 0, {0}};
  value.as.integer = integer;
  return value;
}

static inline aot_value aot_from_bool(int truth) {
  aot_value value = {AOT_BOOL, 0, {0}};
  value.as.integer = truth != 0;
  return value;
}

static inline aot_value aot_from_float(double number) {
  aot_value value = {AOT_FLOAT, 0, {0}};
  value.as.number = number;
  return value;
}

static inline aot_value aot_from_pointer(const void* pointer) {
  aot_value value = {AOT_POINTER, 0, {0}};
  value.as.pointer = pointer;
  return value;
}

static inline aot_value aot_from_tensor(const aot_tensor* tensor) {
  aot_value value = {AOT_NONE, 0, {0}};
  if (tensor == NULL) return value;
  value.type = AOT_TENSOR;
  value.as.pointer = tensor;
  return value;
}

static inline aot_value aot_from_tuple(aot_tuple_header* header, aot_value* values, int64_t size) {
  aot_value value = {AOT_TUPLE, 0, {0}};
  if (header == NULL) return value; /* no function takes it */
  /* Two references that nobody counts down: the object never deletes itself. */
  header->reference_count = UINT64_C(2) << 32 | 2;
  header->type = AOT_TUPLE;
  header->zero = 0;
  header->deleter = NULL;
  header->values = values;
  header->size = size;
  header->capacity = size;
  header->values_deleter = NULL;
  value.as.pointer = header;
  return value;
}

static inline aot_dtype aot_make_vector_dtype(uint8_t code, uint8_t bits, uint16_t lanes) {
  aot_dtype dtype;
  dtype.code = code;
  dtype.bits = bits;
  dtype.lanes = lanes;
  return dtype;
}

static inline aot_dtype aot_make_dtype(uint8_t code, uint8_t bits) { return aot_make_vector_dtype(code, bits, 1); }

static inline const aot_tensor* aot_hold_tensor_(aot_held_tensor* held, void* data, aot_dtype dtype, size_t ndim,
                                                 const int64_t* shape) {
  held->tensor.device_type = AOT_DEVICE_CUDA;
  held->tensor.dtype = dtype;
  held->tensor.shape = held->shape;
  held->tensor.strides = held->strides;
  if (ndim > AOT_MAX_RANK) return &held->tensor; /* without an address: a call refuses it */
  int64_t elements = 1;
  for (size_t i = ndim; i-- > 0;) {
    held->shape[i] = shape[i];
    held->strides[i] = elements;
    if (__builtin_mul_overflow(elements, shape[i], &elements)) return &held->tensor;
  }
  held->tensor.data = data;
  held->tensor.ndim = (int32_t)ndim;
  return &held->tensor;
}

#ifdef __cplusplus
}
#endif

#endif /* AOT_DETAIL_VALUES_H_ */
