/* What a call must come to, written down without the tricks of dispatch. */
#ifndef FUZZ_WORLDS_MODEL_H_
#define FUZZ_WORLDS_MODEL_H_

#include <math.h>

#include "aot_overlap.h"
#include "arguments.h"

typedef __int128 wide_t; /* every sum and product of two numbers of 64 bits fits */

static int64_t narrow(wide_t value) {
  return value < INT64_MIN + (wide_t)1 || value > INT64_MAX ? AOT_MISSING : (int64_t)value;
}

/* An argument as dispatch must see it; a tensor alone if it is a sound one. */
typedef struct {
  const TVMFFIAny* any;
  const DLTensor* tensor;
  int kind;
} value_t;
static value_t values[SLOTS];

static value_t model_value(const TVMFFIAny* any) {
  static const int kinds[] = {AOT_KIND_NONE, AOT_KIND_INT, AOT_KIND_BOOL, AOT_KIND_FLOAT, AOT_KIND_HANDLE};
  value_t value = {any, NULL, AOT_KIND_OTHER};
  if (any == NULL) return value;
  if (any->type_index != kTVMFFIDLTensorPtr) {
    value.kind = any->type_index == kTVMFFIArray ? AOT_KIND_TUPLE : kinds[any->type_index];
    return value;
  }
  const DLTensor* tensor = (const DLTensor*)any->v_ptr;
  value.kind = AOT_KIND_BARE_TENSOR;
  if (tensor == NULL || (tensor->ndim > 0 && (tensor->shape == NULL || tensor->strides == NULL))) return value;
  int full = 1;
  for (int32_t i = 0; i < tensor->ndim; ++i) full &= tensor->shape[i] > 0;
  value.kind = tensor->data == NULL && full ? AOT_KIND_NULL_TENSOR : AOT_KIND_TENSOR;
  if (value.kind == AOT_KIND_TENSOR) value.tensor = tensor;
  return value;
}

/* Decodes all; the device of the first tensor on one, or -1. `unsound`: one that nothing may be called with. */
static int32_t model_arguments(const TVMFFIAny* args, int* unsound) {
  int32_t device = -1;
  *unsound = 0;
  for (int i = 0; i < ARGUMENTS; ++i) values[i] = model_value(&args[i]);
  const TVMFFISeqCell* cell = values[TUPLE].kind == AOT_KIND_TUPLE ? &((tuple_t*)args[TUPLE].v_obj)->cell : NULL;
  for (int i = 0; i < 2; ++i) {
    const TVMFFIAny* element = cell != NULL && i < cell->size ? (const TVMFFIAny*)cell->data + i : NULL;
    values[ARGUMENTS + i] = model_value(element);
  }
  static const int order[] = {0, OPTIONAL, 2, STREAM};
  for (int i = 0; i < 4 && device < 0; ++i) {
    const DLTensor* tensor = values[order[i]].tensor;
    if (tensor != NULL && tensor->device.device_type == kDLCUDA) device = tensor->device.device_id;
  }
  for (int64_t i = 0; cell != NULL && i < cell->size && device < 0; ++i) {
    value_t element = model_value((const TVMFFIAny*)cell->data + i);
    if (element.tensor != NULL && element.tensor->device.device_type == kDLCUDA) device =
        element.tensor->device.device_id;
  }
  if (device < 0 && values[SCRATCH].tensor != NULL && values[SCRATCH].tensor->device.device_type == kDLCUDA) {
    device = values[SCRATCH].tensor->device.device_id;
  }
  for (int i = 0; i < SLOTS; ++i) *unsound |= values[i].kind > AOT_KIND_OTHER;
  return device;
}

static int64_t model_extent(int slot, int dim, int is_stride) {
  const DLTensor* tensor = values[slot].tensor;
  if (tensor == NULL || dim >= tensor->ndim) return AOT_MISSING;
  return is_stride ? tensor->strides[dim] : tensor->shape[dim];
}

static int64_t model_integer(int slot) {
  int kind = values[slot].kind;
  return kind == AOT_KIND_INT || kind == AOT_KIND_BOOL ? values[slot].any->v_int64 : AOT_MISSING;
}

static int64_t model_modulo(int64_t value, int64_t divisor) {
  if (value == AOT_MISSING || divisor == AOT_MISSING || divisor <= 0) return AOT_MISSING;
  wide_t rest = (wide_t)value % divisor;
  return (int64_t)(rest < 0 ? rest + divisor : rest);
}

