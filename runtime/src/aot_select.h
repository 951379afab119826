/* Choosing a variant: pure functions over the tables and the arguments of a call.
 *
 * Nothing here allocates, locks, or touches CUDA.
 */
#ifndef AOT_SELECT_H_
#define AOT_SELECT_H_

#include "aot_arguments.h"
#include "aot_tables.h"

int64_t aot_subject_value(const aot_kernel_library_t* library, const aot_subject_t* subject,
                          const aot_arguments_t* arguments);

/* The variant of `group` that the arguments fit, or NULL. Requirements shared by every variant
 * still in question are left to the compiled entry, which checks all of its own. Where tensors lie, which
 * it does not check, is left to the caller. */
const aot_variant_t* aot_group_choose(const aot_kernel_library_t* library, const aot_group_t* group,
                                      const aot_arguments_t* arguments);

/* The same by the tree with that root. */
const aot_variant_t* aot_tree_choose(const aot_kernel_library_t* library, const aot_group_t* group, int32_t root,
                                     const aot_arguments_t* arguments);

/* The first of `count` numbered requirements that the arguments do not meet, or NULL if they meet all. */
const aot_requirement_t* aot_first_unmet(const aot_kernel_library_t* library, const uint32_t* numbers, uint32_t count,
                                         const aot_arguments_t* arguments);

/* The same of all requirements of a variant. */
const aot_requirement_t* aot_variant_unmet(const aot_kernel_library_t* library,
                                           const aot_variant_t* variant,
                                           const aot_arguments_t* arguments);

/* Whether an argument has what a requirement is about, and it is not as required. What is not there at all, such as an
 * extent of a tensor of lower rank, is missed by another requirement already. */
int aot_requirement_missed(const aot_kernel_library_t* library, const aot_requirement_t* requirement,
                           const aot_arguments_t* arguments);

#endif /* AOT_SELECT_H_ */
