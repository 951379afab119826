#include "aot_select.h"

#include "aot_overlap.h"

#include <stddef.h>
#include <string.h>

int aot_is_tegra(int32_t major, int32_t minor) {
  return (major == 8 && minor == 7) || (major == 11 && minor == 0);
}

int32_t aot_arch_rank(aot_arch_t arch, aot_capability_t device) {
  int same_chip = arch.major == device.major && arch.minor == device.minor;
  int family = arch.major == device.major && arch.minor <= device.minor;
  if (same_chip && arch.suffix == 'a') return 3000;
  if (aot_is_tegra(arch.major, arch.minor) || aot_is_tegra(device.major, device.minor)) family = same_chip;
  if (!family || arch.suffix == 'a') return 0;
  return (arch.suffix == 'f' ? 2000 : 1000) + arch.minor;
}

static const void* object_cell(const TVMFFIAny* any) {
  return (const char*)any->v_obj + sizeof(TVMFFIObject);
}

static int is_tuple(const TVMFFIAny* any) {
  if (any->type_index != kTVMFFIArray || any->v_obj == NULL) return 0;
  const TVMFFISeqCell* cell = (const TVMFFISeqCell*)object_cell(any);
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
    tensor = (const DLTensor*)object_cell(any);
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
  const TVMFFISeqCell* cell = (const TVMFFISeqCell*)object_cell(tuple);
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
  const TVMFFISeqCell* cell = (const TVMFFISeqCell*)object_cell(tuple->any);
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

static int64_t extent(const aot_value_t* value, uint32_t dim) {
  if (value->tensor == NULL || (int32_t)dim >= value->tensor->ndim) return AOT_MISSING;
  return value->tensor->shape[dim];
}

static int64_t stride(const aot_value_t* value, uint32_t dim) {
  if (value->tensor == NULL || (int32_t)dim >= value->tensor->ndim) return AOT_MISSING;
  return value->tensor->strides[dim];
}

static int64_t integer(const aot_value_t* value) {
  int is_integer = value->kind == AOT_KIND_INT || value->kind == AOT_KIND_BOOL;
  return is_integer ? value->any->v_int64 : AOT_MISSING;
}

/* Maps doubles to integers so that a < b is preserved; -0.0 equals 0.0, NaN is missing. */
static int64_t ordered_float(const aot_value_t* value) {
  double number;
  if (value->kind == AOT_KIND_FLOAT) {
    number = value->any->v_float64;
  } else if (value->kind == AOT_KIND_INT || value->kind == AOT_KIND_BOOL) {
    number = (double)value->any->v_int64;
  } else {
    return AOT_MISSING;
  }
  if (number != number) return AOT_MISSING;
  if (number == 0.0) return 0;
  int64_t bits;
  memcpy(&bits, &number, sizeof bits);
  return bits >= 0 ? bits : -(bits & INT64_MAX);
}

/* Modulo with the sign of Python's: the result lies in [0, divisor). */
static int64_t modulo(int64_t value, int64_t divisor) {
  if (value == AOT_MISSING || divisor <= 0) return AOT_MISSING;
  if ((divisor & (divisor - 1)) == 0) return value & (divisor - 1);
  int64_t rest = value % divisor;
  return rest < 0 ? rest + divisor : rest;
}

static int64_t floor_divide(int64_t value, int64_t divisor) {
  if (value == AOT_MISSING || divisor <= 0) return AOT_MISSING;
  return value / divisor - (value % divisor < 0);
}

static int64_t difference(int64_t left, int64_t right) {
  int64_t result;
  if (left == AOT_MISSING || right == AOT_MISSING) return AOT_MISSING;
  return __builtin_sub_overflow(left, right, &result) ? AOT_MISSING : result;
}

static int64_t combine(uint8_t operation, int64_t left, int64_t right) {
  int64_t result;
  if (left == AOT_MISSING || right == AOT_MISSING) return AOT_MISSING;
  switch (operation) {
    case AOT_STEP_ADD: return __builtin_add_overflow(left, right, &result) ? AOT_MISSING : result;
    case AOT_STEP_SUBTRACT: return difference(left, right);
    case AOT_STEP_MULTIPLY: return __builtin_mul_overflow(left, right, &result) ? AOT_MISSING : result;
    case AOT_STEP_FLOOR_DIVIDE: return floor_divide(left, right);
    case AOT_STEP_MODULO: return modulo(left, right);
    case AOT_STEP_MINIMUM: return left < right ? left : right;
    case AOT_STEP_MAXIMUM: return left > right ? left : right;
    case AOT_STEP_LESS: return left < right;
    case AOT_STEP_LESS_EQUAL: return left <= right;
    case AOT_STEP_EQUAL: return left == right;
    case AOT_STEP_NOT_EQUAL: return left != right;
    case AOT_STEP_AND: return left && right;
    case AOT_STEP_OR: return left || right;
    default: return AOT_MISSING;
  }
}

static int64_t run_program(const aot_step_t* step, const aot_arguments_t* arguments) {
  int64_t stack[AOT_MAX_PROGRAM_DEPTH];
  int depth = 0;
  for (; step->operation != AOT_STEP_END; ++step) {
    const aot_value_t* value = &arguments->values[step->slot];
    switch (step->operation) {
      case AOT_STEP_CONSTANT: stack[depth++] = step->value; break;
      case AOT_STEP_EXTENT: stack[depth++] = extent(value, step->dim); break;
      case AOT_STEP_STRIDE: stack[depth++] = stride(value, step->dim); break;
      case AOT_STEP_INTEGER: stack[depth++] = integer(value); break;
      case AOT_STEP_NOT:
        if (stack[depth - 1] != AOT_MISSING) stack[depth - 1] = !stack[depth - 1];
        break;
      default:
        --depth;
        stack[depth - 1] = combine(step->operation, stack[depth - 1], stack[depth]);
    }
  }
  return stack[0];
}

static int64_t packed_dtype(DLDataType dtype) {
  return (int64_t)dtype.bits << 32 | (int64_t)dtype.lanes << 8 | dtype.code;
}

/* `alignment` is a power of two. */
static int64_t address_modulo(const DLTensor* tensor, int64_t alignment) {
  return (int64_t)(((uintptr_t)tensor->data + tensor->byte_offset) & (uint64_t)(alignment - 1));
}

static int64_t other_operand(const aot_subject_t* subject, const aot_arguments_t* arguments) {
  const aot_value_t* other = &arguments->values[subject->other_slot];
  return subject->other_is_stride ? stride(other, subject->other_dim) : extent(other, subject->other_dim);
}

int64_t aot_subject_value(const aot_kernel_library_t* library, const aot_subject_t* subject,
                          const aot_arguments_t* arguments) {
  const aot_value_t* value = &arguments->values[subject->slot];
  const DLTensor* tensor = value->tensor;
  switch (subject->operation) {
    case AOT_SUBJECT_KIND: return value->kind;
    case AOT_SUBJECT_DTYPE: return tensor == NULL ? AOT_MISSING : packed_dtype(tensor->dtype);
    case AOT_SUBJECT_NDIM: return tensor == NULL ? AOT_MISSING : tensor->ndim;
    case AOT_SUBJECT_DEVICE_TYPE:
      if (tensor == NULL) return AOT_MISSING;
      return arguments->hypothetical ? (int64_t)kDLCUDA : (int64_t)tensor->device.device_type;
    case AOT_SUBJECT_DEVICE_INDEX:
      if (tensor == NULL) return AOT_MISSING;
      return arguments->hypothetical ? 0 : (int64_t)tensor->device.device_id - arguments->device;
    case AOT_SUBJECT_EXTENT: return extent(value, subject->dim);
    case AOT_SUBJECT_EXTENT_MODULO: return modulo(extent(value, subject->dim), subject->parameter);
    case AOT_SUBJECT_EXTENT_OFF:
      return difference(extent(value, subject->dim), other_operand(subject, arguments));
    case AOT_SUBJECT_STRIDE: return stride(value, subject->dim);
    case AOT_SUBJECT_STRIDE_OFF:
      /* Frameworks normalise the stride of an extent of 1 as they like. */
      if (extent(value, subject->dim) == 1) return 0;
      return difference(stride(value, subject->dim), subject->parameter);
    case AOT_SUBJECT_STRIDE_MODULO:
      if (extent(value, subject->dim) == 1) return 0;
      return modulo(stride(value, subject->dim), subject->parameter);
    case AOT_SUBJECT_STRIDE_OFF_BY:
      if (extent(value, subject->dim) == 1) return 0;
      return difference(stride(value, subject->dim), other_operand(subject, arguments));
    case AOT_SUBJECT_ADDRESS_MODULO:
      return tensor == NULL ? AOT_MISSING : address_modulo(tensor, subject->parameter);
    case AOT_SUBJECT_INTEGER: return integer(value);
    case AOT_SUBJECT_INTEGER_MODULO: return modulo(integer(value), subject->parameter);
    case AOT_SUBJECT_FLOAT: return ordered_float(value);
    case AOT_SUBJECT_LENGTH:
      if (value->kind != AOT_KIND_TUPLE) return AOT_MISSING;
      return ((const TVMFFISeqCell*)object_cell(value->any))->size;
    case AOT_SUBJECT_PROGRAM:
    case AOT_SUBJECT_CONDITION: return run_program(&library->steps[subject->parameter], arguments);
    case AOT_SUBJECT_OVERLAP: return aot_overlap(&library->regions[subject->parameter], subject->dim, arguments);
    default: return AOT_MISSING;
  }
}

/* Up to this many branches are compared one by one. A processor guesses the way through comparisons and goes on with the
 * next question meanwhile; a child that is looked up by the value has to wait for it. */
#define FEW_BRANCHES 8

static int32_t branch_of_value(const aot_node_t* node, const aot_branch_t* branches, int64_t value) {
  if (node->count <= FEW_BRANCHES) {
    for (uint32_t i = 0; i < node->count; ++i) {
      /* Slots that hold no value lead where the value would lead without them. */
      if (branches[i].value == value && branches[i].child != node->otherwise) return branches[i].child;
    }
    return node->otherwise;
  }
  const aot_branch_t* branch = &branches[(uint64_t)value * node->multiplier >> node->shift];
  return branch->value == value ? branch->child : node->otherwise;
}

static int32_t branch_of_range(const aot_node_t* node, const aot_branch_t* branches, int64_t value) {
  uint32_t low = 0, count = node->count;
  if (count <= FEW_BRANCHES) {
    while (count > 0 && branches[count - 1].value > value) --count;
    return count == 0 ? node->otherwise : branches[count - 1].child;
  }
  while (count > 0) {
    uint32_t half = count / 2;
    if (branches[low + half].value <= value) {
      low += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return low == 0 ? node->otherwise : branches[low - 1].child;
}

/* The questions that almost every tree asks, without the way through all of them. */
static inline int64_t asked_value(const aot_kernel_library_t* library, const aot_subject_t* subject,
                                  const aot_arguments_t* arguments) {
  const DLTensor* tensor = arguments->values[subject->slot].tensor;
  if (tensor != NULL) {
    if (subject->operation == AOT_SUBJECT_DTYPE) return packed_dtype(tensor->dtype);
    if (subject->operation == AOT_SUBJECT_ADDRESS_MODULO) return address_modulo(tensor, subject->parameter);
    if (subject->operation == AOT_SUBJECT_EXTENT && subject->dim < tensor->ndim) return tensor->shape[subject->dim];
  }
  return aot_subject_value(library, subject, arguments);
}

const aot_variant_t* aot_group_choose(const aot_kernel_library_t* library, const aot_group_t* group,
                                      const aot_arguments_t* arguments) {
  int32_t at = group->root;
  while (at >= 0) {
    const aot_node_t* node = &library->nodes[at];
    const aot_branch_t* branches = library->branches + node->first;
    int64_t value = asked_value(library, &library->subjects[node->subject], arguments);
    at = node->multiplier != 0 ? branch_of_value(node, branches, value) : branch_of_range(node, branches, value);
  }
  return at == AOT_NO_VARIANT ? NULL : &group->variants[~at];
}

const aot_requirement_t* aot_variant_unmet(const aot_kernel_library_t* library,
                                           const aot_variant_t* variant,
                                           const aot_arguments_t* arguments) {
  for (uint32_t i = 0; i < variant->requirement_count; ++i) {
    const aot_requirement_t* requirement = &library->requirements[variant->requirements[i]];
    int64_t value = aot_subject_value(library, &library->subjects[requirement->subject], arguments);
    if (value < requirement->low || value > requirement->high) return requirement;
  }
  return NULL;
}
