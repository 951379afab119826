/* As much of torch's C interface as lib<name>_torch.so uses, for tests without torch: CUDA tensors that are descriptions
 * alone, and a count of everything that is handed out. */
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  void* data;
  int64_t rank, sizes[8], strides[8];
  int32_t dtype, device_type, device;
  int requires_grad;
} tensor_t;

typedef void (*boxed_t)(uint64_t*, uint64_t, uint64_t);

int played_grad_mode = 0, played_fails_to_allocate = 0;
long played_live = 0; /* handles, strings and boxes */
static struct {
  char name[64];
  boxed_t function;
} implementations[16];
static char schemas[16][256], key[16];
static int implementation_count, schema_count;
static char thrown[4096];
static jmp_buf caller;

/* ---- for the test ---- */

void* played_tensor(void* data, int64_t rank, const int64_t* sizes, int32_t dtype, int32_t device_type, int32_t device,
                    int requires_grad) {
  tensor_t* made = (tensor_t*)calloc(1, sizeof *made);
  int64_t stride = 1;
  made->data = data;
  made->rank = rank;
  for (int64_t i = rank; i-- > 0; stride *= sizes[i]) {
    made->sizes[i] = sizes[i];
    made->strides[i] = stride;
  }
  made->dtype = dtype;
  made->device_type = device_type;
  made->device = device;
  made->requires_grad = requires_grad;
  ++played_live;
  return made;
}

void* played_string(const char* text) {
  ++played_live;
  return strdup(text);
}

const char* played_key(void) { return key; }
const char* played_schema(int number) { return number < schema_count ? schemas[number] : NULL; }

static boxed_t find(const char* name) {
  for (int i = 0; i < implementation_count; ++i) {
    if (strcmp(implementations[i].name, name) == 0) return implementations[i].function;
  }
  return NULL;
}

/* NULL, or what was thrown. */
const char* played_call(const char* name, uint64_t* stack, uint64_t inputs, uint64_t outputs) {
  const boxed_t function = find(name);
  if (function == NULL) return "there is no such operator";
  if (setjmp(caller) != 0) return thrown;
  function(stack, inputs, outputs);
  return NULL;
}

/* ---- torch ---- */

int32_t aoti_torch_library_init_fragment(const char* name, const char* file, uint32_t line, void** made) {
  (void)name, (void)file, (void)line;
  *made = schemas;
  return 0;
}
int32_t aoti_torch_library_init_impl(const char* name, const char* k, const char* file, uint32_t line, void** made) {
  (void)name, (void)file, (void)line;
  snprintf(key, sizeof key, "%s", k);
  *made = implementations;
  return 0;
}
int32_t aoti_torch_library_def(void* library, const char* schema) {
  snprintf(schemas[schema_count++], sizeof schemas[0], "%s", schema);
  return library == schemas ? 0 : 1;
}
int32_t torch_library_impl(void* library, const char* name, boxed_t function, uint64_t version) {
  if (library != implementations || version != ((UINT64_C(2) << 56) | (UINT64_C(10) << 48))) return 1;
  snprintf(implementations[implementation_count].name, sizeof implementations[0].name, "%s", name);
  implementations[implementation_count++].function = function;
  return 0;
}
int32_t aoti_torch_delete_library_object(void* library) { return library == NULL; }
void aoti_torch_check(_Bool condition, const char* function, const char* file, uint32_t line, const char* text) {
  (void)function, (void)file, (void)line;
  if (condition) return;
  snprintf(thrown, sizeof thrown, "%s", text);
  longjmp(caller, 1); /* in the place of an exception */
}
int32_t aoti_torch_delete_tensor_object(void* tensor) {
  --played_live;
  free(tensor);
  return 0;
}
int32_t aoti_torch_new_tensor_handle(const tensor_t* tensor, tensor_t** made) {
  *made = (tensor_t*)malloc(sizeof **made);
  **made = *tensor;
  ++played_live;
  return 0;
}
int32_t torch_call_dispatcher(const char* name, const char* overload, uint64_t* stack, uint64_t version) {
  tensor_t* first = (tensor_t*)(uintptr_t)stack[0];
  (void)overload, (void)version;
  if (strcmp(name, "aten::alias") == 0) return 0;
  if (strcmp(name, "aten::is_leaf") == 0) stack[0] = !(played_grad_mode && first->requires_grad);
  if (strcmp(name, "aten::copy_") == 0) first = (tensor_t*)(uintptr_t)stack[1];
  aoti_torch_delete_tensor_object(first);
  return 0;
}
int32_t aoti_torch_get_data_ptr(const tensor_t* t, void** data) { return *data = t->data, 0; }
int32_t aoti_torch_get_dim(const tensor_t* t, int64_t* rank) { return *rank = t->rank, 0; }
int32_t aoti_torch_get_sizes(tensor_t* t, int64_t** sizes) { return *sizes = t->sizes, 0; }
int32_t aoti_torch_get_strides(tensor_t* t, int64_t** strides) { return *strides = t->strides, 0; }
int32_t aoti_torch_get_dtype(const tensor_t* t, int32_t* dtype) { return *dtype = t->dtype, 0; }
int32_t aoti_torch_get_device_type(const tensor_t* t, int32_t* type) { return *type = t->device_type, 0; }
int32_t aoti_torch_get_device_index(const tensor_t* t, int32_t* index) { return *index = t->device, 0; }
int32_t aoti_torch_empty_strided(int64_t rank, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t type,
                                 int32_t device, void** made) {
  (void)strides;
  if (played_fails_to_allocate) return 1;
  *made = played_tensor((void*)UINT64_C(0x7e0000000000), rank, sizes, dtype, type, device, 0);
  return 0;
}
int32_t torch_string_c_str(const char* string, const char** text) { return *text = string, 0; }
int32_t torch_delete_string(void* string) { return aoti_torch_delete_tensor_object(string); }
int32_t torch_delete_stable_ivalue(void* box) { return aoti_torch_delete_tensor_object(box); }
_Bool aoti_torch_grad_mode_is_enabled(void) { return played_grad_mode; }
int32_t aoti_torch_device_type_cuda(void) { return 101; } /* numbers that no other table has */
int32_t aoti_torch_device_type_cpu(void) { return 100; }
int32_t aoti_torch_dtype_float32(void) { return 206; }
int32_t aoti_torch_dtype_float64(void) { return 207; }
int32_t aoti_torch_dtype_uint8(void) { return 200; }
