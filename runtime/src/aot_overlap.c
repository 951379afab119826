/* First and last bytes tell most tensors apart. If they do not, as those of two halves of a matrix's columns do not, a
 * search over the strides does. */
#include "aot_overlap.h"

#include <stddef.h>

/* With these, no sum below leaves 63 bits: twice the reach of all dimensions of two tensors, in bytes. */
#define LONGEST_REACH (INT64_C(1) << 48) /* elements: no memory is larger */
#define WIDEST_ELEMENT 256               /* bytes */
#define MAX_DIMENSIONS 16                /* of more than one element */

/* From the first byte to past the last one; empty if they are the same. */
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

/* `dims` gets the dimensions that have a second element, their number is returned; -1 if there are too many. */
static int long_dimensions(const DLTensor* tensor, int32_t dims[MAX_DIMENSIONS]) {
  int count = 0;
  for (int32_t i = 0; i < tensor->ndim; ++i) {
    if (tensor->shape[i] <= 1) continue;
    if (count == MAX_DIMENSIONS) return -1;
    dims[count++] = i;
  }
  return count;
}

static int is_empty(const DLTensor* tensor) {
  for (int32_t i = 0; i < tensor->ndim; ++i) {
    if (tensor->shape[i] <= 0) return 1;
  }
  return 0;
}

static span_t span_of(const DLTensor* tensor) {
  int32_t dims[MAX_DIMENSIONS];
  if (!has_memory(tensor) || is_empty(tensor)) return nothing;
  int64_t below = 0, above = 0, size = aot_element_bytes(tensor);
  int count = long_dimensions(tensor, dims);
  if (size == 0) return nothing;
  if (count < 0 || size > WIDEST_ELEMENT) return everything;
  for (int i = 0; i < count; ++i) {
    int64_t reach;
    if (__builtin_mul_overflow(tensor->shape[dims[i]] - 1, tensor->strides[dims[i]], &reach)) return everything;
    if (reach < -LONGEST_REACH || reach > LONGEST_REACH) return everything;
    if (reach < 0) below += reach;
    else above += reach;
  }
  span_t span = {aot_address(tensor) + (uint64_t)(below * size), aot_address(tensor) + (uint64_t)((above + 1) * size)};
  return span;
}

static int is_everything(const span_t* span) { return span->end == UINT64_MAX; }

/* What two tensors reach, as terms: the bytes of a tensor are those at `step * k` past the first, added up over its
 * terms, each with its own k from 0 to `last`. */
typedef struct {
  int64_t step;
  int64_t last;
} term_t;

#define MAX_TERMS (2 * MAX_DIMENSIONS + 1) /* two tensors', and the bytes of an element */
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

/* The tensor has a span that is not everything. */
static int add_terms(search_t* search, const DLTensor* tensor) {
  int32_t dims[MAX_DIMENSIONS];
  int64_t size = aot_element_bytes(tensor);
  int count = long_dimensions(tensor, dims), fits = add_term(search, 1, size - 1);
  for (int i = 0; i < count; ++i) {
    fits &= add_term(search, tensor->strides[dims[i]] * size, tensor->shape[dims[i]] - 1);
  }
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

static int search_for(search_t* search, int64_t sum) {
  search->work = 0;
  search->rest[search->count] = 0;
  for (int i = search->count - 1; i >= 0; --i) {
    search->rest[i] = search->rest[i + 1] + search->terms[i].step * search->terms[i].last;
  }
  return makes(search, 0, sum);
}

/* Both tensors have memory, and their spans meet. A byte of one is a byte of the other if the terms of both, those of
 * the second counted from its last byte down, add up to the distance from the first's first to the second's last. */
static int share_bytes(const DLTensor* left, const span_t* left_span, const DLTensor* right, const span_t* right_span) {
  search_t search;
  search.count = 0;
  if (is_everything(left_span) || is_everything(right_span)) return 1;
  if (!add_terms(&search, left) || !add_terms(&search, right)) return 1;
  return search_for(&search, (int64_t)(right_span->end - 1 - left_span->first));
}

/* The strides, without their signs, and extents of a tensor's longer dimensions: the largest stride first. */
static int sorted_terms(const DLTensor* tensor, term_t sorted[MAX_DIMENSIONS]) {
  int32_t dims[MAX_DIMENSIONS];
  int count = long_dimensions(tensor, dims);
  for (int i = 0; i < count; ++i) {
    int64_t stride = tensor->strides[dims[i]];
    term_t term = {stride < 0 ? -stride : stride, tensor->shape[dims[i]] - 1};
    int at = i;
    for (; at > 0 && sorted[at - 1].step < term.step; --at) sorted[at] = sorted[at - 1];
    sorted[at] = term;
  }
  return count;
}

/* Whether two elements of a tensor are the same memory. The tensor has a span that is not everything.
 *
 * Two such elements differ by d[i] indices in each dimension, and the strides times d[i] add up to 0. Be k the largest
 * stride whose d is not 0: then d[k] >= 1 without loss, and the smaller ones bring back what it moved away. Counted from
 * their most negative sum, they are terms with twice the extents, so that the search for common bytes answers this. */
static int shares_with_itself(const DLTensor* tensor) {
  term_t sorted[MAX_DIMENSIONS];
  int count = sorted_terms(tensor, sorted);
  int64_t below = 0; /* the reach of the smaller strides */
  for (int k = count - 1; k >= 0; --k) {
    int64_t step = sorted[k].step;
    search_t search;
    if (step == 0) return 1;
    if (step <= below) {
      search.count = 0;
      add_term(&search, step, sorted[k].last - 1);
      for (int i = k + 1; i < count; ++i) add_term(&search, sorted[i].step, 2 * sorted[i].last);
      if (search_for(&search, below - step)) return 1;
    }
    below += step * sorted[k].last;
  }
  return 0;
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

static int overlaps_itself(const DLTensor* tensor, const span_t* span) {
  if (span->first == span->end) return 0;
  return is_everything(span) || shares_with_itself(tensor);
}

int64_t aot_overlap(const aot_region_t* regions, uint32_t count, const aot_arguments_t* arguments) {
  span_t outputs[AOT_MAX_ARGUMENTS];
  uint32_t output_count = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const DLTensor* tensor = arguments->values[regions[i].slot].tensor;
    span_t span = span_of(tensor);
    for (uint32_t j = 0; j < output_count; ++j) {
      if (span.first >= outputs[j].end || outputs[j].first >= span.end) continue;
      const DLTensor* output = arguments->values[regions[j].slot].tensor;
      if (regions[i].may_be >> j & 1 && same_tensor(output, tensor)) continue;
      if (share_bytes(output, &outputs[j], tensor, &span)) return found(i, j);
    }
    if (!regions[i].is_output) continue;
    if (overlaps_itself(tensor, &span)) return found(i, i);
    outputs[output_count++] = span;
  }
  return 0;
}
