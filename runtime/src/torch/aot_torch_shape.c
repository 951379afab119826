/* Runs the steps that the builder made of a shape such as `(*a.shape[:-1], b.shape[-2])`. */
#include "aot_torch_shape.h"

#include <stddef.h>

#include "aot_torch_bundle.h"

typedef struct {
  int64_t numbers[AOT_TORCH_MAX_DEPTH];
  uint32_t depth; /* the builder makes no steps that need more room, or that pop from an empty stack */
} numbers_t;

static int refuse(const aot_torch_operator* operator_, const aot_torch_output* output, const char* why) {
  return aot_torch_fail("%s: the shape of `%s` cannot be computed: %s", operator_->name, output->name, why);
}

static int64_t floor_divide(int64_t left, int64_t right) {
  int64_t quotient = left / right;
  return left % right != 0 && (left < 0) != (right < 0) ? quotient - 1 : quotient;
}

/* NULL, or why it cannot be. */
static const char* combine(aot_torch_operation operation, int64_t left, int64_t right, int64_t* result) {
  int overflow = 0;
  switch (operation) {
    case AOT_TORCH_ADD: overflow = __builtin_add_overflow(left, right, result); break;
    case AOT_TORCH_SUBTRACT: overflow = __builtin_sub_overflow(left, right, result); break;
    case AOT_TORCH_MULTIPLY: overflow = __builtin_mul_overflow(left, right, result); break;
    case AOT_TORCH_DIVIDE:
    case AOT_TORCH_REMAINDER:
      if (right == 0) return "it divides by zero";
      if (right == -1) { /* the lowest number has no opposite */
        *result = 0;
        if (operation == AOT_TORCH_DIVIDE) overflow = __builtin_sub_overflow(0, left, result);
        break;
      }
      *result = operation == AOT_TORCH_DIVIDE ? floor_divide(left, right) : left - right * floor_divide(left, right);
      break;
    case AOT_TORCH_MIN: *result = left < right ? left : right; break;
    default: *result = left > right ? left : right; break; /* AOT_TORCH_MAX */
  }
  return overflow ? "a number is beyond 64 bits" : NULL;
}

static const char* append(aot_torch_shape* shape, int64_t extent) {
  if (extent < 0) return "an extent is negative";
  if (shape->rank >= AOT_TORCH_MAX_RANK) return "it has more than 64 dimensions";
  shape->sizes[shape->rank++] = extent;
  return NULL;
}

static const char* spread(const aot_torch_step* step, const aot_tensor* tensor, aot_torch_shape* shape) {
  int64_t begin = 0, end = tensor->ndim;
  int64_t bound = step->number < 0 ? tensor->ndim + step->number : step->number;
  if (bound < 0) bound = 0;
  if (step->operation == AOT_TORCH_SPREAD_TO && bound < end) end = bound;
  if (step->operation == AOT_TORCH_SPREAD_FROM) begin = bound;
  const char* wrong = NULL;
  for (int64_t i = begin; i < end && wrong == NULL; ++i) wrong = append(shape, tensor->shape[i]);
  return wrong;
}

static const char* extent_of(const aot_torch_step* step, const aot_tensor* tensor, int64_t* extent) {
  int64_t at = step->number < 0 ? tensor->ndim + step->number : step->number;
  if (at < 0 || at >= tensor->ndim) return "an argument has too few dimensions";
  *extent = tensor->shape[at];
  return NULL;
}

static const char* run(const aot_torch_step* step, const aot_torch_seen* inputs, numbers_t* stack, aot_torch_shape* shape) {
  const aot_torch_seen* seen = step->input < 0 ? NULL : &inputs[step->input];
  int64_t* next = &stack->numbers[stack->depth];
  switch (step->operation) {
    case AOT_TORCH_NUMBER: *next = step->number; break;
    case AOT_TORCH_SCALAR: *next = seen->number; break;
    case AOT_TORCH_EXTENT: {
      const char* wrong = seen->tensor == NULL ? "an argument is None" : extent_of(step, seen->tensor, next);
      if (wrong != NULL) return wrong;
      break;
    }
    case AOT_TORCH_APPEND: return append(shape, stack->numbers[--stack->depth]);
    case AOT_TORCH_SPREAD:
    case AOT_TORCH_SPREAD_TO:
    case AOT_TORCH_SPREAD_FROM: return seen->tensor == NULL ? "an argument is None" : spread(step, seen->tensor, shape);
    default: {
      int64_t* pair = &stack->numbers[stack->depth - 2];
      const char* wrong = combine(step->operation, pair[0], pair[1], &pair[0]);
      --stack->depth;
      return wrong;
    }
  }
  ++stack->depth;
  return NULL;
}

int aot_torch_compute_shape(const aot_torch_operator* operator_, const aot_torch_output* output,
                            const aot_torch_seen* inputs, aot_torch_shape* shape) {
  numbers_t stack;
  stack.depth = 0;
  shape->rank = 0;
  for (uint32_t i = 0; i < output->step_count; ++i) {
    const char* wrong = run(&output->shape[i], inputs, &stack, shape);
    if (wrong != NULL) return refuse(operator_, output, wrong);
  }
  int64_t stride = 1;
  for (int32_t i = shape->rank; i-- > 0;) {
    shape->strides[i] = stride;
    if (__builtin_mul_overflow(stride, shape->sizes[i] > 1 ? shape->sizes[i] : 1, &stride)) {
      return refuse(operator_, output, "it has more than 2^63 elements");
    }
  }
  return 0;
}
