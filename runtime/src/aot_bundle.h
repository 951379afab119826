/* A bundle as its entry library sees it: the public functions, where their code lies, and what of it has been opened so
 * far. The builder generates one `aot_this_bundle` per bundle. */
#ifndef AOT_BUNDLE_H_
#define AOT_BUNDLE_H_

#include "aot_arch.h"
#include "aot_driver.h"
#include "aot_tables.h"

typedef struct {
  const char* path; /* relative to the entry library's directory */
  uint64_t size;
  uint8_t digest[32];
} aot_file_t;

/* One kernel for one architecture. */
typedef struct {
  const char* arch_name;
  aot_arch_t arch;
  aot_file_t file;
  const aot_kernel_library_t* opened; /* written once, under the build's lock; set from the start in a static link */
  const char* anchor;                 /* static link: what makes the linker ask for this architecture's archive */
  const char* driver;                 /* the lowest driver that runs it: "570.26" */
  int32_t driver_cuda;                /* the CUDA version that this driver supports: 12080; 0 if it is not known */
} aot_build_t;

/* In a static link an architecture that the program declined is neither a file nor linked. */
static inline int aot_build_present(const aot_build_t* build) {
  return build->file.path != NULL || __atomic_load_n(&build->opened, __ATOMIC_ACQUIRE) != NULL;
}

typedef struct {
  const char* name;
  aot_build_t* builds;
  uint32_t build_count;
} aot_kernel_t;

#define AOT_MAX_BINS 65536   /* of the last extent of one set, and combinations of bins of the others */
#define AOT_MAX_CELLS 262144 /* combinations of all bins */
#define AOT_MAX_TUNED_BY 4   /* extents of one set */

/* Variants of one function that were measured against each other. `bounds` holds, for one extent after the other, the
 * lowest value of each bin but the first. A row of `cells` has a variant for each bin of the last extent, and `rows` a row's
 * number for each combination of bins of the others, in two bytes, the lower first: many combinations share a row. */
typedef struct {
  const char* const* variants;
  uint32_t variant_count;
  uint32_t extent_count;
  const uint32_t* bound_counts;
  const int64_t* bounds;
  const uint8_t* rows;
  uint32_t row_count;
  const uint8_t* cells;
  uint32_t cell_count;
} aot_tuned_set_t;

/* What is best of one function on one kind of device. */
typedef struct {
  const char* device; /* its name, as the driver gives it */
  int32_t multiprocessors;
  int32_t bandwidth; /* of its memory in GB/s; 0 if it is not known */
  aot_capability_t capability;
  const char* measured_on; /* the device whose times a model was fitted to; NULL: this one */
  const char* arch;
  const aot_tuned_set_t* sets;
  uint32_t set_count;
} aot_tuning_t;

typedef struct aot_tuned aot_tuned_t; /* aot_tuning.h */

typedef struct {
  aot_build_t* build;
  const aot_kernel_library_t* library; /* NULL until first needed */
  const aot_group_t* group;            /* NULL if this architecture lacks the function */
  const aot_tuning_t* tuning;          /* the table for the device, or NULL */
  aot_tuned_t* tuned;                  /* the same, once the library is open */
} aot_candidate_t;

/* The builds that run on one device, best first. Made once per function and device, kept for ever.
 *
 * If calls are traced, `count` is 0: a call then finds no candidate, and takes the way that logs and sets ranges. So
 * tracing costs nothing unless it is wanted. */
typedef struct {
  aot_device_t device;
  uint32_t count;
  uint32_t traced;               /* 0, or how many candidates there are while `count` is 0 */
  aot_candidate_t candidates[1]; /* the allocation is as long as it takes */
} aot_ranking_t;

static inline uint32_t aot_ranking_count(const aot_ranking_t* ranking) {
  return ranking->count != 0 ? ranking->count : ranking->traced;
}

enum { AOT_FUNCTION_USES_CURRENT_DEVICE = 1 }; /* no tensor among its arguments */

typedef struct {
  const char* name;
  const char* group;
  const char* signature; /* for messages: `add(x, y, out)` */
  aot_kernel_t* kernel;
  uint32_t argument_count;
  uint32_t flags;
  uint64_t workspaces; /* bit i: argument i is scratch memory, which callers may leave out */
  const aot_tuning_t* tunings;
  uint32_t tuning_count;
  aot_ranking_t* rankings[AOT_MAX_DEVICES]; /* by device */
} aot_function_t;

/* A function of the support library that was linked statically. */
typedef struct {
  const char* name;
  void* address;
} aot_provided_t;

typedef struct {
  const char* name;
  aot_file_t support;
  const aot_provided_t* provided; /* static link: what the support library would export, up to a NULL name */
} aot_bundle_t;

extern const aot_bundle_t aot_this_bundle;

/* A digest that the builder computed over what callers see of the bundle: 64 hex digits. */
extern const char aot_identity[65];

/* All public functions. Apart from `aot_this_bundle`, which every call needs: a static link drops what nobody calls, and
 * code that refers to this table keeps all. */
extern aot_function_t* const aot_functions[];
extern const uint32_t aot_function_count;

#endif /* AOT_BUNDLE_H_ */
