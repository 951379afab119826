/* Choosing a variant: pure functions over the tables and the arguments of a call.
 *
 * Nothing here allocates, locks, or touches CUDA.
 */
#ifndef AOT_SELECT_H_
#define AOT_SELECT_H_

#include "aot_tables.h"

/* One argument, or one element of a tuple, decoded once per call. */
typedef struct {
  const DLTensor* tensor; /* NULL unless kind is AOT_KIND_TENSOR */
  const TVMFFIAny* any;
  int32_t kind;
} aot_value_t;

typedef struct {
  aot_value_t values[AOT_MAX_ARGUMENTS];
  uint32_t count; /* elements of tuples not included */
  int32_t device;
  int32_t unsound; /* one of them is a tensor that no entry may see */
  /* Asked "what would run?" rather than to run: tensors count as lying on the device asked about. */
  int32_t hypothetical;
} aot_arguments_t;

/* A compute capability's number that sorts: 9.0 is 90. */
typedef struct {
  int32_t major;
  int32_t minor;
} aot_capability_t;

typedef struct {
  int32_t major;
  int32_t minor;
  char suffix; /* 'a': this chip; 'f': its family; 0: the portable subset */
} aot_arch_t;

/* Orin and Thor run only code built for them, and that code runs nowhere else. */
int aot_is_tegra(int32_t major, int32_t minor);

/* How good code for `arch` is on a device, higher is better; 0 where it cannot run there. */
int32_t aot_arch_rank(aot_arch_t arch, aot_capability_t device);

#define AOT_MAX_TUPLE_DEPTH 4

/* Decodes the arguments themselves and finds the device of the call: that of the first CUDA tensor, elements
 * of tuples included; -1 where there is none. Tuples are opened by aot_arguments_open_tuples, for each group
 * anew, since groups of different architectures may look at different elements. */
void aot_arguments_decode(aot_arguments_t* arguments, const TVMFFIAny* args, uint32_t count);
void aot_arguments_open_tuples(aot_arguments_t* arguments, const aot_group_t* group);

int64_t aot_subject_value(const aot_kernel_library_t* library, const aot_subject_t* subject,
                          const aot_arguments_t* arguments);

/* The variant of `group` that the arguments fit, or NULL. Requirements shared by every variant
 * still in question are left to the compiled entry, which checks all of its own; where tensors lie, which
 * it does not, is left to whoever calls it. */
const aot_variant_t* aot_group_choose(const aot_kernel_library_t* library, const aot_group_t* group,
                                      const aot_arguments_t* arguments);

/* The first requirement that the arguments do not meet, or NULL where they meet all. */
const aot_requirement_t* aot_variant_unmet(const aot_kernel_library_t* library,
                                           const aot_variant_t* variant,
                                           const aot_arguments_t* arguments);

#endif /* AOT_SELECT_H_ */
