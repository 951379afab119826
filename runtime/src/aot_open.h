/* Opening native code: find it beside the entry library, compare its digest, map it for good. */
#ifndef AOT_OPEN_H_
#define AOT_OPEN_H_

#include "aot_bundle.h"

enum { AOT_MAX_PATH = 4096 }; /* with the final zero */

/* What a loader says before it uses the bundle; see `configure` in aot/abi.h. 0, or -1 with an error raised. */
int aot_configure(int verify, const char* directory);

/* Opens the kernel library that a candidate needs, if it is not open yet. 0, or -1 with an error raised. Different
 * builds are opened at the same time. */
int aot_candidate_open(const aot_function_t* function, aot_candidate_t* candidate);

/* Opens the support library, if it is not open yet. 0, or -1 with an error raised. */
int aot_support_open(void);

/* A function of the support library, which is open. NULL if it has none of that name. */
void* aot_support_symbol(const char* name);
const char* aot_support_name(void);

#endif /* AOT_OPEN_H_ */
