#include "aot_torch_gradient.h"

#include "aot_torch_bundle.h"

static uint64_t as_slot(aot_torch_handle tensor) { return (uint64_t)(uintptr_t)tensor; }
static aot_torch_handle as_handle(uint64_t slot) { return (aot_torch_handle)(uintptr_t)slot; }

static int refuse(const char* name) {
  return aot_torch_fail("%s: torch does not say whether an argument requires a gradient", name, NULL, NULL);
}

/* Calls an operator of one tensor. The operator takes the handle over; its result replaces it. */
static int call(const char* operator_, aot_torch_handle tensor, uint64_t* result) {
  *result = as_slot(tensor);
  return aot_torch.call(operator_, "", result, AOT_TORCH_VERSION);
}

/* In grad mode an alias is computed from its tensor, and so no leaf, exactly if the tensor requires a gradient. */
static int requires_gradient(aot_torch_handle tensor, int* required) {
  aot_torch_handle copy = NULL;
  uint64_t alias = 0, leaf = 0;
  if (aot_torch.new_handle(tensor, &copy) != 0) return -1;
  if (call("aten::alias", copy, &alias) != 0 || call("aten::is_leaf", as_handle(alias), &leaf) != 0) return -1;
  *required = (leaf & 0xff) == 0;
  return 0;
}

int aot_torch_refuse_gradients(const char* name, const aot_torch_handle* tensors, uint32_t count) {
  if (!aot_torch.grad_enabled()) return 0;
  for (uint32_t i = 0; i < count; ++i) {
    int required = 0;
    if (tensors[i] == NULL) continue;
    if (requires_gradient(tensors[i], &required) != 0) return refuse(name);
    if (required) {
      return aot_torch_fail("%s computes no gradient if it is called from C, and an argument requires one\nhint: call it "
                            "without grad mode, or pass x.detach(); in Python, `aot_runtime.torch.register` adds the "
                            "gradients that the bundle has", name, NULL, NULL);
    }
  }
  return 0;
}

/* Copying a tensor to itself does nothing, and counts as writing it. */
int aot_torch_mark_written(const char* name, const char* parameter, aot_torch_handle tensor) {
  aot_torch_handle to = NULL, from = NULL;
  if (aot_torch.new_handle(tensor, &to) != 0) return refuse(name);
  if (aot_torch.new_handle(tensor, &from) != 0) {
    aot_torch.delete_tensor(to);
    return refuse(name);
  }
  uint64_t stack[3] = {as_slot(to), as_slot(from), 0};
  if (aot_torch.call("aten::copy_", "", stack, AOT_TORCH_VERSION) == 0) {
    aot_torch.delete_tensor(as_handle(stack[0]));
    return 0;
  }
  return aot_torch_fail("%s: torch does not let `%s` be written; its own message is in the log", name, parameter,
                        NULL);
}
