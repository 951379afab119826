/* What is best on a device: tables that the builder compiled into the entry library.
 *
 * With a table, the tree of a kernel library finds the first variant that takes the call, whatever it prefers.
 * If the table covers that variant, it names the one that runs, by the bins that the extents of the call lie in. Where it
 * says nothing, and on a device without a table, the tree finds the variant as ever, by preferences.
 */
#ifndef AOT_TUNING_H_
#define AOT_TUNING_H_

#include "aot_arguments.h"
#include "aot_bundle.h"
#include "aot_select.h"

/* An extent of a set: where the bins of values begin, by the number of a value's highest bit. Bounds that lie apart by
 * factors of two or more, as those of extents do, are found with one or two comparisons, and many with a few. */
typedef struct {
  const int64_t* bounds;
  uint32_t count;
  uint32_t step; /* how far apart the rows of neighbouring bins are: 0 for the last extent, whose bins are in one row */
  uint16_t first[64];
} aot_tuned_extent_t;

/* A variant of a set. A call that another one of them takes meets what they have in common: that is not asked again. */
typedef struct {
  const aot_variant_t* variant;
  const uint32_t* own; /* requirements that not all variants of the set have */
  uint32_t own_count;
} aot_tuned_choice_t;

/* A set of variants that a call may choose among, once its names were found in the kernel library. */
typedef struct {
  const aot_tuned_set_t* table;
  aot_tuned_choice_t* choices; /* as many as the table names */
  const uint8_t* rows;
  const uint8_t* cells;
  uint32_t width; /* cells of a row */
  uint32_t extent_count;
  aot_tuned_extent_t extents[AOT_MAX_TUNED_BY];
} aot_tuned_here_t;

/* What a call looks at if the tree found this variant: its set, or NULL, and how its arguments show the extents. */
typedef struct {
  const aot_tuned_here_t* set;
  uint8_t is_plain; /* all are extents of arguments */
  uint8_t slots[AOT_MAX_TUNED_BY];
  uint8_t dims[AOT_MAX_TUNED_BY];
  const uint32_t* subjects; /* numbers of the library's */
} aot_tuned_variant_t;

/* A table that fits its kernel library; made by aot_tuning_resolve, once per function and device. */
struct aot_tuned {
  const aot_tuning_t* table;
  const aot_tunable_t* tunable;
  int32_t root; /* of the tree that asks for no preferences */
  aot_tuned_here_t* sets;
  aot_tuned_choice_t* choices; /* of all sets, one after the other */
  uint32_t* own;               /* of all choices, likewise */
  aot_tuned_variant_t of[1];   /* by variant of the group. The allocation is as long as that takes. */
};

/* Whether a table was made for just that device. A slice of a GPU (MIG) is another device. */
int aot_tuning_is_for(const aot_tuning_t* table, const aot_device_t* device);

/* Whether the choice of a table goes by the bandwidth: there are some, and none was made for this very device. */
int aot_tuning_needs_bandwidth(const aot_function_t* function, const aot_device_t* device);

/* The function's table for that device and architecture. If there is none, that of the nearest device of the same compute
 * capability, by multiprocessors and memory bandwidth. NULL if there is none either, or if the device is not known. */
const aot_tuning_t* aot_tuning_find(const aot_function_t* function, const char* arch, const aot_device_t* device);

/* Checks the whole table against the kernel library, so that no call has to. NULL with an error raised. */
aot_tuned_t* aot_tuning_resolve(const aot_tuning_t* table, const aot_kernel_library_t* library, const aot_group_t* group);
void aot_tuning_free(aot_tuned_t* tuned);

/* How many of the bounds are not above the value. */
static inline uint32_t aot_tuned_bin(const aot_tuned_extent_t* extent, int64_t value) {
  const uint16_t* first = extent->first + (value > 0 ? 63 - __builtin_clzll((uint64_t)value) : 0);
  uint32_t low = value > 0 ? first[0] : 0;
  uint32_t high = value > 0 ? first[1] : first[0];
  while (low < high) {
    uint32_t middle = (low + high) / 2;
    if (extent->bounds[middle] <= value) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

static inline uint32_t aot_tuned_row(const uint8_t* rows, uint32_t at) {
  return (uint32_t)rows[2 * at] | (uint32_t)rows[2 * at + 1] << 8;
}

/* The cell of a call by what is no extent of an argument. */
uint32_t aot_tuned_cell_slowly(const aot_tuned_variant_t* known, const aot_kernel_library_t* library,
                               const aot_arguments_t* arguments) __attribute__((cold));

static inline uint32_t aot_tuned_cell(const aot_tuned_variant_t* known, const aot_kernel_library_t* library,
                                      const aot_arguments_t* arguments) {
  const aot_tuned_here_t* set = known->set;
  uint32_t row = 0, bin = 0;
  if (__builtin_expect(!known->is_plain, 0)) return aot_tuned_cell_slowly(known, library, arguments);
  for (uint32_t i = 0; i < set->extent_count; ++i) {
    const DLTensor* tensor = arguments->values[known->slots[i]].tensor;
    /* An extent that is missing lies below every bound, in the first bin. */
    int is_there = tensor != NULL && known->dims[i] < tensor->ndim;
    bin = __builtin_expect(is_there, 1) ? aot_tuned_bin(&set->extents[i], tensor->shape[known->dims[i]]) : 0;
    row += set->extents[i].step * bin;
  }
  return aot_tuned_row(set->rows, row) * set->width + bin;
}

/* The variant that the table names for a call; NULL if it says nothing, or names one that does not take the call. It is
 * inline, since calls wait for it. */
__attribute__((always_inline)) static inline const aot_variant_t* aot_tuned_choose(const aot_tuned_t* tuned,
                                                                                   const aot_kernel_library_t* library,
                                                                                   const aot_group_t* group,
                                                                                   const aot_arguments_t* arguments) {
  const aot_variant_t* taker = aot_tree_choose(library, group, tuned->root, arguments);
  if (taker == NULL) return NULL;
  const aot_tuned_variant_t* known = &tuned->of[taker - group->variants];
  if (known->set == NULL) return NULL;
  uint32_t cell = aot_tuned_cell(known, library, arguments);
  const aot_tuned_choice_t* choice = &known->set->choices[known->set->cells[cell]];
  if (choice->own_count != 0 && aot_first_unmet(library, choice->own, choice->own_count, arguments) != NULL) return NULL;
  return choice->variant;
}

#endif /* AOT_TUNING_H_ */
