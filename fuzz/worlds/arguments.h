/* Arguments of a call that a seed makes up. What they point to is as large as they say, and not a byte larger. */
#ifndef FUZZ_WORLDS_ARGUMENTS_H_
#define FUZZ_WORLDS_ARGUMENTS_H_

#include <math.h>

#include "world.h"

static void* pointers[64];
static int pointer_count;

static void* room(size_t size, size_t alignment) {
  void* memory = NULL;
  if (pointer_count == 64 || posix_memalign(&memory, alignment, size ? size : 1) != 0) abort();
  memset(memory, 0xA5, size);
  return pointers[pointer_count++] = memory;
}

/* Where a bin of a measured table begins, or beside it; any number if the world has no table. */
static int64_t near_a_bound(void) {
  if (world->function.tuning_count == 0) return 1 + below(64);
  const set_t* set = &world->contents[below(world->function.tuning_count)][0];
  uint32_t extent = (uint32_t)below(EXTENTS);
  if (set->bound_counts[extent] == 0) return 1 + below(64);
  int64_t bound = set->bounds[extent][below(set->bound_counts[extent])] + below(3) - 1;
  return bound > 0 && bound < 4096 ? bound : 1 + below(64);
}

static DLTensor* make_tensor(void) {
  DLTensor* tensor = (DLTensor*)room(sizeof *tensor, 16);
  int sound = below(8) != 0;
  memset(tensor, 0, sizeof *tensor);
  tensor->data = (void*)(uintptr_t)(below(40) == 0 ? 0 : 0x7F0000000000 + (uint64_t)below(8)
      * 256 + (uint64_t)(below(4) ? 0 : below(64)));
  tensor->device.device_type = below(40) ? kDLCUDA : kDLCPU;
  tensor->device.device_id = below(60) ? 0 : (int32_t)edge();
  tensor->dtype.code = (uint8_t)(below(2) * kDLFloat);
  tensor->dtype.bits = (uint8_t)(8 << below(3));
  tensor->dtype.lanes = 1;
  tensor->ndim = (int32_t)(below(4) ? below(4) : 5 + below(6));
  tensor->byte_offset = below(8) ? 0 : (uint64_t)below(300);
  size_t size = (size_t)tensor->ndim * sizeof(int64_t);
  tensor->shape = (int64_t*)room(size, 16);
  tensor->strides = (int64_t*)room(size, 16);
  int64_t contiguous = 1;
  for (int32_t i = tensor->ndim - 1; i >= 0; --i) {
    tensor->shape[i] = !sound ? edge() : tensor->ndim > 4 || below(3) ? 1 + below(64) : near_a_bound();
    tensor->strides[i] = sound && below(6) ? contiguous : edge();
    if (sound) contiguous *= tensor->shape[i];
  }
  if (!sound && below(4) == 0) tensor->ndim = (int32_t)(INT32_MIN + below(3));
  if (!sound && below(4) == 0) tensor->shape = NULL;
  if (!sound && below(4) == 0) tensor->strides = NULL;
  return tensor;
}

static void give_tensor(TVMFFIAny* any) {
  any->type_index = kTVMFFIDLTensorPtr;
  any->v_ptr = below(60) ? make_tensor() : NULL;
}

static void give_scalar(TVMFFIAny* any) {
  static const double values[] = {0.5, 0.0, -0.0, -1.0, 1e300, 65536.0};
  switch (below(4)) {
    case 0: any->type_index = kTVMFFIBool; any->v_int64 = below(2); return;
    case 1: any->type_index = kTVMFFIFloat; any->v_float64 = below(7) ? values[below(6)] : NAN; return;
    default: any->type_index = kTVMFFIInt; any->v_int64 = edge();
  }
}

typedef struct {
  TVMFFIObject header;
  TVMFFISeqCell cell;
} tuple_t;

static void give_tuple(TVMFFIAny* any) {
  tuple_t* tuple = (tuple_t*)room(sizeof *tuple, 16);
  int64_t size = below(6) ? 2 : below(4);
  TVMFFIAny* elements = (TVMFFIAny*)room((size_t)size * sizeof *elements, 16);
  memset(tuple, 0, sizeof *tuple);
  memset(elements, 0, (size_t)size * sizeof *elements);
  for (int64_t i = 0; i < size; ++i) {
    if (below(3)) give_tensor(&elements[i]);
    else give_scalar(&elements[i]);
  }
  tuple->cell.data = elements;
  tuple->cell.size = tuple->cell.capacity = size;
  any->type_index = kTVMFFIArray;
  any->v_obj = &tuple->header;
}

/* Real memory, of just that size and alignment: whoever clears more of it is seen. */
static void give_scratch(TVMFFIAny* any, int64_t needed) {
  if (below(3) == 0) return;
  int64_t size = needed > 0 && needed < 4096 && below(3) ? needed + below(3) - 1 : below(600);
  int64_t shift = below(4) ? 0 : INT64_C(1) << below(8);
  DLTensor* tensor = make_tensor();
  if (tensor->shape == NULL || tensor->strides == NULL || tensor->ndim < 1 || tensor->device.device_id != 0) return;
  if (below(8)) tensor->ndim = 1;
  tensor->data = room((size_t)(size + shift), 256);
  tensor->byte_offset = (uint64_t)shift;
  tensor->dtype.code = kDLUInt;
  tensor->dtype.bits = below(8) ? 8 : 16;
  tensor->shape[0] = size;
  tensor->strides[0] = below(8) ? 1 : edge();
  any->type_index = kTVMFFIDLTensorPtr;
  any->v_ptr = tensor;
}

static TVMFFIAny* make_arguments(void) {
  TVMFFIAny* args = (TVMFFIAny*)room(ARGUMENTS * sizeof *args, 16);
  memset(args, 0, ARGUMENTS * sizeof *args);
  if (below(30)) give_tensor(&args[0]);
  if (below(2)) give_tensor(&args[OPTIONAL]);
  give_scalar(&args[2]);
  if (below(2)) {
    args[STREAM].type_index = kTVMFFIOpaquePtr;
    args[STREAM].v_ptr = (void*)(uintptr_t)(below(8) ? 0x6000 : CAPTURED);
  } else {
    give_scalar(&args[STREAM]);
  }
  if (below(20)) give_tuple(&args[TUPLE]);
  return args;
}

#endif /* FUZZ_WORLDS_ARGUMENTS_H_ */
