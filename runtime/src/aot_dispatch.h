/* A call of a public function. */
#ifndef AOT_DISPATCH_H_
#define AOT_DISPATCH_H_

#include "aot_bundle.h"

/* 0, or -1 with an error raised. */
int aot_dispatch(aot_function_t* function, const TVMFFIAny* args, int32_t count, TVMFFIAny* result);

/* The same with the variant of that name, whatever selection would choose: for measuring one against the other. It must
 * take the call. */
int aot_dispatch_variant(aot_function_t* function, const char* name, const TVMFFIAny* args, int32_t count,
                         TVMFFIAny* result);

/* How many bytes of scratch memory that call needs, as an integer; nothing is launched. */
int aot_dispatch_workspace(aot_function_t* function, const TVMFFIAny* args, int32_t count, TVMFFIAny* result);

#endif /* AOT_DISPATCH_H_ */
