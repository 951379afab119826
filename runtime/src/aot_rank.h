/* Which builds of a kernel run on a device, best first. */
#ifndef AOT_RANK_H_
#define AOT_RANK_H_

#include "aot_bundle.h"
#include "aot_text.h"

/* How good a build is on a device, higher is better; 0 if it does not run there, or is not in this program. */
int32_t aot_build_rank(const aot_build_t* build, const aot_device_t* device);

/* Ranks the builds of a function for a device into `candidates` (room for all), best first. */
uint32_t aot_rank_builds(const aot_function_t* function, const aot_device_t* device, aot_candidate_t* candidates);

/* Why aot_build_rank is 0. */
void aot_append_unrunnable(aot_text_t* text, const aot_build_t* build, const aot_device_t* device);

/* The ranking for a device, made when first asked for. NULL with an error raised. */
aot_ranking_t* aot_function_ranking(aot_function_t* function, int32_t device);

/* No build of the function runs on the device of that index. Returns -1. */
int aot_raise_no_build(const aot_function_t* function, int32_t index, const aot_device_t* device);

#endif /* AOT_RANK_H_ */
