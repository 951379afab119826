/* The bundle beside lib<name>_torch.so, used through aot.h. This is the only unit that includes that header, which holds
 * definitions and takes a compiler ten times as long as all else here.
 *
 * Functions that return an int return 0, or -1 with a sentence for aot_torch_error. */
#ifndef AOT_TORCH_BUNDLE_H_
#define AOT_TORCH_BUNDLE_H_

#include "aot_torch_table.h"

/* Notes where this library lies, while a relative path still means what it meant to who opened it. Returns NULL, or a
 * sentence that says why this cannot be. */
const char* aot_torch_locate(void);

/* Opens the bundle at the first call and finds its functions. */
int aot_torch_open(void);

/* Calls a function of the bundle on a stream. */
int aot_torch_workspace_size(const aot_function_info* function, const aot_value* values, uint32_t count, int64_t* bytes);
int aot_torch_invoke(const aot_function_info* function, void* stream, const aot_value* values, uint32_t count);

/* Keeps a sentence for this thread; `format` holds three %s at most. Returns -1. */
int aot_torch_fail(const char* format, const char* first, const char* second, const char* third);
const char* aot_torch_error(void);

#endif /* AOT_TORCH_BUNDLE_H_ */
