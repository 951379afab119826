/* What a loader asks of a bundle beside calling its kernels: TVM-FFI functions, so that every language
 * reaches them the same way and errors travel as errors of TVM-FFI do. */
#include "aot_protocol.h"

#include <aot/abi.h>
#include <stdlib.h>
#include <string.h>

#include "aot_arguments.h"
#include "aot_dispatch.h"
#include "aot_error.h"
#include "aot_explain.h"
#include "aot_load.h"
#include "aot_open.h"
#include "aot_rank.h"

static int as_text(const TVMFFIAny* any, char* buffer, size_t room) {
  TVMFFIByteArray bytes = {NULL, 0};
  switch (any->type_index) {
    case kTVMFFIRawStr:
      bytes.data = any->v_c_str;
      bytes.size = any->v_c_str == NULL ? 0 : strlen(any->v_c_str);
      break;
    case kTVMFFISmallStr:
      bytes.data = any->v_bytes;
      bytes.size = any->small_str_len;
      break;
    case kTVMFFIStr:
      bytes = *(const TVMFFIByteArray*)((const char*)any->v_obj + sizeof(TVMFFIObject));
      break;
    default: break;
  }
  if (bytes.data == NULL || bytes.size >= room || memchr(bytes.data, 0, bytes.size) != NULL) return -1;
  memcpy(buffer, bytes.data, bytes.size);
  buffer[bytes.size] = '\0';
  return 0;
}

aot_function_t* aot_find_function(const char* name) {
  for (uint32_t i = 0; i < aot_function_count; ++i) {
    if (strcmp(aot_functions[i]->name, name) == 0) return aot_functions[i];
  }
  aot_raise("AotArgumentError", "bundle `%s` has no function `%s`", aot_this_bundle.name, name);
  return NULL;
}

static aot_function_t* function_argument(const TVMFFIAny* any) {
  char name[256];
  if (as_text(any, name, sizeof name) != 0) {
    aot_raise("AotArgumentError", "the name of a function must be a string of at most 255 bytes");
    return NULL;
  }
  return aot_find_function(name);
}

static void return_integer(TVMFFIAny* result, int64_t value) {
  memset(result, 0, sizeof *result);
  result->type_index = kTVMFFIInt;
  result->v_int64 = value;
}

static int check_count(const char* function, int32_t count, int32_t least, int32_t most) {
  if (count >= least && count <= most) return 0;
  const char* bound = least == most ? "" : "at least ";
  return aot_raise("AotArgumentError", "aot__%s takes %s%d arguments, got %d", function, bound, least, count);
}

static int check_integers(const char* function, const TVMFFIAny* args, int32_t first, int32_t last) {
  for (int32_t i = first; i < last; ++i) {
    if (args[i].type_index != kTVMFFIInt) {
      return aot_raise("AotArgumentError", "aot__%s: argument %d must be an int", function, i);
    }
  }
  return 0;
}

/* protocol(): the version of what loaders may call, major * 1000 + minor. */
int aot_protocol_version(const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)args;
  if (check_count("protocol", count, 0, 0) != 0) return -1;
  return_integer(result, AOT_PROTOCOL_MAJOR * 1000 + AOT_PROTOCOL_MINOR);
  return 0;
}

/* identity(): the digest that the builder compiled in. */
int aot_protocol_identity(const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)args;
  if (check_count("identity", count, 0, 0) != 0) return -1;
  TVMFFIByteArray digits = {aot_identity, sizeof aot_identity - 1};
  return TVMFFIStringFromByteArray(&digits, result);
}

/* configure(verify, directory): whether digests are checked before code is opened, and where the code lies. */
int aot_protocol_configure(const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  char directory[AOT_MAX_PATH];
  (void)result;
  if (check_count("configure", count, 2, 2) != 0 || check_integers("configure", args, 0, 1) != 0) return -1;
  if (as_text(&args[1], directory, sizeof directory) != 0) {
    return aot_raise("AotArgumentError", "aot__configure: argument 1 must be the path of a directory, a string");
  }
  return aot_configure(args[0].v_int64 != 0, directory);
}

int aot_check_device(int64_t device) {
  if (device >= 0 && device < AOT_MAX_DEVICES) return 0;
  return aot_raise("AotArgumentError", "preload: device %lld is not one of 0 to %d", (long long)device, AOT_MAX_DEVICES - 1);
}

