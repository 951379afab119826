/* One call of an operator. Torch passes a stack of 64-bit slots: a tensor is a handle that the callee owns, a number is
 * itself, a float is the eight bytes of a double, a string is a handle, and what may be None is a pointer to a slot, or 0.
 * Results replace the arguments from the first slot on.
 *
 * Everything that is owned is freed before an error is thrown, since nothing is freed while the exception passes. */
#include <stdio.h>
#include <string.h>

#include "aot_torch_api.h"
#include "aot_torch_gradient.h"
#include "aot_torch_bundle.h"
#include "aot_torch_shape.h"
#include "aot_torch_table.h"

typedef struct {
  const aot_torch_operator* operator_;
  uint64_t* stack;
  int writes; /* outputs are the caller's */
  aot_torch_handle inputs[AOT_TORCH_MAX_ARGUMENTS]; /* NULL: None, or no tensor */
  aot_torch_handle outputs[AOT_TORCH_MAX_ARGUMENTS];
  aot_torch_handle workspace; /* NULL: none */
  aot_torch_string choices[AOT_TORCH_MAX_ARGUMENTS];
  aot_torch_seen seen[AOT_TORCH_MAX_ARGUMENTS];
  aot_tensor input_tensors[AOT_TORCH_MAX_ARGUMENTS];
  aot_tensor output_tensors[AOT_TORCH_MAX_ARGUMENTS];
} call_t;

static void* as_pointer(uint64_t slot) { return (void*)(uintptr_t)slot; }
static uint64_t as_slot(const void* pointer) { return (uint64_t)(uintptr_t)pointer; }

/* ---- owning ---- */

static aot_torch_handle unbox(uint64_t slot) {
  uint64_t* box = (uint64_t*)as_pointer(slot);
  if (box == NULL) return NULL;
  aot_torch_handle handle = (aot_torch_handle)as_pointer(*box);
  if (aot_torch.delete_box != NULL) aot_torch.delete_box(box);
  else aot_torch.operator_delete(box);
  return handle;
}

static void take(call_t* call) {
  const aot_torch_operator* operator_ = call->operator_;
  const uint64_t* slot = call->stack;
  for (uint32_t i = 0; i < operator_->input_count; ++i, ++slot) {
    aot_torch_kind kind = operator_->inputs[i].kind;
    call->inputs[i] = kind == AOT_TORCH_TENSOR            ? (aot_torch_handle)as_pointer(*slot)
                      : kind == AOT_TORCH_OPTIONAL_TENSOR ? unbox(*slot)
                                                          : NULL;
  }
  for (uint32_t i = 0; i < operator_->choice_count; ++i) call->choices[i] = (aot_torch_string)as_pointer(*slot++);
  for (uint32_t i = 0; i < operator_->output_count; ++i) {
    call->outputs[i] = NULL;
    if (!call->writes) continue;
    call->outputs[i] = operator_->outputs[i].optional ? unbox(*slot) : (aot_torch_handle)as_pointer(*slot);
    ++slot;
  }
}

static void release(call_t* call) {
  const aot_torch_operator* operator_ = call->operator_;
  for (uint32_t i = 0; i < operator_->input_count; ++i) {
    if (call->inputs[i] != NULL) aot_torch.delete_tensor(call->inputs[i]);
  }
  for (uint32_t i = 0; i < operator_->choice_count; ++i) aot_torch.delete_string(call->choices[i]);
  for (uint32_t i = 0; i < operator_->output_count; ++i) {
    if (call->outputs[i] != NULL) aot_torch.delete_tensor(call->outputs[i]);
  }
  if (call->workspace != NULL) aot_torch.delete_tensor(call->workspace);
}

/* ---- tensors ---- */

#define DTYPE(name, function, code, bits, lanes) {code, bits, lanes},
static const aot_dtype dtypes[AOT_TORCH_DTYPE_COUNT] = {AOT_TORCH_DTYPES(DTYPE)};

