#include "aot_select.h"

#include <stddef.h>
#include <string.h>

#include "aot_overlap.h"

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

/* `alignment` is a power of two. */
static int64_t address_modulo(const DLTensor* tensor, int64_t alignment) {
  return (int64_t)(((uintptr_t)tensor->data + tensor->byte_offset) & (uint64_t)(alignment - 1));
}

static int64_t other_operand(const aot_subject_t* subject, const aot_arguments_t* arguments) {
  const aot_value_t* other = &arguments->values[subject->other_slot];
  return subject->other_is_stride ? stride(other, subject->other_dim) : extent(other, subject->other_dim);
}

/* The value of a subject whose argument is optional and not a tensor. None meets every requirement: its value is the one
 * that requirements of the subject ask for. That is `parameter` for subjects that do not use it otherwise, such as dtypes
 * and extents, and 0 for the others. Requirements on the kind allow the range from None to tensor. A pointer lies in that
 * range and must not meet them, so its kind reads as AOT_KIND_OTHER. */
static int64_t optional_value(const aot_subject_t* subject, int64_t kind) {
  if (subject->operation == AOT_SUBJECT_KIND) return kind == AOT_KIND_HANDLE ? (int64_t)AOT_KIND_OTHER : kind;
  if (kind != AOT_KIND_NONE) return AOT_MISSING;
  return subject->operation <= AOT_SUBJECT_EXTENT ? subject->parameter : 0;
}

static int64_t kind_of(const aot_value_t* value, const aot_arguments_t* arguments) {
  int is_unknown = value->kind == AOT_KIND_OTHER && arguments->hypothetical == AOT_PARTLY_KNOWN;
  return is_unknown ? AOT_MISSING : value->kind;
}

int64_t aot_subject_value(const aot_kernel_library_t* library, const aot_subject_t* subject,
                          const aot_arguments_t* arguments) {
  const aot_value_t* value = &arguments->values[subject->slot];
  const DLTensor* tensor = value->tensor;
  if (subject->optional && tensor == NULL) return optional_value(subject, kind_of(value, arguments));
  switch (subject->operation) {
    case AOT_SUBJECT_KIND: return kind_of(value, arguments);
    case AOT_SUBJECT_DTYPE: return tensor == NULL ? AOT_MISSING : aot_packed_dtype(tensor->dtype);
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
      return ((const TVMFFISeqCell*)aot_object_cell(value->any))->size;
    case AOT_SUBJECT_PROGRAM:
    case AOT_SUBJECT_CONDITION: return run_program(&library->steps[subject->parameter], arguments);
    case AOT_SUBJECT_OVERLAP: return aot_overlap(&library->regions[subject->parameter], subject->dim, arguments);
    default: return AOT_MISSING;
  }
}

/* Up to this many branches are compared one by one. The processor predicts comparisons and starts on the next node. A
 * child that is looked up in a table must wait until the value is known. */
#define FEW_BRANCHES 8

static int32_t branch_of_value(const aot_node_t* node, const aot_branch_t* branches, int64_t value) {
  if (node->count <= FEW_BRANCHES) {
    for (uint32_t i = 0; i < node->count; ++i) {
      /* The empty slots of a hash table lead to `otherwise`. */
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

/* A short path for the subjects that almost every tree reads: dtypes, alignments and extents of tensors. */
static inline int64_t asked_value(const aot_kernel_library_t* library, const aot_subject_t* subject,
                                  const aot_arguments_t* arguments) {
  const DLTensor* tensor = arguments->values[subject->slot].tensor;
  if (tensor != NULL) {
    if (subject->operation == AOT_SUBJECT_DTYPE) return aot_packed_dtype(tensor->dtype);
    if (subject->operation == AOT_SUBJECT_ADDRESS_MODULO) return address_modulo(tensor, subject->parameter);
    if (subject->operation == AOT_SUBJECT_EXTENT && subject->dim < tensor->ndim) return tensor->shape[subject->dim];
  }
  return aot_subject_value(library, subject, arguments);
}

const aot_variant_t* aot_group_choose(const aot_kernel_library_t* library, const aot_group_t* group,
                                      const aot_arguments_t* arguments) {
  return aot_tree_choose(library, group, group->root, arguments);
}

const aot_variant_t* aot_tree_choose(const aot_kernel_library_t* library, const aot_group_t* group, int32_t root,
                                     const aot_arguments_t* arguments) {
  int32_t at = root;
  while (at >= 0) {
    const aot_node_t* node = &library->nodes[at];
    const aot_branch_t* branches = library->branches + node->first;
    int64_t value = asked_value(library, &library->subjects[node->subject], arguments);
    at = node->multiplier != 0 ? branch_of_value(node, branches, value) : branch_of_range(node, branches, value);
  }
  return at == AOT_NO_VARIANT ? NULL : &group->variants[~at];
}

static int is_met(const aot_requirement_t* requirement, int64_t value) {
  return value >= requirement->low && value <= requirement->high;
}

static int is_unknown(const aot_arguments_t* arguments, int64_t value) {
  return value == AOT_MISSING && arguments->hypothetical == AOT_PARTLY_KNOWN;
}

int aot_requirement_missed(const aot_kernel_library_t* library, const aot_requirement_t* requirement,
                           const aot_arguments_t* arguments) {
  int64_t value = aot_subject_value(library, &library->subjects[requirement->subject], arguments);
  return value != AOT_MISSING && !is_met(requirement, value);
}

const aot_requirement_t* aot_first_unmet(const aot_kernel_library_t* library, const uint32_t* numbers, uint32_t count,
                                         const aot_arguments_t* arguments) {
  for (uint32_t i = 0; i < count; ++i) {
    const aot_requirement_t* requirement = &library->requirements[numbers[i]];
    int64_t value = aot_subject_value(library, &library->subjects[requirement->subject], arguments);
    if (!is_met(requirement, value) && !is_unknown(arguments, value)) return requirement;
  }
  return NULL;
}

const aot_requirement_t* aot_variant_unmet(const aot_kernel_library_t* library,
                                           const aot_variant_t* variant,
                                           const aot_arguments_t* arguments) {
  return aot_first_unmet(library, variant->requirements, variant->requirement_count, arguments);
}
