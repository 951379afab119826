/* Choices that were measured on a device: tables that the builder compiled into the entry library.
 *
 * The tree of a kernel library finds a variant as ever. If a table for this very device covers it, the table may put
 * another variant in its place, by the bins that the extents of the call lie in. Without such a table nothing changes.
 */
#ifndef AOT_TUNING_H_
#define AOT_TUNING_H_

#include "aot_arguments.h"
#include "aot_bundle.h"

/* A set of variants that a call may choose among, once its names were found in the kernel library. */
typedef struct {
  const aot_tuned_set_t* table;
  const aot_variant_t** variants; /* as many as the table names */
  int same_calls;                 /* whether all of them take exactly the same calls */
} aot_tuned_here_t;

/* A table that fits its kernel library; made by aot_tuning_resolve, once per function and device. */
struct aot_tuned {
  const aot_tuning_t* table;
  const aot_tunable_t* tunable;
  aot_tuned_here_t* sets;
  const aot_variant_t** variants;  /* of all sets, one after the other */
  const aot_tuned_here_t* of[1];   /* by variant of the group: its set, or NULL. The allocation is as long as that takes. */
};

/* The function's table for that device and architecture: both the name and the number of multiprocessors must be equal,
 * so a slice of a GPU (MIG) is another device. NULL if there is none. */
const aot_tuning_t* aot_tuning_find(const aot_function_t* function, const char* arch, const aot_device_t* device);

/* Checks the whole table against the kernel library, so that no call has to. NULL with an error raised. */
aot_tuned_t* aot_tuning_resolve(const aot_tuning_t* table, const aot_kernel_library_t* library, const aot_group_t* group);
void aot_tuning_free(aot_tuned_t* tuned);

/* What the table puts in the place of the variant that the tree found. */
const aot_variant_t* aot_tuned_choose(const aot_tuned_t* tuned, const aot_kernel_library_t* library,
                                      const aot_group_t* group, const aot_variant_t* variant,
                                      const aot_arguments_t* arguments);

#endif /* AOT_TUNING_H_ */
