/* Whether an eager call from Python may bypass torch's dispatcher, decided in C; and such calls made from C.
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

enum { AOT_EAGER_KEYS = 3, AOT_EAGER_ARGUMENTS = 64 };

/* How an argument of a kernel comes from a call of a function of Python. */
typedef struct aot_eager_parameter {
  const aot_python_object* name; /* NULL: no parameter of the function */
  aot_python_object* fallback;   /* NULL: must be passed */
  uint64_t position;             /* among positional arguments, or UINT64_MAX */
} aot_eager_parameter;

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
  /* For AOT_EAGER_CALL alone. */
  aot_python_object *function, *target;
  const aot_eager_parameter* parameters;
  aot_python_object* (*call_function)(aot_python_object* function, aot_python_object* const* args, uintptr_t count,
                                      aot_python_object* names); /* as every function of Python is called */
  intptr_t (*size_of)(aot_python_object* tuple);
  aot_python_object* (*element_of)(aot_python_object* tuple, intptr_t index);
  aot_python_object* (*item_of)(aot_python_object* dictionary, aot_python_object* key);
  void (*clear_error)(void);
  int (*is_error)(aot_python_object* types); /* whether the exception that was raised is one of these */
  void* (*evaluator_of)(void* interpreter); /* what evaluates frames: the default, or that of torch.compile */
  void *interpreter, *evaluator;
  /* Of torch.autograd.forward_ad: its names, the name of its level, and the level outside of it. */
  aot_python_object *forward, *level, *outside;
  aot_python_object* failures; /* exceptions after which nothing is called again */
} aot_eager;

enum { AOT_EAGER_ASK = 0, AOT_EAGER_WRITE = 1, AOT_EAGER_CALL = 2 };

/* The address of a function that Python calls with a vector of arguments. 0 if an aot_eager has another size for the
 * loader.
 *
 * Of the first two, `self` is the address of an aot_eager as an integer, which `pointer`, a function of Python's interface,
 * reads.
 * AOT_EAGER_ASK: (*arguments), returns whether a call with them may bypass the dispatcher.
 * AOT_EAGER_WRITE: (function, *arguments), calls the function if it may, tells autograd that the outputs were overwritten,
 * and returns whether it called.
 *
 * AOT_EAGER_CALL: `pointer` is an aot_eager, which the caller keeps. Its `function` of Python may then be called through the
 * returned address: that calls `target` if it may, and the function itself otherwise. 0 if there is no room for one more. */
int64_t aot_eager_function(int64_t which, int64_t size, int64_t pointer);

#endif /* AOT_EAGER_H_ */