static int set_dtype(const aot_torch_operator* operator_, const char* name, int32_t number, aot_tensor* tensor) {
  for (int i = 0; i < AOT_TORCH_DTYPE_COUNT; ++i) {
    if (aot_torch.dtypes[i] != number) continue;
    tensor->dtype = dtypes[i];
    return 0;
  }
  return aot_torch_fail("%s: `%s` has a dtype that no kernel takes", operator_->name, name, NULL);
}

static int set_device(const aot_torch_operator* operator_, const char* name, int32_t type, int32_t index,
                      aot_tensor* tensor) {
  tensor->device_type = type == aot_torch.cuda_type() ? AOT_DEVICE_CUDA : AOT_DEVICE_CPU;
  tensor->device_id = index < 0 ? 0 : index;
  if (tensor->device_type == AOT_DEVICE_CUDA || type == aot_torch.cpu_type()) return 0;
  return aot_torch_fail("%s: `%s` lies neither on a CUDA device nor on the CPU", operator_->name, name, NULL);
}

static int describe(const aot_torch_operator* operator_, const char* name, aot_torch_handle handle, aot_tensor* tensor) {
  int64_t rank = 0;
  int32_t dtype = -1, type = -1, index = -1;
  memset(tensor, 0, sizeof *tensor);
  if (aot_torch.get_data(handle, &tensor->data) != 0 || aot_torch.get_rank(handle, &rank) != 0 ||
      aot_torch.get_sizes(handle, &tensor->shape) != 0 || aot_torch.get_strides(handle, &tensor->strides) != 0 ||
      aot_torch.get_dtype(handle, &dtype) != 0 || aot_torch.get_device_type(handle, &type) != 0 ||
      aot_torch.get_device_index(handle, &index) != 0) {
    return aot_torch_fail("%s: torch does not say what `%s` is", operator_->name, name, NULL);
  }
  tensor->ndim = (int32_t)rank;
  int status = set_dtype(operator_, name, dtype, tensor);
  return status == 0 ? set_device(operator_, name, type, index, tensor) : status;
}

static int64_t as_integer(aot_torch_kind kind, uint64_t slot) {
  return kind == AOT_TORCH_BOOL ? (slot & 0xff) != 0 : (int64_t)slot;
}

static int describe_inputs(call_t* call) {
  const aot_torch_operator* operator_ = call->operator_;
  for (uint32_t i = 0; i < operator_->input_count; ++i) {
    const aot_torch_input* input = &operator_->inputs[i];
    call->seen[i].tensor = call->inputs[i] == NULL ? NULL : &call->input_tensors[i];
    call->seen[i].number = as_integer(input->kind, call->stack[i]);
    if (call->inputs[i] == NULL) continue;
    int status = describe(operator_, input->name, call->inputs[i], &call->input_tensors[i]);
    if (status != 0) return status;
  }
  return 0;
}

/* ---- outputs ---- */

static int output_dtype(const call_t* call, const aot_torch_output* output, int32_t* dtype) {
  const aot_torch_operator* operator_ = call->operator_;
  if (output->dtype_of < 0) {
    *dtype = aot_torch.dtypes[output->dtype];
    if (*dtype >= 0) return 0;
    return aot_torch_fail("%s: this torch does not have the dtype of `%s`", operator_->name, output->name, NULL);
  }
  aot_torch_handle like = call->inputs[output->dtype_of];
  if (like != NULL && aot_torch.get_dtype(like, dtype) == 0) return 0;
  return aot_torch_fail("%s: `%s` has the dtype of `%s`, which is None", operator_->name, output->name,
                        operator_->inputs[output->dtype_of].name);
}

static int allocate(call_t* call, uint32_t number) {
  const aot_torch_operator* operator_ = call->operator_;
  const aot_torch_output* output = &operator_->outputs[number];
  aot_torch_shape shape;
  int32_t dtype = -1, type = -1, index = -1;
  int status = aot_torch_compute_shape(operator_, output, call->seen, &shape);
  if (status == 0) status = output_dtype(call, output, &dtype);
  if (status != 0) return status;
  aot_torch_handle beside = call->inputs[operator_->device_of];
  if (aot_torch.get_device_type(beside, &type) == 0 && aot_torch.get_device_index(beside, &index) == 0 &&
      aot_torch.empty(shape.rank, shape.sizes, shape.strides, dtype, type, index, &call->outputs[number]) == 0) {
    return 0;
  }
  call->outputs[number] = NULL;
  return aot_torch_fail("%s: torch cannot allocate `%s`; its own message is in the log", operator_->name,
                        output->name, NULL);
}

