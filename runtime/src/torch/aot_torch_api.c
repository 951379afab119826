/* Finds the torch of the process. Python loads torch for itself alone, so that its functions cannot be linked to: they
 * are looked up in the library that is loaded already. */
#define _GNU_SOURCE /* RTLD_DEFAULT */
#include "aot_torch_api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aot_torch_bundle.h"

aot_torch_api aot_torch;

static const struct {
  const char* name;
  size_t offset;
} needed[] = {
    {"aoti_torch_library_init_fragment", offsetof(aot_torch_api, library_init_fragment)},
    {"aoti_torch_library_init_impl", offsetof(aot_torch_api, library_init_impl)},
    {"aoti_torch_library_def", offsetof(aot_torch_api, library_def)},
    {"torch_library_impl", offsetof(aot_torch_api, library_impl)},
    {"aoti_torch_delete_library_object", offsetof(aot_torch_api, delete_library)},
    {"torch_call_dispatcher", offsetof(aot_torch_api, call)},
    {"aoti_torch_check", offsetof(aot_torch_api, check)},
    {"aoti_torch_get_data_ptr", offsetof(aot_torch_api, get_data)},
    {"aoti_torch_get_dim", offsetof(aot_torch_api, get_rank)},
    {"aoti_torch_get_sizes", offsetof(aot_torch_api, get_sizes)},
    {"aoti_torch_get_strides", offsetof(aot_torch_api, get_strides)},
    {"aoti_torch_get_dtype", offsetof(aot_torch_api, get_dtype)},
    {"aoti_torch_get_device_type", offsetof(aot_torch_api, get_device_type)},
    {"aoti_torch_get_device_index", offsetof(aot_torch_api, get_device_index)},
    {"aoti_torch_empty_strided", offsetof(aot_torch_api, empty)},
    {"aoti_torch_new_tensor_handle", offsetof(aot_torch_api, new_handle)},
    {"aoti_torch_delete_tensor_object", offsetof(aot_torch_api, delete_tensor)},
    {"torch_string_c_str", offsetof(aot_torch_api, string_text)},
    {"torch_delete_string", offsetof(aot_torch_api, delete_string)},
    {"aoti_torch_grad_mode_is_enabled", offsetof(aot_torch_api, grad_enabled)},
    {"aoti_torch_device_type_cuda", offsetof(aot_torch_api, cuda_type)},
    {"aoti_torch_device_type_cpu", offsetof(aot_torch_api, cpu_type)},
};

#define DTYPE_FUNCTION(name, function, code, bits, lanes) function,
static const char* const dtype_functions[AOT_TORCH_DTYPE_COUNT] = {AOT_TORCH_DTYPES(DTYPE_FUNCTION)};

static void put(size_t offset, void* address) { memcpy((char*)&aot_torch + offset, &address, sizeof address); }

static const char* refuse_version(void* torch, const char* missing) {
  static char text[256];
  typedef uint64_t (*version_function)(void);
  version_function version;
  void* address = dlsym(torch, "aoti_torch_abi_version");
  memcpy(&version, &address, sizeof version);
  unsigned major = version == NULL ? 0 : (unsigned)(version() >> 56 & 0xff);
  unsigned minor = version == NULL ? 0 : (unsigned)(version() >> 48 & 0xff);
  char number[32] = "";
  if (version != NULL) snprintf(number, sizeof number, " %u.%u", major, minor);
  snprintf(text, sizeof text, "this torch%s lacks `%s`; operators from C need torch 2.10 or newer", number, missing);
  return text;
}

/* torch's numbers of dtypes. An old torch does not have the newest dtypes. */
static void find_dtypes(void* torch) {
  for (int i = 0; i < AOT_TORCH_DTYPE_COUNT; ++i) {
    typedef int32_t (*dtype_function)(void);
    dtype_function get;
    void* address = dlsym(torch, dtype_functions[i]);
    memcpy(&get, &address, sizeof get);
    aot_torch.dtypes[i] = get == NULL ? -1 : get();
  }
}

/* Before torch 2.13 a box is freed with C++'s operator delete. An allocator that replaces it for the whole process goes
 * first, as it does for torch itself; otherwise torch's C++ library has it. */
static void find_deletes(void* torch) {
  void* global = dlsym(RTLD_DEFAULT, "_ZdlPv");
  put(offsetof(aot_torch_api, operator_delete), global != NULL ? global : dlsym(torch, "_ZdlPv"));
  put(offsetof(aot_torch_api, delete_box), dlsym(torch, "torch_delete_stable_ivalue"));
}

const char* aot_torch_find(void) {
  /* A program that has torch linked in statically has its functions in the program itself. */
  void* loaded = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  void* torch = loaded != NULL ? loaded : RTLD_DEFAULT;
  if (dlsym(torch, "aoti_torch_get_data_ptr") == NULL) {
    return "there is no torch in this process: open this library after `libtorch_cpu.so`";
  }
  for (size_t i = 0; i < sizeof needed / sizeof needed[0]; ++i) {
    void* address = dlsym(torch, needed[i].name);
    if (address == NULL) return refuse_version(torch, needed[i].name);
    put(needed[i].offset, address);
  }
  find_dtypes(torch);
  find_deletes(torch);
  if (aot_torch.operator_delete == NULL && aot_torch.delete_box == NULL) return refuse_version(torch, "operator delete");
  return NULL;
}

int aot_torch_current_stream(int32_t device, void** stream) {
  typedef int32_t (*stream_function)(int32_t, void**);
  static void* found; /* every thread finds the same address */
  stream_function get;
  void* address = __atomic_load_n(&found, __ATOMIC_RELAXED);
  if (address == NULL) {
    void* loaded = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    address = dlsym(loaded != NULL ? loaded : RTLD_DEFAULT, "aoti_torch_get_current_cuda_stream");
    if (address == NULL) {
      return aot_torch_fail("this torch has no CUDA: `libtorch_cuda.so` is not in the process", NULL, NULL, NULL);
    }
    __atomic_store_n(&found, address, __ATOMIC_RELAXED);
  }
  memcpy(&get, &address, sizeof get);
  if (get(device, stream) == 0) return 0;
  return aot_torch_fail("torch does not say which CUDA stream is current", NULL, NULL, NULL);
}

/* C cannot throw. aoti_torch_check can, and is part of the stable interface: shim.h declares it, and the packages of
 * AOTInductor call it for their own checks, so that torch cannot drop it without breaking packages that exist. The
 * exception passes through the functions below the caller, which have unwind tables (-fexceptions) and nothing to free. */
void aot_torch_raise(const char* text) {
  aot_torch.check(0, "operator", "cute-aot", 0, text);
  abort(); /* not reached */
}