/* open_support(): what the first call of any kernel opens. No question to the driver, so that a process may fork later. */
int aot_protocol_open_support(const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)args;
  (void)result;
  return check_count("open_support", count, 0, 0) != 0 ? -1 : aot_support_open();
}

/* preload(function, device): every variant that may run there is loaded. */
int aot_protocol_preload(const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  (void)result;
  if (check_count("preload", count, 2, 2) != 0 || check_integers("preload", args, 1, 2) != 0) return -1;
  aot_function_t* function = function_argument(&args[0]);
  if (function == NULL || aot_check_device(args[1].v_int64) != 0) return -1;
  return aot_function_load(function, (int32_t)args[1].v_int64);
}

int aot_explain_call(aot_function_t* function, const aot_device_t* device, const TVMFFIAny* args, int32_t count,
                     aot_text_t* lines) {
  aot_arguments_t arguments;
  if (count != (int32_t)function->argument_count) return aot_raise_argument_count(function, count);
  aot_arguments_decode(&arguments, args, (uint32_t)count);
  arguments.device = 0;
  arguments.hypothetical = AOT_ASKED;
  return aot_explain_variants(function, device, &arguments, lines);
}

static int return_explanation(aot_function_t* function, const aot_device_t* device, const TVMFFIAny* args, int32_t count,
                              TVMFFIAny* result) {
  aot_text_t lines = AOT_TEXT_EMPTY;
  int status = aot_explain_call(function, device, args, count, &lines);
  if (status == 0) {
    TVMFFIByteArray bytes = {aot_text_get(&lines), lines.length};
    status = TVMFFIStringFromByteArray(&bytes, result);
  }
  aot_text_free(&lines);
  return status;
}

static void describe_device(aot_device_t* device, const TVMFFIAny* capability) {
  memset(device, 0, sizeof *device);
  device->capability.major = (int32_t)capability[0].v_int64;
  device->capability.minor = (int32_t)capability[1].v_int64;
}

/* explain(function, major, minor, *arguments): the lines of aot_explain_variants, without touching a device. No table is
 * for such a device. */
int aot_protocol_explain(const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  aot_device_t device;
  if (check_count("explain", count, 3, INT32_MAX) != 0 || check_integers("explain", args, 1, 3) != 0) return -1;
  aot_function_t* function = function_argument(&args[0]);
  if (function == NULL) return -1;
  describe_device(&device, args + 1);
  return return_explanation(function, &device, args + 3, count - 3, result);
}

/* The same for a device of which `facts` integers are given after its name. */
static int explain_named(const char* what, int32_t facts, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  aot_device_t device;
  int32_t first = 4 + facts;
  if (check_count(what, count, first, INT32_MAX) != 0 || check_integers(what, args, 1, 3) != 0 ||
      check_integers(what, args, 4, first) != 0) {
    return -1;
  }
  aot_function_t* function = function_argument(&args[0]);
  if (function == NULL) return -1;
  describe_device(&device, args + 1);
  device.multiprocessors = (int32_t)args[4].v_int64;
  if (facts > 1) device.bandwidth = (int32_t)args[5].v_int64;
  if (as_text(&args[3], device.name, sizeof device.name) != 0) {
    return aot_raise("AotArgumentError", "aot__%s: argument 3 must be the name of a device, a string", what);
  }
  return return_explanation(function, &device, args + first, count - first, result);
}

/* explain_on(function, major, minor, name, multiprocessors, *arguments): the same for a device of that name and size,
 * which takes its own table or the nearest. */
int aot_protocol_explain_on(const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  return explain_named("explain_on", 1, args, count, result);
}

/* explain_part(function, major, minor, name, multiprocessors, bandwidth, *arguments): the same, with GB/s of its memory. */
int aot_protocol_explain_part(const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  return explain_named("explain_part", 2, args, count, result);
}

