#include "aot_tuning.h"

#include <stdlib.h>
#include <string.h>

#include "aot_error.h"
#include "aot_select.h"

#define SINCE_MINOR 2 /* kernel libraries of older tables do not say what they can be tuned by */

const aot_tuning_t* aot_tuning_find(const aot_function_t* function, const char* arch, const aot_device_t* device) {
  for (uint32_t i = 0; i < function->tuning_count; ++i) {
    const aot_tuning_t* table = &function->tunings[i];
    if (table->multiprocessors == device->multiprocessors && strcmp(table->device, device->name) == 0 &&
        strcmp(table->arch, arch) == 0) {
      return table;
    }
  }
  return NULL;
}

static const aot_variant_t* find_variant(const aot_group_t* group, const char* name) {
  for (uint32_t i = 0; i < group->variant_count; ++i) {
    if (strcmp(group->variants[i].name, name) == 0) return &group->variants[i];
  }
  return NULL;
}

static int raise_unfit(const aot_tuning_t* table, const aot_group_t* group, const char* reason, const char* name) {
  return aot_raise("AotBundleError", "%s: the table for %s (%d multiprocessors) %s%s\nhint: rebuild the bundle", group->name,
                   table->device, table->multiprocessors, reason, name);
}

/* Whether two variants of a library have the same requirements. These are numbered over the library, each once. */
static int take_the_same_calls(const aot_variant_t* one, const aot_variant_t* other) {
  if (one->requirement_count != other->requirement_count) return 0;
  for (uint32_t i = 0; i < one->requirement_count; ++i) {
    uint32_t at = 0;
    while (at < other->requirement_count && other->requirements[at] != one->requirements[i]) ++at;
    if (at == other->requirement_count) return 0;
  }
  return 1;
}

/* Bounds ascend, there is a cell for every combination of bins, and every cell names a variant. */
static int is_sound(const aot_tuned_set_t* set, uint32_t extent_count) {
  const int64_t* bounds = set->bounds;
  uint64_t cells = 1;
  if (set->extent_count != extent_count || set->variant_count == 0) return 0;
  for (uint32_t i = 0; i < extent_count; ++i) {
    for (uint32_t at = 1; at < set->bound_counts[i]; ++at) {
      if (bounds[at - 1] >= bounds[at]) return 0;
    }
    bounds += set->bound_counts[i];
    cells *= (uint64_t)set->bound_counts[i] + 1;
    if (cells > AOT_MAX_CELLS) return 0;
  }
  if (cells != set->cell_count) return 0;
  for (uint32_t i = 0; i < set->cell_count; ++i) {
    if (set->cells[i] >= set->variant_count) return 0;
  }
  return 1;
}

static int resolve_set(aot_tuned_t* tuned, aot_tuned_here_t* here, const aot_group_t* group) {
  const aot_tuned_set_t* set = here->table;
  if (!is_sound(set, tuned->tunable->count)) {
    return raise_unfit(tuned->table, group, "has bins that do not fit together", "");
  }
  here->same_calls = 1;
  for (uint32_t i = 0; i < set->variant_count; ++i) {
    const aot_variant_t* variant = find_variant(group, set->variants[i]);
    if (variant == NULL) {
      return raise_unfit(tuned->table, group, "names a variant that is not in the bundle: ", set->variants[i]);
    }
    here->variants[i] = variant;
    here->same_calls &= take_the_same_calls(here->variants[0], variant);
    tuned->of[variant - group->variants] = here;
  }
  return 0;
}

static uint32_t count_variants(const aot_tuning_t* table) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < table->set_count; ++i) count += table->sets[i].variant_count;
  return count;
}

static aot_tuned_t* allocate(const aot_tuning_t* table, const aot_group_t* group) {
  aot_tuned_t* tuned = (aot_tuned_t*)calloc(1, sizeof(aot_tuned_t) + group->variant_count * sizeof(void*));
  if (tuned == NULL) return NULL;
  tuned->sets = (aot_tuned_here_t*)calloc(table->set_count + 1, sizeof *tuned->sets);
  tuned->variants = (const aot_variant_t**)calloc(count_variants(table) + 1, sizeof *tuned->variants);
  if (tuned->sets != NULL && tuned->variants != NULL) return tuned;
  aot_tuning_free(tuned);
  return NULL;
}

aot_tuned_t* aot_tuning_resolve(const aot_tuning_t* table, const aot_kernel_library_t* library, const aot_group_t* group) {
  aot_tuned_t* tuned = allocate(table, group);
  if (tuned == NULL) {
    aot_raise_out_of_memory();
    return NULL;
  }
  tuned->table = table;
  int status = 0;
  if (library->minor < SINCE_MINOR || library->tunables == NULL) {
    status = raise_unfit(table, group, "is for a kernel library that cannot be tuned", "");
  } else {
    tuned->tunable = &library->tunables[group - library->groups];
  }
  const aot_variant_t** variants = tuned->variants;
  for (uint32_t i = 0; i < table->set_count && status == 0; ++i) {
    tuned->sets[i].table = &table->sets[i];
    tuned->sets[i].variants = variants;
    variants += table->sets[i].variant_count;
    status = resolve_set(tuned, &tuned->sets[i], group);
  }
  if (status == 0) return tuned;
  aot_tuning_free(tuned);
  return NULL;
}

void aot_tuning_free(aot_tuned_t* tuned) {
  if (tuned == NULL) return;
  free(tuned->sets);
  free((void*)tuned->variants);
  free(tuned);
}

/* How many of the bounds are not above the value. */
static uint32_t bin_of(const int64_t* bounds, uint32_t count, int64_t value) {
  uint32_t low = 0;
  while (count > 0) {
    uint32_t half = count / 2;
    int above = bounds[low + half] <= value;
    low += above ? half + 1 : 0;
    count = above ? count - half - 1 : half;
  }
  return low;
}

const aot_variant_t* aot_tuned_choose(const aot_tuned_t* tuned, const aot_kernel_library_t* library,
                                      const aot_group_t* group, const aot_variant_t* variant,
                                      const aot_arguments_t* arguments) {
  size_t index = (size_t)(variant - group->variants);
  const aot_tuned_here_t* here = tuned->of[index];
  if (here == NULL) return variant;
  const aot_tuned_set_t* set = here->table;
  const uint32_t* subjects = tuned->tunable->subjects + index * tuned->tunable->count;
  const int64_t* bounds = set->bounds;
  uint32_t cell = 0;
  for (uint32_t i = 0; i < set->extent_count; ++i) {
    uint32_t count = set->bound_counts[i];
    int64_t value = aot_asked_value(library, &library->subjects[subjects[i]], arguments);
    cell = cell * (count + 1) + bin_of(bounds, count, value);
    bounds += count;
  }
  const aot_variant_t* measured = here->variants[set->cells[cell]];
  if (here->same_calls || measured == variant) return measured;
  return aot_variant_unmet(library, measured, arguments) == NULL ? measured : variant;
}