static int64_t model_step(int operation, int64_t a, int64_t b) {
  if (a == AOT_MISSING || b == AOT_MISSING) return AOT_MISSING;
  switch (operation) {
    case AOT_STEP_ADD: return narrow((wide_t)a + b);
    case AOT_STEP_SUBTRACT: return narrow((wide_t)a - b);
    case AOT_STEP_MULTIPLY: return narrow((wide_t)a * b);
    case AOT_STEP_FLOOR_DIVIDE: return b <= 0 ? AOT_MISSING : (int64_t)(((wide_t)a - model_modulo(a, b)) / b);
    case AOT_STEP_MODULO: return model_modulo(a, b);
    case AOT_STEP_MINIMUM: return b < a ? b : a;
    case AOT_STEP_MAXIMUM: return b > a ? b : a;
    case AOT_STEP_LESS: return b > a;
    case AOT_STEP_LESS_EQUAL: return b >= a;
    case AOT_STEP_EQUAL: return a == b;
    case AOT_STEP_NOT_EQUAL: return !(a == b);
    case AOT_STEP_AND: return a != 0 && b != 0;
    default: return a != 0 || b != 0;
  }
}

/* Backwards, without a stack: the last step joins what the steps before it give. */
static int64_t model_program(const aot_step_t* steps, int* at) {
  const aot_step_t* step = &steps[(*at)--];
  if (step->operation == AOT_STEP_CONSTANT) return step->value;
  if (step->operation == AOT_STEP_EXTENT || step->operation == AOT_STEP_STRIDE) {
    return model_extent(step->slot, step->dim, step->operation == AOT_STEP_STRIDE);
  }
  if (step->operation == AOT_STEP_INTEGER) return model_integer(step->slot);
  int64_t right = model_program(steps, at);
  if (step->operation == AOT_STEP_NOT) return right == AOT_MISSING ? right : right == 0;
  int64_t left = model_program(steps, at);
  return model_step(step->operation, left, right);
}

static int64_t model_float(int slot) {
  double number;
  int64_t bits;
  if (values[slot].kind == AOT_KIND_FLOAT) number = values[slot].any->v_float64;
  else if (model_integer(slot) == AOT_MISSING && !(values[slot].kind == AOT_KIND_INT)) return AOT_MISSING;
  else number = (double)values[slot].any->v_int64;
  if (isnan(number)) return AOT_MISSING;
  double size = fabs(number);
  memcpy(&bits, &size, sizeof bits);
  return number < 0 ? -bits : bits;
}

static int64_t model_optional(const aot_subject_t* subject) {
  int kind = values[subject->slot].kind;
  if (subject->operation == AOT_SUBJECT_KIND) return kind == AOT_KIND_HANDLE ? AOT_KIND_OTHER : kind;
  if (kind != AOT_KIND_NONE) return AOT_MISSING;
  switch (subject->operation) { /* those whose parameter is what the variant asks for */
    case AOT_SUBJECT_DTYPE: case AOT_SUBJECT_NDIM: case AOT_SUBJECT_DEVICE_TYPE: case AOT_SUBJECT_DEVICE_INDEX:
    case AOT_SUBJECT_EXTENT: return subject->parameter;
    default: return 0;
  }
}

static int64_t model_of_tensor(const aot_subject_t* subject, const DLTensor* tensor) {
  if (tensor == NULL) return AOT_MISSING;
  switch (subject->operation) {
    case AOT_SUBJECT_DTYPE: return ((int64_t)tensor->dtype.bits << 32)
        + 256 * tensor->dtype.lanes + tensor->dtype.code;
    case AOT_SUBJECT_NDIM: return tensor->ndim;
    case AOT_SUBJECT_DEVICE_TYPE: return tensor->device.device_type;
    case AOT_SUBJECT_DEVICE_INDEX: return tensor->device.device_id; /* calls that come so far are for device 0 */
    default: return (int64_t)(((uint64_t)(uintptr_t)tensor->data + tensor->byte_offset)
        % (uint64_t)subject->parameter);
  }
}

