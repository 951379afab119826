/* Whether what a call writes lies apart from whatever else it touches. */
#ifndef AOT_OVERLAP_H_
#define AOT_OVERLAP_H_

#include <stddef.h>

#include "aot_arguments.h"
#include "aot_tables.h"

/* 0 if every output lies apart from the other regions, or is one of those it may be, and no two of its own elements
 * share memory. Else the two regions that do, to be taken apart by the functions below: the same region twice if an
 * output's own elements share memory.
 *
 * Exact, but for layouts whose strides take a longer search than any tensor of a framework needs: they count as
 * overlapping, and so are refused. */
int64_t aot_overlap(const aot_region_t* regions, uint32_t count, const aot_arguments_t* arguments);

static inline uint32_t aot_overlap_output(int64_t overlap) { return (uint32_t)(overlap - 1) % AOT_MAX_ARGUMENTS; }
static inline uint32_t aot_overlap_other(int64_t overlap) { return (uint32_t)(overlap - 1) / AOT_MAX_ARGUMENTS; }

static inline uint64_t aot_address(const DLTensor* tensor) {
  return (uint64_t)(uintptr_t)tensor->data + tensor->byte_offset;
}

static inline int64_t aot_element_bytes(const DLTensor* tensor) {
  return ((int64_t)tensor->dtype.bits * tensor->dtype.lanes + 7) / 8;
}

/* Where a tensor lies, and whether it needs a closer look: bits from 31 on are set if an extent or a stride is not
 * positive or does not fit. */
typedef struct {
  uint64_t first;
  uint64_t end;
  uint64_t unusual;
} aot_plain_span_t;

static inline aot_plain_span_t aot_plain_span(const DLTensor* tensor, int is_output) {
  const int64_t *shape = tensor->shape, *strides = tensor->strides;
  uint64_t reach = 0, unusual = 0, crowded = 0;
  if (tensor->ndim == 1) { /* the loop, unrolled */
    uint64_t last = (uint64_t)shape[0] - 1, stride = (uint64_t)strides[0];
    reach = (uint64_t)(uint32_t)last * (uint32_t)stride;
    crowded = stride == 0;
    unusual = last | stride;
  } else if (tensor->ndim == 2) {
    uint64_t rows = (uint64_t)shape[0] - 1, columns = (uint64_t)shape[1] - 1;
    uint64_t row_stride = (uint64_t)strides[0], stride = (uint64_t)strides[1];
    reach = (uint64_t)(uint32_t)columns * (uint32_t)stride;
    crowded = row_stride <= reach || stride == 0;
    reach += (uint64_t)(uint32_t)rows * (uint32_t)row_stride;
    unusual = rows | columns | row_stride | stride;
  } else {
    for (int64_t i = (int64_t)tensor->ndim - 1; i >= 0; --i) { /* 64 bits: ndim may be anything */
      uint64_t last = (uint64_t)shape[i] - 1, stride = (uint64_t)strides[i];
      crowded |= stride <= reach;
      reach += (uint64_t)(uint32_t)last * (uint32_t)stride;
      unusual |= last | stride | reach >> 16;
    }
  }
  uint64_t first = aot_address(tensor);
  uint64_t end = first + (reach + 1) * (uint64_t)aot_element_bytes(tensor);
  aot_plain_span_t span = {first, end, unusual | (uint64_t)(is_output && crowded) << 31};
  return span;
}

/* Whether aot_overlap is surely 0, found in few instructions: so it is in almost every call, all of whose tensors have
 * positive extents and strides, outputs row-major, and no common address between first and last. */
static inline int aot_plainly_apart(const aot_region_t* regions, uint32_t count, const aot_arguments_t* arguments) {
  uint64_t unusual = 0;
  for (uint32_t i = 0; i < count && regions[i].is_output; ++i) {
    const DLTensor* output = arguments->values[regions[i].slot].tensor;
    if (output == NULL) continue; /* an optional argument */
    aot_plain_span_t written = aot_plain_span(output, 1);
    unusual |= written.unusual;
    for (uint32_t j = i + 1; j < count; ++j) {
      const DLTensor* tensor = arguments->values[regions[j].slot].tensor;
      if (tensor == NULL) continue;
      aot_plain_span_t other = aot_plain_span(tensor, 0);
      unusual |= other.unusual;
      if (other.first < written.end && written.first < other.end) return 0;
    }
  }
  return unusual >> 31 == 0;
}

#endif /* AOT_OVERLAP_H_ */
