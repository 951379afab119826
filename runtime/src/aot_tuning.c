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
  if (set->extent_count != extent_count || extent_count > AOT_MAX_TUNED_BY || set->variant_count == 0) return 0;
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

static void index_bounds(aot_tuned_here_t* here) {
  const int64_t* bounds = here->table->bounds;
  uint32_t step = here->table->cell_count;
  here->extent_count = here->table->extent_count;
  for (uint32_t i = 0; i < here->extent_count; ++i) {
    aot_tuned_extent_t* extent = &here->extents[i];
    extent->bounds = bounds;
    extent->count = here->table->bound_counts[i];
    extent->step = step /= extent->count + 1;
    for (uint32_t bit = 0, at = 0; bit < 63; ++bit) {
      while (at < extent->count && bounds[at] <= (int64_t)1 << bit) ++at;
      extent->first[bit] = (uint16_t)at; /* there are fewer than AOT_MAX_CELLS */
    }
    bounds += extent->count;
  }
}

/* How the arguments of a call show the extents, if the tree found this variant. */
static void resolve_variant(aot_tuned_variant_t* known, const aot_tuned_here_t* set, const aot_kernel_library_t* library,
                            const uint32_t* subjects) {
  known->set = set;
  known->subjects = subjects;
  known->is_plain = set->same_calls != 0;
  for (uint32_t i = 0; i < set->extent_count; ++i) {
    const aot_subject_t* subject = &library->subjects[subjects[i]];
    known->is_plain &= subject->operation == AOT_SUBJECT_EXTENT;
    known->slots[i] = subject->slot;
    known->dims[i] = subject->dim;
  }
}

static int resolve_set(aot_tuned_t* tuned, aot_tuned_here_t* here, const aot_kernel_library_t* library,
                       const aot_group_t* group) {
  const aot_tuned_set_t* set = here->table;
  if (!is_sound(set, tuned->tunable->count)) {
    return raise_unfit(tuned->table, group, "has bins that do not fit together", "");
  }
  here->same_calls = 1;
  here->cells = set->cells;
  index_bounds(here);
  for (uint32_t i = 0; i < set->variant_count; ++i) {
    const aot_variant_t* variant = find_variant(group, set->variants[i]);
    if (variant == NULL) {
      return raise_unfit(tuned->table, group, "names a variant that is not in the bundle: ", set->variants[i]);
    }
    here->variants[i] = variant;
    here->same_calls &= take_the_same_calls(here->variants[0], variant);
  }
  for (uint32_t i = 0; i < set->variant_count; ++i) {
    size_t index = (size_t)(here->variants[i] - group->variants);
    resolve_variant(&tuned->of[index], here, library, tuned->tunable->subjects + index * tuned->tunable->count);
  }
  return 0;
}

static uint32_t count_variants(const aot_tuning_t* table) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < table->set_count; ++i) count += table->sets[i].variant_count;
  return count;
}

static aot_tuned_t* allocate(const aot_tuning_t* table, const aot_group_t* group) {
  aot_tuned_t* tuned = (aot_tuned_t*)calloc(1, sizeof(aot_tuned_t) + group->variant_count * sizeof(aot_tuned_variant_t));
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
    status = resolve_set(tuned, &tuned->sets[i], library, group);
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

const aot_variant_t* aot_tuned_choose_slowly(const aot_tuned_variant_t* known, const aot_kernel_library_t* library,
                                             const aot_variant_t* variant, const aot_arguments_t* arguments) {
  const aot_tuned_here_t* set = known->set;
  uint32_t cell = 0;
  for (uint32_t i = 0; i < set->extent_count; ++i) {
    int64_t value = aot_subject_value(library, &library->subjects[known->subjects[i]], arguments);
    cell += set->extents[i].step * aot_tuned_bin(&set->extents[i], value);
  }
  const aot_variant_t* measured = set->variants[set->cells[cell]];
  if (set->same_calls || measured == variant) return measured;
  return aot_variant_unmet(library, measured, arguments) == NULL ? measured : variant;
}