static int prepare_outputs(call_t* call) {
  const aot_torch_operator* operator_ = call->operator_;
  for (uint32_t i = 0; i < operator_->output_count; ++i) {
    int status = call->writes ? 0 : allocate(call, i);
    if (status == 0 && call->outputs[i] == NULL) continue; /* the caller left it out */
    if (status == 0) status = describe(operator_, operator_->outputs[i].name, call->outputs[i], &call->output_tensors[i]);
    if (status != 0) return status;
  }
  return 0;
}

/* Refuses a call that would lose a gradient, and tells autograd what is about to be overwritten. */
static int heed_autograd(const call_t* call) {
  const aot_torch_operator* operator_ = call->operator_;
  int status = aot_torch_refuse_gradients(operator_->name, call->inputs, operator_->input_count);
  if (status == 0 && call->writes) {
    status = aot_torch_refuse_gradients(operator_->name, call->outputs, operator_->output_count);
  }
  for (uint32_t i = 0; status == 0 && call->writes && i < operator_->output_count; ++i) {
    if (call->outputs[i] == NULL) continue;
    status = aot_torch_mark_written(operator_->name, operator_->outputs[i].name, call->outputs[i]);
  }
  return status;
}

/* ---- the function ---- */

static void append(char* text, size_t room, const char* first, const char* second, const char* third) {
  size_t used = strlen(text);
  snprintf(text + used, room - used, "%s%s%s", first, second, third);
}

static int refuse_choice(const call_t* call) {
  const aot_torch_operator* operator_ = call->operator_;
  char asked[512] = "", known[1024] = "";
  for (uint32_t i = 0; i < operator_->choice_count; ++i) {
    const char* value = "";
    aot_torch.string_text(call->choices[i], &value);
    append(asked, sizeof asked, i == 0 ? "" : ", ", operator_->choices[i], " = '");
    append(asked, sizeof asked, value, "'", "");
  }
  for (uint32_t i = 0; i < operator_->function_count; ++i) {
    append(known, sizeof known, i == 0 ? "" : ", ", operator_->functions[i] + strlen(operator_->name) + 2, "");
  }
  return aot_torch_fail("%s: %s was not built; known: %s", operator_->name, asked, known);
}

/* activation and relu give activation__relu. */
static int choose(const call_t* call, const aot_function_info** function) {
  const aot_torch_operator* operator_ = call->operator_;
  char name[512];
  snprintf(name, sizeof name, "%s", operator_->name);
  for (uint32_t i = 0; i < operator_->choice_count; ++i) {
    const char* value = "";
    if (aot_torch.string_text(call->choices[i], &value) != 0) return refuse_choice(call);
    append(name, sizeof name, "__", value, "");
  }
  for (uint32_t i = 0; i < operator_->function_count; ++i) {
    if (strcmp(operator_->functions[i], name) != 0) continue;
    *function = operator_->found[i];
    return 0;
  }
  return refuse_choice(call);
}

static aot_value tensor_value(const aot_tensor* tensor) {
  aot_value value = {tensor == NULL ? AOT_NONE : AOT_TENSOR, 0, {0}};
  value.as.pointer = tensor;
  return value;
}

static aot_value input_value(const call_t* call, int32_t number) {
  aot_torch_kind kind = call->operator_->inputs[number].kind;
  if (kind == AOT_TORCH_TENSOR || kind == AOT_TORCH_OPTIONAL_TENSOR) return tensor_value(call->seen[number].tensor);
  aot_value value = {kind == AOT_TORCH_FLOAT ? AOT_FLOAT : kind == AOT_TORCH_INT ? AOT_INT : AOT_BOOL, 0, {0}};
  if (kind == AOT_TORCH_FLOAT) memcpy(&value.as.number, &call->stack[number], sizeof value.as.number);
  else value.as.integer = call->seen[number].number;
  return value;
}

