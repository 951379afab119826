/* Saying what was chosen and why the rest was not. */
#ifndef AOT_EXPLAIN_H_
#define AOT_EXPLAIN_H_

#include "aot_bundle.h"
#include "aot_text.h"

/* Each raises a TVM-FFI error and returns -1. */
int aot_raise_argument_count(const aot_function_t* function, int32_t count);
int aot_raise_no_device(const aot_function_t* function, const aot_arguments_t* arguments);
int aot_raise_no_build(const aot_function_t* function, int32_t device, aot_capability_t capability);
int aot_raise_no_variant(const aot_function_t* function, aot_capability_t capability,
                         const aot_arguments_t* arguments);

/* One line per candidate, `arch TAB variant TAB reason`, the reason empty where it would run; the
 * chosen one carries a `*` before its architecture. */
int aot_explain(const aot_function_t* function, aot_capability_t capability, aot_arguments_t* arguments,
                aot_text_t* lines);

#endif /* AOT_EXPLAIN_H_ */
