#include "aot_tuning.h"

#include <stdlib.h>
#include <string.h>

#include "aot_error.h"

#define SINCE_MINOR 2 /* kernel libraries of older tables do not say what they can be tuned by */
#define PLAIN_SINCE_MINOR 4 /* and these have one tree only, which asks for preferences */

int aot_tuning_is_for(const aot_tuning_t* table, const aot_device_t* device) {
  return table->multiprocessors == device->multiprocessors && strcmp(table->device, device->name) == 0;
}

/* By which factor two numbers differ; 1 if one of them is not known. */
static double factor(int32_t one, int32_t other) {
  if (one <= 0 || other <= 0) return 1.0;
  return one > other ? (double)one / other : (double)other / one;
}

/* How far the device of a table is from another one: 1 if they are alike. A slice has a share of the bandwidth, whatever
 * its driver reports. */
static double distance(const aot_tuning_t* table, const aot_device_t* device) {
  int32_t bandwidth = strstr(device->name, " MIG ") == NULL ? device->bandwidth : 0;
  return factor(table->multiprocessors, device->multiprocessors) * factor(table->bandwidth, bandwidth);
}

int aot_tuning_needs_bandwidth(const aot_function_t* function, const aot_device_t* device) {
  for (uint32_t i = 0; i < function->tuning_count; ++i) {
    if (aot_tuning_is_for(&function->tunings[i], device)) return 0;
  }
  return function->tuning_count > 0;
}

static int same_capability(aot_capability_t one, aot_capability_t other) {
  return one.major == other.major && one.minor == other.minor;
}

const aot_tuning_t* aot_tuning_find(const aot_function_t* function, const char* arch, const aot_device_t* device) {
  const aot_tuning_t* nearest = NULL;
  if (device->multiprocessors <= 0) return NULL;
  for (uint32_t i = 0; i < function->tuning_count; ++i) {
    const aot_tuning_t* table = &function->tunings[i];
    if (strcmp(table->arch, arch) != 0) continue;
    if (aot_tuning_is_for(table, device)) return table;
    if (!same_capability(table->capability, device->capability)) continue;
    if (nearest == NULL || distance(table, device) < distance(nearest, device)) nearest = table;
  }
  return nearest;
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

static int is_among(const uint32_t* numbers, uint32_t count, uint32_t number) {
  uint32_t at = 0;
  while (at < count && numbers[at] != number) ++at;
  return at < count;
}

/* Requirements are numbered over the library, each once. */
static int has_requirement(const aot_variant_t* variant, uint32_t requirement) {
  return is_among(variant->requirements, variant->requirement_count, requirement);
}

/* Whether some variant of the set lacks a requirement of choice i. What all have, the first has, and not as its own. */
static int is_own(const aot_tuned_here_t* set, uint32_t i, uint32_t requirement) {
  const aot_tuned_choice_t* first = &set->choices[0];
  if (i > 0) return !has_requirement(first->variant, requirement) || is_among(first->own, first->own_count, requirement);
  for (uint32_t other = 1; other < set->table->variant_count; ++other) {
    if (!has_requirement(set->choices[other].variant, requirement)) return 1;
  }
  return 0;
}

/* Writes what not all variants of a set ask for to `own`. Returns the place behind it. */
static uint32_t* resolve_own(const aot_tuned_here_t* set, uint32_t* own) {
  for (uint32_t i = 0; i < set->table->variant_count; ++i) {
    aot_tuned_choice_t* choice = &set->choices[i];
    choice->own = own;
    for (uint32_t at = 0; at < choice->variant->requirement_count; ++at) {
      uint32_t requirement = choice->variant->requirements[at];
      if (is_own(set, i, requirement)) own[choice->own_count++] = requirement;
    }
    own += choice->own_count;
  }
  return own;
}

/* Bounds ascend, there is a row for every combination of bins of all extents but the last, it has a cell for every bin of that
 * one, and every cell names a variant. */
static int is_sound(const aot_tuned_set_t* set, uint32_t extent_count) {
  const int64_t* bounds = set->bounds;
  uint64_t rows = 1, width = 1;
  if (set->extent_count != extent_count || extent_count > AOT_MAX_TUNED_BY || set->variant_count == 0) return 0;
  for (uint32_t i = 0; i < extent_count; ++i) {
    for (uint32_t at = 1; at < set->bound_counts[i]; ++at) {
      if (bounds[at - 1] >= bounds[at]) return 0;
    }
    bounds += set->bound_counts[i];
    rows *= width;
    width = (uint64_t)set->bound_counts[i] + 1;
    if (rows > AOT_MAX_BINS || width > AOT_MAX_BINS || rows * width > AOT_MAX_CELLS) return 0;
  }
  if (rows != set->row_count || set->cell_count % width != 0) return 0;
  for (uint32_t i = 0; i < set->row_count; ++i) {
    if ((aot_tuned_row(set->rows, i) + 1) * width > set->cell_count) return 0;
  }
  for (uint32_t i = 0; i < set->cell_count; ++i) {
    if (set->cells[i] >= set->variant_count) return 0;
  }
  return 1;
}

static void index_bounds(aot_tuned_here_t* here) {
  const int64_t* bounds = here->table->bounds;
  uint32_t step = here->table->row_count;
  here->width = 1;
  here->extent_count = here->table->extent_count;
  for (uint32_t i = 0; i < here->extent_count; ++i) {
    aot_tuned_extent_t* extent = &here->extents[i];
    extent->bounds = bounds;
    extent->count = here->table->bound_counts[i];
    here->width = extent->count + 1;
    extent->step = i + 1 < here->extent_count ? step /= extent->count + 1 : 0;
    for (uint32_t bit = 0, at = 0; bit < 63; ++bit) {
      while (at < extent->count && bounds[at] <= (int64_t)1 << bit) ++at;
      extent->first[bit] = (uint16_t)at; /* there are fewer than AOT_MAX_BINS */
    }
    extent->first[63] = (uint16_t)extent->count;
    bounds += extent->count;
  }
}

/* How the arguments of a call show the extents, if the tree found this variant. */
static void resolve_variant(aot_tuned_variant_t* known, const aot_tuned_here_t* set, const aot_kernel_library_t* library,
                            const uint32_t* subjects) {
  known->set = set;
  known->subjects = subjects;
  known->is_plain = 1;
  for (uint32_t i = 0; i < set->extent_count; ++i) {
    const aot_subject_t* subject = &library->subjects[subjects[i]];
    known->is_plain &= subject->operation == AOT_SUBJECT_EXTENT && !subject->optional;
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
  here->rows = set->rows;
  here->cells = set->cells;
  index_bounds(here);
  for (uint32_t i = 0; i < set->variant_count; ++i) {
    const aot_variant_t* variant = find_variant(group, set->variants[i]);
    if (variant == NULL) {
      return raise_unfit(tuned->table, group, "names a variant that is not in the bundle: ", set->variants[i]);
    }
    here->choices[i].variant = variant;
  }
  for (uint32_t i = 0; i < set->variant_count; ++i) {
    size_t index = (size_t)(here->choices[i].variant - group->variants);
    resolve_variant(&tuned->of[index], here, library, tuned->tunable->subjects + index * tuned->tunable->count);
  }
  return 0;
}

static uint32_t count_variants(const aot_tuning_t* table) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < table->set_count; ++i) count += table->sets[i].variant_count;
  return count;
}