static int64_t model_subject(const library_t* of, const aot_subject_t* subject) {
  int slot = subject->slot, dim = subject->dim;
  if (subject->optional && values[slot].tensor == NULL) return model_optional(subject);
  int64_t extent = model_extent(slot, dim, 0), stride = model_extent(slot, dim, 1);
  int64_t other = model_extent(subject->other_slot, subject->other_dim, subject->other_is_stride);
  int at = (int)subject->parameter;
  switch (subject->operation) {
    case AOT_SUBJECT_KIND: return values[slot].kind;
    case AOT_SUBJECT_EXTENT: return extent;
    case AOT_SUBJECT_EXTENT_MODULO: return model_modulo(extent, subject->parameter);
    case AOT_SUBJECT_EXTENT_OFF: return model_step(AOT_STEP_SUBTRACT, extent, other);
    case AOT_SUBJECT_STRIDE: return stride;
    case AOT_SUBJECT_STRIDE_OFF: return extent == 1 ? 0 : model_step(AOT_STEP_SUBTRACT, stride, subject->parameter);
    case AOT_SUBJECT_STRIDE_MODULO: return extent == 1 ? 0 : model_modulo(stride, subject->parameter);
    case AOT_SUBJECT_STRIDE_OFF_BY: return extent == 1 ? 0 : model_step(AOT_STEP_SUBTRACT, stride, other);
    case AOT_SUBJECT_INTEGER: return model_integer(slot);
    case AOT_SUBJECT_INTEGER_MODULO: return model_modulo(model_integer(slot), subject->parameter);
    case AOT_SUBJECT_FLOAT: return model_float(slot);
    case AOT_SUBJECT_LENGTH: return values[slot].kind == AOT_KIND_TUPLE
        ? ((tuple_t*)values[slot].any->v_obj)->cell.size : AOT_MISSING;
    case AOT_SUBJECT_PROGRAM: case AOT_SUBJECT_CONDITION:
      while (of->steps[at + 1].operation != AOT_STEP_END) ++at;
      return model_program(of->steps, &at);
    default: return model_of_tensor(subject, values[slot].tensor);
  }
}

static int model_meets(const library_t* of, uint32_t number) {
  const aot_requirement_t* requirement = &of->requirements[number];
  int64_t value = model_subject(of, &of->subjects[requirement->subject]);
  return !(value < requirement->low) && !(value > requirement->high);
}

static int model_takes(const library_t* of, const aot_variant_t* variant) {
  for (uint32_t i = 0; i < variant->requirement_count; ++i) {
    if (!model_meets(of, variant->requirements[i])) return 0;
  }
  return 1;
}

/* The number of a variant, or -1. */
static int model_tree(const library_t* of, int32_t at) {
  while (at >= 0) {
    const aot_node_t* node = &of->nodes[at];
    int64_t value = model_subject(of, &of->subjects[node->subject]);
    at = node->otherwise;
    for (uint32_t i = 0; i < node->count; ++i) {
      const aot_branch_t* branch = &of->branches[node->first + i];
      if (node->multiplier != 0 ? branch->value == value && branch->child != node->otherwise
          : branch->value <= value) at = branch->child;
    }
  }
  return at == AOT_NO_VARIANT ? -1 : -1 - at;
}

/* The stand-in does not tell its bandwidth. */
static double model_distance(const aot_tuning_t* table) {
  return table->multiprocessors > 132 ? table->multiprocessors / 132.0 : 132.0 / table->multiprocessors;
}

/* The number of the table that decides on the device, or -1. */
static int model_table(const library_t* of) {
  int nearest = -1;
  for (uint32_t i = 0; i < world->function.tuning_count; ++i) {
    const aot_tuning_t* table = &world->tables[i];
    if (strcmp(table->arch, of->tables.arch) != 0) continue;
    if (table->multiprocessors == 132 && strcmp(table->device, "Stand-in 9.0") == 0) return (int)i;
    if (table->capability.minor != 0) continue;
    if (nearest < 0 || model_distance(table) < model_distance(&world->tables[nearest])) nearest = (int)i;
  }
  return nearest;
}

static int model_fits(const library_t* of, int table) {
  if (table < 0) return 1;
  int fits = of->tables.minor >= 2 && of->tables.tunables != NULL;
  for (uint32_t i = 0; i < world->tables[table].set_count; ++i) fits &= world->contents[table][i].sound;
  return fits;
}

static uint32_t model_cell(const library_t* of, const set_t* content, int taker) {
  uint32_t cell = 0;
  for (uint32_t i = 0; i < of->tunable.count; ++i) {
    uint32_t bin = 0;
    int64_t value = model_subject(of, &of->subjects[of->tuned_subjects[(uint32_t)taker * of->tunable.count + i]]);
    while (bin < content->bound_counts[i] && content->bounds[i][bin] <= value) ++bin;
    cell = cell * (content->bound_counts[i] + 1) + bin;
  }
  return cell;
}

