/* What autograd must know of a call. The stable interface of torch has no function for either question, so both are
 * answered by operators of torch itself, which the stable interface can call.
 *
 * Both functions return 0, or -1 with a sentence for aot_torch_error. */
#ifndef AOT_TORCH_GRADIENT_H_
#define AOT_TORCH_GRADIENT_H_

#include "aot_torch_api.h"

/* An error if grad mode is on and one of the tensors requires a gradient: the kernel has no backward. */
int aot_torch_refuse_gradients(const char* name, const aot_torch_handle* tensors, uint32_t count);

/* Raises the tensor's version, by which autograd notices that a tensor it saved was overwritten. */
int aot_torch_mark_written(const char* name, const char* parameter, aot_torch_handle tensor);

#endif /* AOT_TORCH_GRADIENT_H_ */
