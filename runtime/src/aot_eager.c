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

int64_t aot_eager_function(int64_t which, int64_t size, int64_t as_pointer) {
  if (size != (int64_t)sizeof(aot_eager)) return 0;
  pointer_of = (void* (*)(object*))(uintptr_t)as_pointer;
  return (int64_t)(uintptr_t)(which == AOT_EAGER_ASK ? ask : write_outputs);
}
