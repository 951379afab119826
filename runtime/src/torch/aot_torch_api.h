/* The functions of torch that are used here, found in the torch of the process. Their declarations are those of
 * torch/csrc/inductor/aoti_torch/c/shim.h and torch/csrc/stable/c/shim.h, which promise a stable binary interface. */
#ifndef AOT_TORCH_API_H_
#define AOT_TORCH_API_H_

#include <stddef.h>
#include <stdint.h>

#include "aot_torch_table.h"

/* The interface that this code is written for: torch 2.10. Later torches convert arguments accordingly. */
#define AOT_TORCH_VERSION ((UINT64_C(2) << 56) | (UINT64_C(10) << 48))

typedef struct aot_torch_tensor_object* aot_torch_handle;
typedef struct aot_torch_library_object* aot_torch_library;
typedef struct aot_torch_string_object* aot_torch_string;

/* Functions that return an int32_t return 0 if they succeed. */
typedef struct aot_torch_api {
  int32_t (*library_init_fragment)(const char* name, const char* file, uint32_t line, aot_torch_library* made);
  int32_t (*library_init_impl)(const char* name, const char* key, const char* file, uint32_t line,
                               aot_torch_library* made);
  int32_t (*library_def)(aot_torch_library library, const char* schema);
  int32_t (*library_impl)(aot_torch_library library, const char* name, aot_torch_boxed function, uint64_t version);
  int32_t (*delete_library)(aot_torch_library library);
  int32_t (*call)(const char* name, const char* overload, uint64_t* stack, uint64_t version);
  void (*check)(_Bool condition, const char* function, const char* file, uint32_t line, const char* text);
  int32_t (*get_data)(aot_torch_handle tensor, void** data);
  int32_t (*get_rank)(aot_torch_handle tensor, int64_t* rank);
  int32_t (*get_sizes)(aot_torch_handle tensor, int64_t** sizes);     /* the tensor's own */
  int32_t (*get_strides)(aot_torch_handle tensor, int64_t** strides); /* the tensor's own */
  int32_t (*get_dtype)(aot_torch_handle tensor, int32_t* dtype);
  int32_t (*get_device_type)(aot_torch_handle tensor, int32_t* type);
  int32_t (*get_device_index)(aot_torch_handle tensor, int32_t* index);
  int32_t (*empty)(int64_t rank, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t device_type,
                   int32_t device_index, aot_torch_handle* made);
  int32_t (*new_handle)(aot_torch_handle tensor, aot_torch_handle* made);
  int32_t (*delete_tensor)(aot_torch_handle tensor);
  int32_t (*string_text)(aot_torch_string string, const char** text);
  int32_t (*delete_string)(aot_torch_string string);
  _Bool (*grad_enabled)(void);
  int32_t (*cuda_type)(void);
  int32_t (*cpu_type)(void);
  /* Frees the box in which torch passes a value that may be None. */
  int32_t (*delete_box)(uint64_t* box); /* NULL before torch 2.13 */
  void (*operator_delete)(void* box);   /* the C++ function, which frees it in every version */
  int32_t dtypes[AOT_TORCH_DTYPE_COUNT]; /* torch's numbers; -1: this torch does not have the dtype */
} aot_torch_api;

extern aot_torch_api aot_torch;

/* Fills `aot_torch`. Returns NULL, or a sentence that says why this cannot be. */
const char* aot_torch_find(void);

/* The stream that torch uses on a CUDA device now. Returns 0, or -1 with a sentence for aot_torch_error. */
int aot_torch_current_stream(int32_t device, void** stream);

/* Throws a C++ exception with that text, c10::Error, which Python sees as RuntimeError. */
__attribute__((noreturn)) void aot_torch_raise(const char* text);

#endif /* AOT_TORCH_API_H_ */