/* Whether the variant meets what not all `count` variants from `first` on ask for. */
static int model_own(const library_t* of, uint32_t first, uint32_t count, const aot_variant_t* variant) {
  for (uint32_t i = 0; i < variant->requirement_count; ++i) {
    int common = 1;
    for (uint32_t other = first; other < first + count; ++other) {
      int has = 0;
      for (uint32_t at = 0; at < of->variants[other].requirement_count; ++at)
          has |= of->own[other][at] == variant->requirements[i];
      common &= has;
    }
    if (!common && !model_meets(of, variant->requirements[i])) return 0;
  }
  return 1;
}

static int model_tuned(const library_t* of, int table) {
  int taker = model_tree(of, of->tables.minor < 4 ? of->group.root : of->plain_root);
  if (taker < 0) return -1;
  uint32_t first = 0;
  for (uint32_t i = 0; i < world->tables[table].set_count; ++i) {
    const aot_tuned_set_t* set = &world->sets[table][i];
    if ((uint32_t)taker < first + set->variant_count) {
      uint32_t chosen = first + world->contents[table][i].cells[model_cell(of, &world->contents[table][i], taker)];
      return model_own(of, first, set->variant_count, &of->variants[chosen]) ? (int)chosen : -1;
    }
    first += set->variant_count;
  }
  return -1;
}

/* The library and number of the variant that takes the call; -1 if it is refused. */
static int model_choose(int unsound, const aot_arguments_t* decoded, const library_t** chosen) {
  for (uint32_t i = 0; i < world->kernel.build_count; ++i) {
    const library_t* of = &world->libraries[i];
    int table = model_table(of), variant = -1;
    if (!model_fits(of, table)) return -1;
    if (table >= 0) variant = model_tuned(of, table);
    if (variant < 0) variant = model_tree(of, of->group.root);
    if (variant < 0) continue;
    if (unsound) return -1;
    const aot_variant_t* one = &of->variants[variant];
    if (i + 1 < world->kernel.build_count && !model_takes(of, one)) continue;
    if (aot_overlap(&of->regions[one->first_region], one->region_count, decoded) != 0) return -1;
        /* has a fuzzer of its own */
    *chosen = of;
    return variant;
  }
  return -1;
}

static int model_named(int unsound, const char* name, const library_t** chosen) {
  for (uint32_t i = 0; i < world->kernel.build_count; ++i) {
    const library_t* of = &world->libraries[i];
    if (!model_fits(of, model_table(of))) return -1;
    for (uint32_t at = 0; at < of->group.variant_count; ++at) {
      if (strcmp(of->names[at], name) != 0) continue;
      *chosen = of;
      return unsound || !model_takes(of, &of->variants[at]) ? -1 : (int)at;
    }
  }
  return -1;
}

static int64_t model_bytes(const library_t* of, const aot_variant_t* variant) {
  return variant->workspace == NULL ? 0 : model_subject(of, &of->subjects[variant->workspace->subject]);
}

static int allocator_works;
static int64_t allocated, live;

/* Whether a call that needs so many bytes gets them. */
static int model_has_room(const aot_variant_t* variant, int64_t bytes) {
  const value_t* given = &values[SCRATCH];
  if (bytes < 0) return 0;
  if (given->kind == AOT_KIND_NONE) {
    return bytes == 0 || (variant->stream_argument == AOT_STREAM_FROM_ENVIRONMENT && allocator_works &&
        bytes <= 1 << 20);
  }
  const DLTensor* tensor = given->tensor;
  if (tensor == NULL || tensor->device.device_type != kDLCUDA || tensor->device.device_id != 0) return 0;
  if (tensor->dtype.bits != 8 || tensor->dtype.lanes != 1 || tensor->ndim != 1 || tensor->shape[0] < bytes) return 0;
  if (tensor->strides[0] != 1 && bytes > 1) return 0;
  return bytes == 0 || ((uint64_t)(uintptr_t)tensor->data + tensor->byte_offset) % 128 == 0;
}

static int model_knows_clusters(const aot_variant_t* variant) {
  int asked = 0;
  for (uint32_t i = 0; variant->sources != NULL && i < variant->source_count; ++i)
      asked |= variant->sources[i] == AOT_SOURCE_ACTIVE_CLUSTERS;
  return !asked || variant->state->active_clusters[0] != 0;
}

static int model_is_captured(const aot_variant_t* variant) {
  return variant->stream_argument == STREAM && (uint64_t)values[STREAM].any->v_int64 == CAPTURED;
}

#endif /* FUZZ_WORLDS_MODEL_H_ */