static aot_value output_value(const call_t* call, uint32_t number) {
  return tensor_value(call->outputs[number] == NULL ? NULL : &call->output_tensors[number]);
}

/* Torch gives the memory to later work on the same stream alone, so that it may be freed once the kernel is launched. */
static int take_workspace(call_t* call, const aot_function_info* function, aot_value* values, uint32_t at,
                          aot_tensor* tensor) {
  const aot_torch_operator* operator_ = call->operator_;
  int64_t bytes = 0, step = 1;
  int32_t type = -1, index = -1;
  aot_torch_handle beside = call->inputs[operator_->device_of];
  int status = aot_torch_workspace_size(function, values, operator_->parameter_count, &bytes);
  if (status != 0 || bytes == 0) return status;
  if (aot_torch.get_device_type(beside, &type) != 0 || aot_torch.get_device_index(beside, &index) != 0 ||
      aot_torch.empty(1, &bytes, &step, aot_torch.dtypes[AOT_TORCH_DTYPE_u8], type, index, &call->workspace) != 0) {
    call->workspace = NULL;
    return aot_torch_fail("%s: torch cannot allocate its scratch memory; its own message is in the log",
                          operator_->name, NULL, NULL);
  }
  status = describe(operator_, "workspace", call->workspace, tensor);
  if (status == 0) values[at] = tensor_value(tensor);
  return status;
}

static int launch(call_t* call) {
  const aot_torch_operator* operator_ = call->operator_;
  aot_value values[2 * AOT_TORCH_MAX_ARGUMENTS];
  const aot_function_info* function = NULL;
  aot_tensor workspace;
  uint32_t workspace_at = operator_->parameter_count;
  void* stream = NULL;
  int status = choose(call, &function);
  if (status != 0) return status;
  for (uint32_t i = 0; i < operator_->parameter_count; ++i) {
    int32_t at = operator_->order[i];
    if (at == AOT_TORCH_WORKSPACE) workspace_at = i;
    values[i] = at >= 0                     ? input_value(call, at)
                : at == AOT_TORCH_WORKSPACE ? tensor_value(NULL)
                                            : output_value(call, (uint32_t)(-1 - at));
  }
  if (workspace_at < operator_->parameter_count) {
    status = take_workspace(call, function, values, workspace_at, &workspace);
    if (status != 0) return status;
  }
  const aot_tensor* first = &call->input_tensors[operator_->device_of];
  if (first->device_type == AOT_DEVICE_CUDA) status = aot_torch_current_stream(first->device_id, &stream);
  return status == 0 ? aot_torch_invoke(function, stream, values, operator_->parameter_count) : status;
}

/* ---- the whole ---- */

static int run(call_t* call) {
  int status = aot_torch_open();
  if (status == 0) status = describe_inputs(call);
  if (status == 0) status = heed_autograd(call);
  if (status == 0) status = prepare_outputs(call);
  return status == 0 ? launch(call) : status;
}

static void perform(const aot_torch_operator* operator_, uint64_t* stack, int writes) {
  call_t call;
  call.operator_ = operator_;
  call.stack = stack;
  call.writes = writes;
  call.workspace = NULL;
  take(&call);
  int status = run(&call);
  for (uint32_t i = 0; status == 0 && !writes && i < operator_->output_count; ++i) {
    stack[i] = as_slot(call.outputs[i]); /* torch owns it from here on */
    call.outputs[i] = NULL;
  }
  release(&call);
  if (status != 0) aot_torch_raise(aot_torch_error());
}

void aot_torch_allocate(const aot_torch_operator* operator_, uint64_t* stack) { perform(operator_, stack, 0); }

void aot_torch_write(const aot_torch_operator* operator_, uint64_t* stack) { perform(operator_, stack, 1); }
