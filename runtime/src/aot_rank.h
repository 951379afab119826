/* Which builds of a kernel run on a device, best first. */
#ifndef AOT_RANK_H_
#define AOT_RANK_H_

#include "aot_bundle.h"
#include "aot_text.h"

/* Ranks the builds of a function for a capability into `candidates` (room for all), best first. */
uint32_t aot_rank_builds(const aot_function_t* function, aot_capability_t capability, aot_candidate_t* candidates);

/* Why a build does not run on a device of that capability, or is not in this program. */
void aot_append_unrunnable(aot_text_t* text, const aot_build_t* build, aot_capability_t capability);

/* The ranking for a device, made when first asked for. NULL with an error raised. */
aot_ranking_t* aot_function_ranking(aot_function_t* function, int32_t device);

/* No build of the function runs on the device. Returns -1. */
int aot_raise_no_build(const aot_function_t* function, int32_t device, aot_capability_t capability);

#endif /* AOT_RANK_H_ */
