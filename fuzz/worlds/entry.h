/* What the entry of a variant is given, compared with what the tables say; and an allocator, as a framework has one. */
#ifndef FUZZ_WORLDS_ENTRY_H_
#define FUZZ_WORLDS_ENTRY_H_

#include "aot_error.h"
#include "model.h"

static int note(int variant, const TVMFFIAny* args, int32_t count) {
  const library_t* of = &world->libraries[variant / VARIANTS];
  ran = variant;
  seen_count = count;
  for (int i = 0; i < count && i < 16; ++i) {
    seen[i] = args[i];
    if (args[i].type_index != kTVMFFIDLTensorPtr || args[i].v_ptr == NULL) continue;
    seen_tensors[i] = *(const DLTensor*)args[i].v_ptr;
    const DLTensor* tensor = &seen_tensors[i];
    for (int d = 0; d < tensor->ndim && d < AOT_MAX_MADE && tensor->shape != NULL && tensor->strides != NULL; ++d) {
      seen_extents[i][0][d] = tensor->shape[d];
      seen_extents[i][1][d] = tensor->strides[d];
    }
  }
  if (model_takes(of, &of->variants[variant % VARIANTS])) return 0;
  return aot_raise("TypeError", "the entry refuses it");
}

static int same(const TVMFFIAny* one, const TVMFFIAny* other) {
  return one->type_index == other->type_index && one->v_int64 == other->v_int64;
}

static const char* wrong_batch(int i, const DLTensor* one) {
  int64_t reach = 0;
  if (one->ndim >= AOT_MAX_MADE) return same(&seen[i], values[0].any) ? NULL
      : "a tensor of too many dimensions was changed";
  if (seen_tensors[i].ndim != one->ndim + 1)
      return "a batch of one has another rank";
  for (int d = 0; d < one->ndim; ++d) {
    if (seen_extents[i][0][d + 1] != one->shape[d] || seen_extents[i][1][d + 1] != one->strides[d])
        return "a batch of one differs from its tensor";
    wide_t extent = (wide_t)one->shape[d] * one->strides[d];
    if (extent > INT64_MAX || extent < INT64_MIN) return NULL;
    if ((int64_t)extent > reach) reach = (int64_t)extent;
  }
  if (one->ndim < 0) return NULL;
  if (seen_extents[i][0][0] != 1) return "a batch of one has more";
  if (reach > INT64_MAX - 16) return NULL;
  return seen_extents[i][1][0] == (reach + 15) / 16 * 16 ? NULL : "the next element of a batch would be elsewhere";
}

static const char* wrong_constant(const library_t* of, int i, int number) {
  const aot_constant_t* constant = &of->constants[number];
  if (number < 2) {
    int right = seen[i].type_index == constant->type_index && seen[i].v_int64 == constant->bits;
    return right ? NULL : "another constant";
  }
  if (number == 2 && values[0].tensor != NULL) return wrong_batch(i, values[0].tensor);
  const value_t* given = &values[number == 2 ? 0 : OPTIONAL];
  if (number == 2 || given->kind != AOT_KIND_NONE) return same(&seen[i], given->any) ? NULL : "an argument was changed";
  const DLTensor* made = &seen_tensors[i];
  if (seen[i].type_index != kTVMFFIDLTensorPtr || made->ndim != constant->bits >> AOT_RANK_SHIFT)
      return "an empty tensor of another rank";
  for (int d = 0; d < made->ndim; ++d) {
    if (seen_extents[i][0][d] != 0 || seen_extents[i][1][d] != (d == made->ndim - 1))
        return "an empty tensor is not empty";
  }
  int right = made->dtype.bits == 16 && made->dtype.code == kDLBfloat && made->dtype.lanes == 1;
  return right && made->device.device_type == kDLCUDA && made->device.device_id == 0 && made->data == NULL ? NULL
      : "an empty tensor of another kind";
}

static const char* wrong_workspace(const aot_variant_t* variant, int i, int64_t bytes) {
  if (variant->workspace == NULL) return seen[i].type_index == kTVMFFINone ? NULL
      : "scratch memory that nobody needs";
  const DLTensor* made = &seen_tensors[i];
  const DLDataType dtype = variant->workspace->dtype;
  if (seen[i].type_index != kTVMFFIDLTensorPtr || made->ndim != 1 || seen_extents[i][1][0] != 1)
      return "scratch memory is no vector";
  if (seen_extents[i][0][0] != bytes / (dtype.bits / 8)) return "scratch memory of another size";
  if (made->dtype.bits != dtype.bits || made->dtype.code != dtype.code || made->dtype.lanes != 1)
      return "scratch memory of another type";
  if (made->device.device_type != kDLCUDA || made->device.device_id != 0 || made->byte_offset != 0)
      return "scratch memory elsewhere";
  const DLTensor* given = values[SCRATCH].tensor;
  if (given != NULL && made->data != (char*)given->data + given->byte_offset)
      return "scratch memory is not the caller's";
  if (given == NULL && bytes > 0 && made->data == NULL) return "scratch memory is missing";
  return NULL;
}

static const char* wrong_arguments(const library_t* of, const aot_variant_t* variant, int64_t bytes) {
  const char* wrong = NULL;
  int count = variant->sources == NULL ? ARGUMENTS : (int)variant->source_count;
  if (seen_count != count) return "the entry gets another number of arguments";
  for (int i = 0; i < count && wrong == NULL; ++i) {
    int source = variant->sources == NULL ? i : variant->sources[i];
    if (source < ARGUMENTS) wrong = same(&seen[i], values[source].any) ? NULL : "an argument was changed";
    else if (source == AOT_SOURCE_MULTIPROCESSORS) wrong = seen[i].type_index == kTVMFFIInt &&
        seen[i].v_int64 == 132 ? NULL : "multiprocessors";
    else if (source == AOT_SOURCE_ACTIVE_CLUSTERS) wrong = seen[i].type_index == kTVMFFIInt &&
        seen[i].v_int64 == 66 ? NULL : "clusters";
    else if (source == AOT_SOURCE_WORKSPACE) wrong = wrong_workspace(variant, i, bytes);
    else wrong = wrong_constant(of, i, source - AOT_SOURCE_CONSTANT);
  }
  return wrong;
}

static void give_back(DLManagedTensorVersioned* managed) {
  --live;
  free(managed->dl_tensor.data);
  free(managed->dl_tensor.shape);
  free(managed);
}

static int allocate(DLTensor* wanted, DLManagedTensorVersioned** out, void* context,
                    void (*set_error)(void* context, const char* kind, const char* message)) {
  if (wanted->shape[0] > 1 << 20) {
    set_error(context, "MemoryError", "nothing left");
    return -1;
  }
  DLManagedTensorVersioned* managed = (DLManagedTensorVersioned*)calloc(1, sizeof *managed);
  int64_t* extents = (int64_t*)malloc(2 * sizeof *extents);
  void* memory = NULL;
  if (managed == NULL || extents == NULL || posix_memalign(&memory, 256, (size_t)wanted->shape[0]) != 0) abort();
  allocated = wanted->shape[0];
  extents[0] = wanted->shape[0], extents[1] = 1;
  managed->version.major = DLPACK_MAJOR_VERSION;
  managed->version.minor = DLPACK_MINOR_VERSION;
  managed->deleter = give_back;
  managed->dl_tensor = *wanted;
  managed->dl_tensor.data = memory;
  managed->dl_tensor.shape = extents;
  managed->dl_tensor.strides = extents + 1;
  ++live;
  *out = managed;
  return 0;
}

#endif /* FUZZ_WORLDS_ENTRY_H_ */
