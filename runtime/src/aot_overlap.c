/* Exact, for whatever tensors a caller passes: where first and last bytes do not tell two tensors apart, as those of two
 * halves of a matrix's columns do not, a search over their strides does. */
#include "aot_overlap.h"

#include <stddef.h>

#define LONGEST_REACH (INT64_C(1) << 48) /* elements: no memory is larger */
#define WIDEST_ELEMENT 256               /* bytes */

/* From the first byte to past the last one; empty where they are the same. */
typedef struct {
  uint64_t first;
  uint64_t end;
} span_t;

static const span_t everything = {0, UINT64_MAX};
static const span_t nothing = {0, 0};

/* Described tensors, for asking what a call would run, have no device and no memory. */
static int has_memory(const DLTensor* tensor) {
  return tensor != NULL && tensor->data != NULL && tensor->device.device_id >= 0;
}

/* Of any tensor. `crowded`: it has more elements than there is room for. */
static span_t span_of(const DLTensor* tensor, int* crowded) {
  *crowded = 0;
  if (!has_memory(tensor)) return nothing;
  int64_t below = 0, above = 0, elements = 1, size = aot_element_bytes(tensor);
  int boundless = size > WIDEST_ELEMENT, countless = 0;
  for (int32_t i = 0; i < tensor->ndim; ++i) {
    int64_t reach;
    if (tensor->shape[i] <= 0) return nothing;
    boundless |= __builtin_mul_overflow(tensor->shape[i] - 1, tensor->strides[i], &reach);
    boundless |= (uint64_t)reach + LONGEST_REACH > 2 * (uint64_t)LONGEST_REACH;
    countless |= __builtin_mul_overflow(elements, tensor->shape[i], &elements);
    if (reach < 0) below += reach;
    else above += reach;
  }
  if (boundless) return everything;
  *crowded = countless || elements > above - below + 1;
  span_t span = {aot_address(tensor) + (uint64_t)(below * size), aot_address(tensor) + (uint64_t)((above + 1) * size)};
  return span;
}

/* What two tensors reach, as terms: the bytes of a tensor are those at `step * k` past the first, added up over its
 * terms, each with its own k from 0 to `last`. */
typedef struct {
  int64_t step;
  int64_t last;
} term_t;

#define MAX_TERMS 18 /* more dimensions than a tensor has */
#define MAX_WORK 4096

typedef struct {
  term_t terms[MAX_TERMS]; /* the largest step first */
  int64_t rest[MAX_TERMS + 1]; /* the largest sum of the terms from here on */
  int count;
  int work;
} search_t;

static int add_term(search_t* search, int64_t step, int64_t last) {
  int at = 0;
  if (step < 0) step = -step;
  if (step == 0 || last == 0) return 1;
  while (at < search->count && search->terms[at].step > step) ++at;
  if (at < search->count && search->terms[at].step == step) {
    search->terms[at].last += last;
    return 1;
  }
  if (search->count == MAX_TERMS) return 0;
  for (int i = search->count++; i > at; --i) search->terms[i] = search->terms[i - 1];
  search->terms[at].step = step;
  search->terms[at].last = last;
  return 1;
}

static int add_terms(search_t* search, const DLTensor* tensor) {
  int64_t size = aot_element_bytes(tensor);
  int fits = add_term(search, 1, size - 1);
  for (int32_t i = 0; i < tensor->ndim; ++i) fits &= add_term(search, tensor->strides[i] * size, tensor->shape[i] - 1);
  return fits;
}

static int64_t greatest_divisor(int64_t left, int64_t right) {
  while (right != 0) {
    int64_t rest = left % right;
    left = right;
    right = rest;
  }
  return left;
}

/* The terms from `at` to some later one make multiples of a number only; those after it must fill the gap. */
static int gap_is_too_wide(const search_t* search, int at, int64_t sum) {
  int64_t divisor = 0;
  for (int i = at; i < search->count; ++i) {
    divisor = greatest_divisor(divisor, search->terms[i].step);
    if (sum % divisor > search->rest[i + 1]) return 1;
  }
  return 0;
}

/* Whether the terms from `at` on can make a sum. What takes too long to find out counts as yes. */
static int makes(search_t* search, int at, int64_t sum) {
  if (sum == 0) return 1;
  if (at == search->count || sum > search->rest[at] || gap_is_too_wide(search, at, sum)) return 0;
  const term_t* term = &search->terms[at];
  int64_t least = sum - search->rest[at + 1], most = sum / term->step;
  least = least <= 0 ? 0 : (least + term->step - 1) / term->step;
  if (most > term->last) most = term->last;
  for (int64_t k = most; k >= least; --k) {
    if (++search->work > MAX_WORK || makes(search, at + 1, sum - k * term->step)) return 1;
  }
  return 0;
}

/* Both tensors have memory, and their spans meet. A byte of one is a byte of the other where the terms of both, those
 * of the second counted from its last byte down, add up to the distance from the first's first to the second's last. */
static int share_bytes(const DLTensor* left, const span_t* left_span, const DLTensor* right, const span_t* right_span) {
  search_t search;
  search.count = search.work = 0;
  if (left_span->end == UINT64_MAX || right_span->end == UINT64_MAX) return 1;
  if (!add_terms(&search, left) || !add_terms(&search, right)) return 1;
  search.rest[search.count] = 0;
  for (int i = search.count - 1; i >= 0; --i) {
    search.rest[i] = search.rest[i + 1] + search.terms[i].step * search.terms[i].last;
  }
  return makes(&search, 0, (int64_t)(right_span->end - 1 - left_span->first));
}

static int same_tensor(const DLTensor* left, const DLTensor* right) {
  if (aot_address(left) != aot_address(right) || left->ndim != right->ndim) return 0;
  if (aot_element_bytes(left) != aot_element_bytes(right)) return 0;
  for (int32_t i = 0; i < left->ndim; ++i) {
    if (left->shape[i] != right->shape[i]) return 0;
    if (left->shape[i] != 1 && left->strides[i] != right->strides[i]) return 0;
  }
  return 1;
}

static int64_t found(uint32_t other, uint32_t output) { return 1 + (int64_t)other * AOT_MAX_ARGUMENTS + output; }

int64_t aot_overlap(const aot_region_t* regions, uint32_t count, const aot_arguments_t* arguments) {
  span_t outputs[AOT_MAX_ARGUMENTS];
  uint32_t output_count = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const DLTensor* tensor = arguments->values[regions[i].slot].tensor;
    int crowded;
    span_t span = span_of(tensor, &crowded);
    for (uint32_t j = 0; j < output_count; ++j) {
      if (span.first >= outputs[j].end || outputs[j].first >= span.end) continue;
      const DLTensor* output = arguments->values[regions[j].slot].tensor;
      if (regions[i].may_be >> j & 1 && same_tensor(output, tensor)) continue;
      if (share_bytes(output, &outputs[j], tensor, &span)) return found(i, j);
    }
    if (!regions[i].is_output) continue;
    if (crowded) return found(i, i);
    outputs[output_count++] = span;
  }
  return 0;
}
