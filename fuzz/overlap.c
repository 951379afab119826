/* aot_overlap against brute force: random small tensors, every byte counted. Prints one line per disagreement.
 *
 * usage: overlap SEED FIRST COUNT */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aot_overlap.h"
#include "random.h"

#define RANK 4
#define WINDOW (1 << 16)
#define BASE UINT64_C(0x10000000)

typedef struct {
  DLTensor tensor;
  int64_t shape[RANK], strides[RANK];
} random_tensor_t;

static void fill_small(random_tensor_t* one) {
  static const uint8_t bits[] = {4, 8, 16, 32, 64, 128};
  memset(one, 0, sizeof(*one));
  one->tensor.data = (void*)(uintptr_t)(BASE + (uint64_t)below(64));
  one->tensor.byte_offset = (uint64_t)below(3) * 8;
  one->tensor.dtype.bits = bits[below(6)];
  one->tensor.dtype.lanes = (uint16_t)(1 + (below(8) == 0));
  one->tensor.ndim = (int32_t)below(RANK + 1);
  one->tensor.shape = one->shape;
  one->tensor.strides = one->strides;
  int64_t contiguous = 1;
  int row_major = below(3) == 0;
  for (int i = RANK - 1; i >= 0; --i) {
    one->shape[i] = below(12) == 0 ? 0 : 1 + below(5);
    one->strides[i] = row_major ? contiguous + (below(6) == 0) : below(41) - 20;
    contiguous *= one->shape[i];
  }
}

/* For the sanitizer alone: no memory is that large, so that nothing is counted. */
static void fill_absurd(random_tensor_t* one) {
  fill_small(one);
  one->tensor.ndim = (int32_t)(below(16) == 0 ? INT32_MIN + below(3) : below(RANK + 1));
  for (int i = 0; i < RANK; ++i) {
    int64_t edges[] = {INT64_MIN, INT64_MIN + 1, -1, 0, 1, INT64_MAX - 1, INT64_MAX, INT64_C(1) << 32, (int64_t)next()};
    one->shape[i] = edges[below(9)];
    one->strides[i] = edges[below(9)];
  }
}

/* The bytes of a tensor, and the stretch of them: what lies outside is 0. */
typedef struct {
  uint8_t seen[WINDOW];
  int64_t first, end;
} bytes_t;

/* Marks every byte of every element; returns whether two elements share one. */
static int visit(const random_tensor_t* one, bytes_t* bytes) {
  int64_t index[RANK] = {0}, size = aot_element_bytes(&one->tensor);
  int shared = 0;
  if (bytes->end > bytes->first) memset(bytes->seen + bytes->first, 0, (size_t)(bytes->end - bytes->first));
  bytes->first = WINDOW;
  bytes->end = 0;
  for (int i = 0; i < one->tensor.ndim; ++i) {
    if (one->shape[i] <= 0) return 0;
  }
  for (;;) {
    int64_t at = (int64_t)(aot_address(&one->tensor) - BASE) + WINDOW / 2;
    for (int i = 0; i < one->tensor.ndim; ++i) at += index[i] * one->strides[i] * size;
    if (at < 0 || at + size > WINDOW) abort(); /* the window is too small for these numbers */
    shared |= bytes->seen[at];
    memset(bytes->seen + at, 1, (size_t)size);
    if (at < bytes->first) bytes->first = at;
    if (at + size > bytes->end) bytes->end = at + size;
    int i = one->tensor.ndim - 1;
    while (i >= 0 && ++index[i] == one->shape[i]) index[i--] = 0;
    if (i < 0) return shared;
  }
}

static void print_tensor(const random_tensor_t* one) {
  printf(" [at %" PRIu64 " bits %d x %d:", aot_address(&one->tensor) - BASE, one->tensor.dtype.bits,
         one->tensor.dtype.lanes);
  for (int i = 0; i < one->tensor.ndim; ++i) printf(" %" PRId64 "*%" PRId64, one->shape[i], one->strides[i]);
  printf("]");
}

static bytes_t left, right;
static uint64_t cautious, overlapping;

static int64_t answer(random_tensor_t tensors[2], int second_is_output, int* plainly) {
  aot_arguments_t arguments;
  aot_region_t regions[2];
  memset(&arguments, 0, sizeof(arguments));
  memset(regions, 0, sizeof(regions));
  arguments.values[0].tensor = &tensors[0].tensor;
  arguments.values[1].tensor = &tensors[1].tensor;
  regions[0].is_output = 1;
  regions[1].slot = 1;
  regions[1].is_output = (uint8_t)second_is_output;
  *plainly = aot_plainly_apart(regions, 2, &arguments);
  return aot_overlap(regions, 2, &arguments);
}

/* Whether the case is a disagreement. */
static int check(uint64_t number) {
  random_tensor_t tensors[2];
  int plainly, expected = 0, output = below(2) == 0;
  if (below(8) == 0) {
    fill_absurd(&tensors[0]);
    fill_absurd(&tensors[1]);
    answer(tensors, output, &plainly);
    return 0;
  }
  fill_small(&tensors[0]);
  fill_small(&tensors[1]);
  expected = visit(&tensors[0], &left);
  int second = visit(&tensors[1], &right);
  if (output) expected |= second;
  for (int64_t i = left.first; i < left.end && !expected; ++i) expected = left.seen[i] & right.seen[i];
  int64_t said = answer(tensors, output, &plainly);
  overlapping += (uint64_t)expected;
  if (expected && (said == 0 || plainly)) {
    printf("case %" PRIu64 ": an overlap was missed%s:", number, said ? " by the quick test" : "");
    print_tensor(&tensors[0]);
    print_tensor(&tensors[1]);
    printf("\n");
    return 1;
  }
  cautious += !expected && said != 0;
  return 0;
}

int main(int count, char** arguments) {
  if (count != 4) return 2;
  uint64_t seed = strtoull(arguments[1], NULL, 10), first = strtoull(arguments[2], NULL, 10);
  uint64_t cases = strtoull(arguments[3], NULL, 10), wrong = 0;
  for (uint64_t number = first; number < first + cases; ++number) {
    state = seed * UINT64_C(0xD1342543DE82EF95) + number;
    wrong += (uint64_t)check(number);
  }
  printf("cases %" PRIu64 " overlapping %" PRIu64 " cautious %" PRIu64 " findings %" PRIu64 "\n", cases, overlapping,
         cautious, wrong);
  return wrong != 0;
}
