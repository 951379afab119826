/* Registers the operators of a bundle with the torch of the process, when the library is opened. */
#include <stdio.h>
#include <string.h>

#include "aot_torch_api.h"
#include "aot_torch_bundle.h"
#include "aot_torch_table.h"

static const char* failure; /* NULL: the operators are registered */
static char failure_text[1024];

/* Torch keeps what is registered as long as these exist: to the end of the process. */
static aot_torch_library definitions, implementations;

static const char* refuse(const char* name, const char* why) {
  snprintf(failure_text, sizeof failure_text, "`torch.ops.%s.%s` cannot be registered: %s", aot_torch_this_bundle.name, name,
           why);
  return failure_text;
}

static const char* register_form(const char* name, const char* overload, const char* schema, aot_torch_boxed function) {
  char qualified[512];
  snprintf(qualified, sizeof qualified, "%s%s", name, overload);
  if (aot_torch.library_def(definitions, schema) != 0) {
    return refuse(qualified, "it is defined already, by `aot_runtime.torch.register` or by another bundle of this name; "
                             "open this library before calling `register`");
  }
  if (aot_torch.library_impl(implementations, qualified, function, AOT_TORCH_VERSION) != 0) {
    return refuse(qualified, "torch does not take its implementation");
  }
  return NULL;
}

static const char* register_all(void) {
  const aot_torch_bundle* bundle = &aot_torch_this_bundle;
  if (aot_torch.library_init_fragment(bundle->name, "cute-aot", 0, &definitions) != 0 ||
      aot_torch.library_init_impl(bundle->name, bundle->key, "cute-aot", 0, &implementations) != 0) {
    return refuse("*", "torch does not take a library of this name");
  }
  const char* wrong = NULL;
  for (uint32_t i = 0; i < bundle->operator_count && wrong == NULL; ++i) {
    const aot_torch_operator* operator_ = &bundle->operators[i];
    wrong = register_form(operator_->name, "", operator_->schema, operator_->allocating);
    if (wrong == NULL) wrong = register_form(operator_->name, ".out", operator_->out_schema, operator_->writing);
  }
  return wrong;
}

/* Half of a bundle's operators would be worse than none. */
static void take_back(void) {
  if (implementations != NULL) aot_torch.delete_library(implementations);
  if (definitions != NULL) aot_torch.delete_library(definitions);
  implementations = definitions = NULL;
}

/* A constructor can neither return an error nor throw: the dynamic linker would keep its lock. So the reason goes to the
 * standard error stream, and programs can ask for it. */
void aot_torch_register(void) {
  failure = aot_torch_locate();
  if (failure == NULL) failure = aot_torch_find();
  if (failure != NULL) {
    fprintf(stderr, "lib%s_torch.so: %s\n", aot_torch_this_bundle.name, failure);
    return;
  }
  failure = register_all();
  if (failure == NULL) return;
  take_back();
  fprintf(stderr, "lib%s_torch.so: %s\n", aot_torch_this_bundle.name, failure);
}

const char* aot_torch_registration_error(void) { return failure; }
