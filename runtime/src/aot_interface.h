/* TVM-FFI functions that every entry library exports as `__tvm_ffi_aot__<name>`. */
#ifndef AOT_INTERFACE_H_
#define AOT_INTERFACE_H_

#include <tvm/ffi/c_api.h>

int aot_interface_configure(const TVMFFIAny* args, int32_t count, TVMFFIAny* result);
int aot_interface_preload(const TVMFFIAny* args, int32_t count, TVMFFIAny* result);
int aot_interface_explain(const TVMFFIAny* args, int32_t count, TVMFFIAny* result);
int aot_interface_describe(const TVMFFIAny* args, int32_t count, TVMFFIAny* result);

#endif /* AOT_INTERFACE_H_ */
