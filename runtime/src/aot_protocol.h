/* TVM-FFI functions that every entry library exports as `__tvm_ffi_aot__<name>`. */
#ifndef AOT_PROTOCOL_H_
#define AOT_PROTOCOL_H_

#include "aot_bundle.h"
#include "aot_text.h"

int aot_protocol_version(const TVMFFIAny* args, int32_t count, TVMFFIAny* result);
int aot_protocol_identity(const TVMFFIAny* args, int32_t count, TVMFFIAny* result);
int aot_protocol_configure(const TVMFFIAny* args, int32_t count, TVMFFIAny* result);
int aot_protocol_open_support(const TVMFFIAny* args, int32_t count, TVMFFIAny* result);
int aot_protocol_preload(const TVMFFIAny* args, int32_t count, TVMFFIAny* result);
int aot_protocol_explain(const TVMFFIAny* args, int32_t count, TVMFFIAny* result);
int aot_protocol_explain_on(const TVMFFIAny* args, int32_t count, TVMFFIAny* result);
int aot_protocol_explain_part(const TVMFFIAny* args, int32_t count, TVMFFIAny* result);
int aot_protocol_run_variant(const TVMFFIAny* args, int32_t count, TVMFFIAny* result);
int aot_protocol_check(const TVMFFIAny* args, int32_t count, TVMFFIAny* result);
int aot_protocol_describe(const TVMFFIAny* args, int32_t count, TVMFFIAny* result);

/* The same for callers that speak C. Each returns 0, or -1 with an error raised; aot_find_function then returns NULL. */
aot_function_t* aot_find_function(const char* name);
int aot_check_device(int64_t device);
int aot_explain_call(aot_function_t* function, const aot_device_t* device, const TVMFFIAny* args, int32_t count,
                     aot_text_t* lines);

#endif /* AOT_PROTOCOL_H_ */
