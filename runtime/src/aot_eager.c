/* Asked from Python, these questions take nearly as long as the dispatch of a kernel. */
#include "aot_eager.h"

#include <stddef.h>

typedef aot_python_object object;

static const aot_tensor_implementation* tensor_of(const aot_eager* eager, const object* argument) {
  return (const aot_tensor_implementation*)((const char*)argument + eager->offset);
}

static int is_plain(const aot_eager* eager, uint64_t bit, const object* argument) {
  if (argument->type == eager->tensor || argument->type == eager->parameter) return 1;
  return (eager->optional & bit) != 0 && argument == eager->none;
}

static int is_gradient_wanted(const aot_eager* eager, object* const* args) {
  for (uint64_t i = 0; i < eager->count; ++i) {
    if ((eager->tensors >> i & 1) == 0 || args[i] == eager->none) continue;
    if (eager->requires_grad(*tensor_of(eager, args[i]))) return 1;
  }
  return 0;
}

/* Whether torch would do nothing with a call but run the kernel. */
static int may_bypass(const aot_eager* eager, object* const* args, intptr_t count) {
  if (count != (intptr_t)eager->count) return 0;
  for (uint64_t i = 0; i < eager->count; ++i) {
    const uint64_t bit = UINT64_C(1) << i;
    if ((eager->tensors & bit) != 0 && !is_plain(eager, bit, args[i])) return 0;
  }
  for (int i = 0; i < AOT_EAGER_KEYS; ++i) {
    if (eager->is_included((uint16_t)eager->keys[i])) return 0;
  }
  if (eager->count_function_modes() != 0) return 0;
  return !(eager->is_grad_enabled() && is_gradient_wanted(eager, args));
}

/* So that autograd notices if a saved tensor was overwritten. Inference tensors have no version. */
static void tell_autograd(const aot_eager* eager, object* const* args) {
  for (uint64_t i = 0; i < eager->count; ++i) {
    if ((eager->outputs >> i & 1) == 0 || args[i] == eager->none) continue;
    const aot_tensor_implementation* tensor = tensor_of(eager, args[i]);
    if (!eager->is_inference(tensor)) eager->bump_version(tensor);
  }
}

static object* as_truth(const aot_eager* eager, int truth) {
  object* value = truth ? eager->yes : eager->no;
  eager->increase(value);
  return value;
}

static void* (*pointer_of)(object* integer);

static object* ask(object* self, object* const* args, intptr_t count) {
  const aot_eager* eager = (const aot_eager*)pointer_of(self);
  return as_truth(eager, may_bypass(eager, args, count));
}

static object* write_outputs(object* self, object* const* args, intptr_t count) {
  const aot_eager* eager = (const aot_eager*)pointer_of(self);
  const int bypasses = may_bypass(eager, args + 1, count - 1);
  if (bypasses) {
    object* result = eager->call(args[0], args + 1, (uintptr_t)(count - 1), NULL);
    if (result == NULL) return NULL; /* an exception of Python */
    eager->decrease(result);
    tell_autograd(eager, args + 1);
  }
  return as_truth(eager, bypasses);
}

/* Takes the arguments that were passed by name. 0 if only Python can tell what they are. */
static int bind_named(const aot_eager* eager, object* const* args, uint64_t count, object* names, object** bound) {
  const uint64_t named = (uint64_t)eager->size_of(names);
  for (uint64_t k = 0; k < named; ++k) {
    const object* name = eager->element_of(names, (intptr_t)k);
    uint64_t i = 0;
    while (i < eager->count && eager->parameters[i].name != name) ++i;
    if (i == eager->count || eager->parameters[i].position < count) return 0; /* unknown, or passed twice */
    bound[i] = args[count + k];
  }
  return 1;
}

/* The arguments of a kernel, from a call of a function of Python. 0 if only Python can tell them. */
static int bind(const aot_eager* eager, object* const* args, uint64_t count, object* names, object** bound) {
  uint64_t taken = 0;
  for (uint64_t i = 0; i < eager->count; ++i) {
    const aot_eager_parameter* parameter = &eager->parameters[i];
    const int is_passed = parameter->position < count;
    bound[i] = is_passed ? args[parameter->position] : parameter->fallback;
    taken += (uint64_t)is_passed;
  }
  if (taken != count || (names != NULL && !bind_named(eager, args, count, names, bound))) return 0;
  for (uint64_t i = 0; i < eager->count; ++i) {
    if (bound[i] == NULL) return 0;
  }
  return 1;
}

static int may_call(const aot_eager* eager, object* const* bound) {
  if (eager->evaluator_of(eager->interpreter) != eager->evaluator) return 0; /* torch.compile wants to see the function */
  if (eager->item_of(eager->forward, eager->level) != eager->outside) return 0;
  return may_bypass(eager, bound, (intptr_t)eager->count);
}

enum { FUNCTIONS = 2048 };

static const aot_eager* functions[FUNCTIONS]; /* by the addresses of functions; written while Python's lock is held */

/* Where the entry of a function is, or would be. */
static const aot_eager** place_of(const object* function) {
  const uintptr_t first = (uintptr_t)function / 16;
  for (uintptr_t i = 0; i < FUNCTIONS; ++i) {
    const aot_eager** place = &functions[(first + i) % FUNCTIONS];
    if (*place == NULL || (*place)->function == function) return place;
  }
  return NULL;
}

static object* call_kernel(object* function, object* const* args, uintptr_t flags, object* names) {
  const aot_eager* eager = *place_of(function);
  const uint64_t count = flags & (UINTPTR_MAX >> 1); /* the highest bit is a flag */
  object* bound[AOT_EAGER_ARGUMENTS];
  if (bind(eager, args, count, names, bound) && may_call(eager, bound)) {
    object* result = eager->call(eager->target, bound, (uintptr_t)eager->count, NULL);
    if (result != NULL) {
      eager->decrease(result);
      tell_autograd(eager, bound);
      eager->increase(eager->none);
      return eager->none;
    }
    if (eager->is_error(eager->failures)) return NULL; /* something may have been launched */
    eager->clear_error(); /* a refusal: the function calls once more, and knows what to do with it */
  }
  return eager->call_function(function, args, flags, names);
}

static int64_t add_function(const aot_eager* eager) {
  const aot_eager** place = place_of(eager->function);
  if (place == NULL) return 0;
  *place = eager;
  return (int64_t)(uintptr_t)call_kernel;
}

int64_t aot_eager_function(int64_t which, int64_t size, int64_t pointer) {
  if (size != (int64_t)sizeof(aot_eager)) return 0;
  if (which == AOT_EAGER_CALL) return add_function((const aot_eager*)(uintptr_t)pointer);
  pointer_of = (void* (*)(object*))(uintptr_t)pointer;
  return (int64_t)(uintptr_t)(which == AOT_EAGER_ASK ? ask : write_outputs);
}
