/* The C ABI of include/aot/abi.h, on top of what TVM-FFI callers use. */
#include "aot_abi.h"

#include <string.h>

#include "aot_driver.h"
#include "aot_error.h"
#include "aot_load.h"
#include "aot_open.h"
#include "aot_protocol.h"
#include "aot_rank.h"

#include <tvm/ffi/extra/c_env_api.h>

int aot_abi_set_stream(int32_t device, void* stream, void** previous) {
  return TVMFFIEnvSetStream(kDLCUDA, device, stream, previous);
}

void aot_abi_take_error(void* context, aot_error_receiver receive) {
  TVMFFIObjectHandle raised = NULL;
  TVMFFIErrorMoveFromRaised(&raised);
  if (raised == NULL) {
    receive(context, "", 0, "", 0);
    return;
  }
  const TVMFFIErrorCell* cell = (const TVMFFIErrorCell*)((const char*)raised + sizeof(TVMFFIObject));
  receive(context, cell->kind.data, cell->kind.size, cell->message.data, cell->message.size);
  TVMFFIObjectDecRef(raised);
}

int aot_abi_configure(int32_t verify, const char* directory) {
  return aot_configure(verify != 0, directory == NULL ? "" : directory);
}

static int has_code_for(const aot_function_t* function, aot_capability_t capability) {
  for (uint32_t i = 0; i < function->kernel->build_count; ++i) {
    const aot_build_t* build = &function->kernel->builds[i];
    if (aot_build_present(build) && aot_arch_rank(build->arch, capability) != 0) return 1;
  }
  return 0;
}

static int preload_all(int32_t index) {
  aot_device_t device;
  uint32_t loaded = 0;
  if (aot_check_device(index) != 0 || aot_driver_device(index, &device) != 0) return -1;
  for (uint32_t i = 0; i < aot_function_count; ++i) {
    aot_function_t* function = aot_functions[i];
    if (!has_code_for(function, device.capability)) continue;
    if (aot_function_load(function, index) != 0) return -1;
    ++loaded;
  }
  if (loaded > 0 || aot_function_count == 0) return 0;
  return aot_raise_no_build(aot_functions[0], index, &device);
}

int aot_abi_preload(const char* name, int32_t device) {
  if (name == NULL) return preload_all(device);
  aot_function_t* function = aot_find_function(name);
  if (function == NULL || aot_check_device(device) != 0) return -1;
  return aot_function_load(function, device);
}

static void copy_text(const aot_text_t* lines, char* text, size_t room, size_t* needed) {
  size_t length = strlen(aot_text_get(lines));
  if (needed != NULL) *needed = length;
  if (text == NULL || room == 0) return;
  size_t copied = length < room ? length : room - 1;
  memcpy(text, aot_text_get(lines), copied);
  text[copied] = '\0';
}

int aot_abi_explain(const char* name, int32_t major, int32_t minor, const aot_value* args, int32_t count, char* text,
                    size_t room, size_t* needed) {
  aot_text_t lines = AOT_TEXT_EMPTY;
  aot_device_t device;
  memset(&device, 0, sizeof device);
  device.capability.major = major;
  device.capability.minor = minor;
  aot_function_t* function = aot_find_function(name);
  if (function == NULL) return -1;
  int status = aot_explain_call(function, &device, (const TVMFFIAny*)args, count, &lines);
  if (status == 0) copy_text(&lines, text, room, needed);
  aot_text_free(&lines);
  return status;
}