/* On every GPU that the function has code for. If none takes the arguments, the newest one's refusal tells why. */
static int check_on_all(const aot_function_t* function, const aot_arguments_t* arguments) {
  const aot_kernel_t* kernel = function->kernel;
  const aot_build_t* newest = &kernel->builds[0];
  aot_device_t device;
  memset(&device, 0, sizeof device);
  for (uint32_t i = 0; i < kernel->build_count; ++i) {
    const aot_build_t* build = &kernel->builds[i];
    device.capability.major = build->arch.major;
    device.capability.minor = build->arch.minor;
    if (aot_check_arguments(function, &device, arguments) == 0) return 0;
    aot_error_clear();
    int is_newer = build->arch.major * 10 + build->arch.minor > newest->arch.major * 10 + newest->arch.minor;
    if (is_newer) newest = build;
  }
  device.capability.major = newest->arch.major;
  device.capability.minor = newest->arch.minor;
  return aot_check_arguments(function, &device, arguments);
}

/* check(function, device, *arguments): raises if a call with such arguments would be refused. */
int aot_protocol_check(const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  aot_arguments_t arguments;
  (void)result;
  if (check_count("check", count, 2, INT32_MAX) != 0 || check_integers("check", args, 1, 2) != 0) return -1;
  aot_function_t* function = function_argument(&args[0]);
  if (function == NULL) return -1;
  if (count - 2 != (int32_t)function->argument_count) return aot_raise_argument_count(function, count - 2);
  aot_arguments_decode(&arguments, args + 2, (uint32_t)count - 2);
  arguments.device = 0;
  arguments.hypothetical = AOT_PARTLY_KNOWN;
  int64_t device = args[1].v_int64;
  if (device < 0 || device >= AOT_MAX_DEVICES) return check_on_all(function, &arguments);
  const aot_ranking_t* ranking = aot_function_ranking(function, (int32_t)device);
  return ranking == NULL ? -1 : aot_check_arguments(function, &ranking->device, &arguments);
}

/* run_variant(function, variant, *arguments): a call that is not chosen but named. */
int aot_protocol_run_variant(const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  char variant[1024];
  if (check_count("run_variant", count, 2, INT32_MAX) != 0) return -1;
  aot_function_t* function = function_argument(&args[0]);
  if (function == NULL) return -1;
  if (as_text(&args[1], variant, sizeof variant) != 0) {
    return aot_raise("AotArgumentError", "aot__run_variant: argument 1 must be the name of a variant, a string");
  }
  return aot_dispatch_variant(function, variant, args + 2, count - 2, result);
}

static void free_described(DLManagedTensorVersioned* described) { free(described); }

/* describe(code, bits, lanes, alignment, ndim, *shape, *strides): a tensor that has a shape and no
 * memory, for asking explain about calls that nobody wants to make. */
int aot_protocol_describe(const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  if (check_count("describe", count, 5, INT32_MAX) != 0 || check_integers("describe", args, 0, count) != 0) return -1;
  int64_t ndim = args[4].v_int64;
  if (ndim < 0 || ndim > 32 || count != 5 + 2 * ndim) {
    return aot_raise("AotArgumentError", "aot__describe: shape and strides must agree");
  }
  size_t room = sizeof(DLManagedTensorVersioned) + 2 * (size_t)ndim * sizeof(int64_t);
  DLManagedTensorVersioned* described = (DLManagedTensorVersioned*)calloc(1, room);
  if (described == NULL) return aot_raise_out_of_memory();
  int64_t* numbers = (int64_t*)(described + 1);
  for (int64_t i = 0; i < 2 * ndim; ++i) numbers[i] = args[5 + i].v_int64;
  described->version.major = DLPACK_MAJOR_VERSION;
  described->version.minor = DLPACK_MINOR_VERSION;
  described->deleter = free_described;
  DLTensor* tensor = &described->dl_tensor;
  tensor->data = (void*)(uintptr_t)args[3].v_int64; /* an address of just that alignment, never read */
  tensor->device.device_type = kDLCUDA;
  tensor->device.device_id = -1; /* it overlaps nothing */
  tensor->ndim = (int32_t)ndim;
  tensor->dtype.code = (uint8_t)args[0].v_int64;
  tensor->dtype.bits = (uint8_t)args[1].v_int64;
  tensor->dtype.lanes = (uint16_t)args[2].v_int64;
  tensor->shape = numbers;
  tensor->strides = numbers + ndim;
  TVMFFIObjectHandle handle = NULL;
  if (TVMFFITensorFromDLPackVersioned(described, 0, 0, &handle) != 0) {
    free(described);
    return -1;
  }
  memset(result, 0, sizeof *result);
  result->type_index = kTVMFFITensor;
  result->v_obj = (TVMFFIObject*)handle;
  return 0;
}