/* Of all variants that a table names, as often as it names them. */
static size_t count_requirements(const aot_tuning_t* table, const aot_group_t* group) {
  size_t count = 0;
  for (uint32_t i = 0; i < table->set_count; ++i) {
    for (uint32_t at = 0; at < table->sets[i].variant_count; ++at) {
      const aot_variant_t* variant = find_variant(group, table->sets[i].variants[at]);
      if (variant != NULL) count += variant->requirement_count;
    }
  }
  return count;
}

static aot_tuned_t* allocate(const aot_tuning_t* table, const aot_group_t* group) {
  aot_tuned_t* tuned = (aot_tuned_t*)calloc(1, sizeof(aot_tuned_t) + group->variant_count * sizeof(aot_tuned_variant_t));
  if (tuned == NULL) return NULL;
  tuned->sets = (aot_tuned_here_t*)calloc(table->set_count + 1, sizeof *tuned->sets);
  tuned->choices = (aot_tuned_choice_t*)calloc(count_variants(table) + 1, sizeof *tuned->choices);
  tuned->own = (uint32_t*)calloc(count_requirements(table, group) + 1, sizeof *tuned->own);
  if (tuned->sets != NULL && tuned->choices != NULL && tuned->own != NULL) return tuned;
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
    tuned->root = library->minor < PLAIN_SINCE_MINOR ? group->root : library->plain_roots[group - library->groups];
  }
  aot_tuned_choice_t* choices = tuned->choices;
  uint32_t* own = tuned->own;
  for (uint32_t i = 0; i < table->set_count && status == 0; ++i) {
    tuned->sets[i].table = &table->sets[i];
    tuned->sets[i].choices = choices;
    choices += table->sets[i].variant_count;
    status = resolve_set(tuned, &tuned->sets[i], library, group);
    if (status == 0) own = resolve_own(&tuned->sets[i], own);
  }
  if (status == 0) return tuned;
  aot_tuning_free(tuned);
  return NULL;
}

void aot_tuning_free(aot_tuned_t* tuned) {
  if (tuned == NULL) return;
  free(tuned->sets);
  free(tuned->choices);
  free(tuned->own);
  free(tuned);
}

uint32_t aot_tuned_cell_slowly(const aot_tuned_variant_t* known, const aot_kernel_library_t* library,
                               const aot_arguments_t* arguments) {
  uint32_t row = 0, bin = 0;
  for (uint32_t i = 0; i < known->set->extent_count; ++i) {
    int64_t value = aot_subject_value(library, &library->subjects[known->subjects[i]], arguments);
    bin = aot_tuned_bin(&known->set->extents[i], value);
    row += known->set->extents[i].step * bin;
  }
  return aot_tuned_row(known->set->rows, row) * known->set->width + bin;
}
