/* Functions that the builder puts into a bundle's `aot_core` and `aot_interface`. */
#ifndef AOT_BUNDLE_ABI_H_
#define AOT_BUNDLE_ABI_H_

#include <aot/abi.h>

int aot_abi_set_stream(int32_t device, void* stream, void** previous);
void aot_abi_take_error(void* context, aot_error_receiver receive);
int aot_abi_configure(int32_t verify, const char* directory);
int aot_abi_preload(const char* name, int32_t device);
int aot_abi_explain(const char* name, int32_t major, int32_t minor, const aot_value* args, int32_t count, char* text,
                    size_t room, size_t* needed);

#endif /* AOT_BUNDLE_ABI_H_ */
