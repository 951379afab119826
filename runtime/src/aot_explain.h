/* Saying what was chosen and why the rest was not. */
#ifndef AOT_EXPLAIN_H_
#define AOT_EXPLAIN_H_

#include "aot_arguments.h"
#include "aot_bundle.h"
#include "aot_text.h"

/* Each raises a TVM-FFI error and returns -1. */
int aot_raise_argument_count(const aot_function_t* function, int32_t count);
int aot_raise_no_device(const aot_function_t* function, const aot_arguments_t* arguments);
int aot_raise_no_variant(const aot_function_t* function, const aot_device_t* device,
                         const aot_arguments_t* arguments);

/* 0 if a variant takes the arguments, as far as they are known; or the same error. */
int aot_check_arguments(const aot_function_t* function, const aot_device_t* device, const aot_arguments_t* arguments);

/* Appends the signature of a function and what it is called with. */
void aot_append_call(aot_text_t* text, const aot_function_t* function, const aot_arguments_t* arguments);

/* One line per variant, `arch TAB variant TAB reason`, the reason empty if it would run; the chosen one carries a `*`
 * before its architecture. 0, or -1 with an error raised. */
int aot_explain_variants(const aot_function_t* function, const aot_device_t* device, aot_arguments_t* arguments,
                         aot_text_t* lines);

#endif /* AOT_EXPLAIN_H_ */
