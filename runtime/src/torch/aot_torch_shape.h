/* The shapes of outputs, as the declaration of a kernel states them. */
#ifndef AOT_TORCH_SHAPE_H_
#define AOT_TORCH_SHAPE_H_

#include "aot_torch_table.h"

/* The inputs of a call as shapes see them: a tensor's rank and extents, or a number. */
typedef struct aot_torch_seen {
  const aot_tensor* tensor; /* NULL: none, or not a tensor */
  int64_t number;
} aot_torch_seen;

typedef struct aot_torch_shape {
  int32_t rank;
  int64_t sizes[AOT_TORCH_MAX_RANK];
  int64_t strides[AOT_TORCH_MAX_RANK]; /* of a contiguous tensor */
} aot_torch_shape;

/* 0, or -1 with a sentence for aot_torch_error. */
int aot_torch_compute_shape(const aot_torch_operator* operator_, const aot_torch_output* output,
                            const aot_torch_seen* inputs, aot_torch_shape* shape);

#endif /* AOT_TORCH_SHAPE_H_ */
