/* Whether an eager call from Python may bypass torch's dispatcher, decided in C.
 *
 * Neither headers of Python nor of torch are needed: aot_runtime/torch_eager.py passes the addresses of their functions,
 * after it has compared what they say with what torch says in Python. */
#ifndef AOT_EAGER_H_
#define AOT_EAGER_H_

#include <stdint.h>

/* How an object begins if Python has a global lock. */
typedef struct aot_python_object {
  intptr_t references;
  const struct aot_python_object* type;
} aot_python_object;

/* A tensor of C++ is a pointer to its implementation. */
typedef const void* aot_tensor_implementation;

enum { AOT_EAGER_KEYS = 3 };

typedef struct aot_eager {
  /* Python's stable interface, and three constants. */
  void (*increase)(aot_python_object* object);
  void (*decrease)(aot_python_object* object);
  aot_python_object* (*call)(aot_python_object* function, aot_python_object* const* args, uintptr_t count,
                             aot_python_object* names);
  aot_python_object *none, *yes, *no;
  /* The torch of the process. */
  const aot_python_object *tensor, *parameter; /* types */
  uint8_t (*is_included)(uint16_t key);        /* whether this thread includes a dispatch key */
  int64_t (*count_function_modes)(void);
  uint8_t (*is_grad_enabled)(void);
  uint8_t (*requires_grad)(aot_tensor_implementation tensor);
  uint8_t (*is_inference)(const aot_tensor_implementation* tensor);
  void (*bump_version)(const aot_tensor_implementation* tensor);
  uint64_t offset;               /* of a tensor of C++ in an object of Python */
  uint64_t keys[AOT_EAGER_KEYS]; /* those that modes, transforms and tracing include */
  /* The arguments of one function, a bit each. */
  uint64_t count;
  uint64_t tensors;
  uint64_t optional; /* tensors that may be None */
  uint64_t outputs;
} aot_eager;

enum { AOT_EAGER_ASK = 0, AOT_EAGER_WRITE = 1 };

/* The address of a function that Python calls with a vector of arguments. Its `self` is the address of an aot_eager as an
 * integer, which `as_pointer` of Python's interface reads. 0 if an aot_eager has another size for the loader.
 *
 * AOT_EAGER_ASK: (*arguments), returns whether a call with them may bypass the dispatcher.
 * AOT_EAGER_WRITE: (function, *arguments), calls the function if it may, tells autograd that the outputs were overwritten,
 * and returns whether it called. */
int64_t aot_eager_function(int64_t which, int64_t size, int64_t as_pointer);

#endif /* AOT_EAGER_H_ */
