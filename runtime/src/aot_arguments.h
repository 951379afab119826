/* The arguments of a call, decoded once. Nothing here allocates, locks, or touches CUDA. */
#ifndef AOT_ARGUMENTS_H_
#define AOT_ARGUMENTS_H_

#include "aot_tables.h"

/* One argument, or one element of a tuple. */
typedef struct {
  const DLTensor* tensor; /* NULL unless kind is AOT_KIND_TENSOR */
  const TVMFFIAny* any;
  int32_t kind;
} aot_value_t;

typedef struct {
  aot_value_t values[AOT_MAX_ARGUMENTS]; /* by slot */
  uint32_t count; /* elements of tuples not included */
  int32_t device;
  int32_t unsound; /* one of them is a tensor that no entry may see */
  int32_t hypothetical; /* AOT_ASKED or AOT_PARTLY_KNOWN: nothing runs */
} aot_arguments_t;

enum {
  AOT_ASKED = 1,       /* "what would run?": tensors count as lying on the device asked about */
  AOT_PARTLY_KNOWN = 2 /* and what is missing, an argument of another kind included, is unknown: it meets every requirement */
};

#define AOT_MAX_TUPLE_DEPTH 4

/* Decodes the arguments themselves and finds the device of the call: that of the first CUDA tensor, elements of tuples
 * included; -1 if there is none. aot_arguments_open_tuples opens tuples once for each group, since groups of different
 * architectures may look at different elements. */
void aot_arguments_decode(aot_arguments_t* arguments, const TVMFFIAny* args, uint32_t count);
void aot_arguments_open_tuples(aot_arguments_t* arguments, const aot_group_t* group);

/* What a TVM-FFI object holds lies after its header. */
static inline const void* aot_object_cell(const TVMFFIAny* any) {
  return (const char*)any->v_obj + sizeof(TVMFFIObject);
}

static inline int64_t aot_packed_dtype(DLDataType dtype) {
  return (int64_t)dtype.bits << 32 | (int64_t)dtype.lanes << 8 | dtype.code;
}

#endif /* AOT_ARGUMENTS_H_ */
