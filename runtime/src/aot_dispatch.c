/* A call: find the device, choose the variant, make sure its code is there, run it. */
#include "aot_dispatch.h"

#include <string.h>

#include "aot_arguments.h"
#include "aot_driver.h"
#include "aot_error.h"
#include "aot_explain.h"
#include "aot_load.h"
#include "aot_open.h"
#include "aot_overlap.h"
#include "aot_rank.h"
#include "aot_select.h"
#include "aot_trace.h"
#include "aot_tuning.h"
#include "aot_workspace.h"

#include <tvm/ffi/extra/c_env_api.h>

#define BATCH_ALIGNMENT 16 /* elements */
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define FAST_PATH static inline __attribute__((always_inline)) /* though the slow ways use it too */
#define SLOW_PATH __attribute__((noinline, cold)) /* keeps the registers it needs out of the fast one */

static void* stream_of(const aot_variant_t* variant, const TVMFFIAny* args, int32_t device) {
  if (variant->stream_argument == AOT_STREAM_FROM_ENVIRONMENT) return TVMFFIEnvGetStream(kDLCUDA, device);
  if (variant->stream_argument == AOT_STREAM_DEFAULT) return NULL;
  return args[variant->stream_argument].v_ptr;
}

SLOW_PATH static int load_first(const aot_function_t* function, const aot_ranking_t* ranking,
                                const aot_candidate_t* candidate, const aot_variant_t* variant,
                                const aot_arguments_t* arguments, const TVMFFIAny* args) {
  int32_t device = arguments->device;
  /* The entry checks its arguments itself, but the stream among them is asked about before it runs. */
  if (aot_variant_unmet(candidate->library, variant, arguments) != NULL) {
    return aot_raise_no_variant(function, &ranking->device, arguments);
  }
  if (aot_driver_is_capturing(stream_of(variant, args, device))) {
    return aot_raise("AotCaptureError",
                     "%s: %s was never used on device %d, and its code cannot be loaded while the stream is being "
                     "captured\nhint: call bundle.preload(%d) before the capture begins",
                     function->name, variant->name, device, device);
  }
  return aot_variant_load(candidate->library, variant, device);
}

/* A tensor that an entry gets instead of one of the caller's. */
typedef struct {
  DLTensor tensor;
  int64_t shape[AOT_MAX_MADE];
  int64_t strides[AOT_MAX_MADE];
} made_t;

/* What an optional tensor is if the caller passes None. */
static void make_empty(made_t* made, int64_t described, int32_t device) {
  memset(made, 0, sizeof *made);
  made->tensor.device.device_type = kDLCUDA;
  made->tensor.device.device_id = device;
  made->tensor.ndim = (int32_t)(described >> AOT_RANK_SHIFT);
  made->tensor.dtype.code = (uint8_t)described;
  made->tensor.dtype.lanes = (uint16_t)(described >> 8);
  made->tensor.dtype.bits = (uint8_t)(described >> 32);
  made->tensor.shape = made->shape;
  made->tensor.strides = made->strides;
  made->strides[made->tensor.ndim - 1] = 1;
}

/* The next element of the batch would begin after this one, at a multiple of as many elements as every copy allows. */
static void make_batch(made_t* made, const DLTensor* one) {
  int64_t apart = 0;
  made->tensor = *one;
  made->tensor.ndim = one->ndim + 1;
  made->tensor.shape = made->shape;
  made->tensor.strides = made->strides;
  for (int32_t i = 0; i < one->ndim; ++i) {
    int64_t reach = (int64_t)((uint64_t)one->shape[i] * (uint64_t)one->strides[i]);
    if (reach > apart) apart = reach;
    made->shape[i + 1] = one->shape[i];
    made->strides[i + 1] = one->strides[i];
  }
  made->shape[0] = 1;
  /* A dimension of extent 1 may have any stride, so that there may be no next multiple. */
  const int64_t up = apart <= INT64_MAX - (BATCH_ALIGNMENT - 1) ? BATCH_ALIGNMENT - 1 : 0;
  made->strides[0] = (apart + up) / BATCH_ALIGNMENT * BATCH_ALIGNMENT;
}

/* Returns whether it used `made`. What is not as declared stays as it is: the entry refuses it. */
static int fill_made(TVMFFIAny* filled, made_t* made, const aot_constant_t* constant,
                     const aot_arguments_t* arguments) {
  const aot_value_t* value = &arguments->values[constant->argument];
  *filled = *value->any;
  if (constant->bits == 0 && value->tensor != NULL && value->tensor->ndim < AOT_MAX_MADE) {
    make_batch(made, value->tensor);
  } else if (constant->bits != 0 && value->kind == AOT_KIND_NONE) {
    make_empty(made, constant->bits, arguments->device);
  } else {
    return 0;
  }
  memset(filled, 0, sizeof *filled);
  filled->type_index = kTVMFFIDLTensorPtr;
  filled->v_ptr = &made->tensor;
  return 1;
}

static int fill_argument(TVMFFIAny* filled, uint8_t source, const aot_ranking_t* ranking,
                         const aot_variant_t* variant, const aot_arguments_t* arguments) {
  if (source < AOT_SOURCE_MULTIPROCESSORS) {
    *filled = *arguments->values[source].any;
    return 0;
  }
  int32_t number = ranking->device.multiprocessors;
  if (source == AOT_SOURCE_ACTIVE_CLUSTERS &&
      aot_variant_active_clusters(variant, arguments->device, &number) != 0) {
    return -1;
  }
  memset(filled, 0, sizeof *filled);
  filled->type_index = kTVMFFIInt;
  filled->v_int64 = number;
  return 0;
}

static int call_entry_filled(const aot_ranking_t* ranking, const aot_kernel_library_t* library,
                             const aot_variant_t* variant, const aot_arguments_t* arguments, DLTensor* workspace,
                             TVMFFIAny* result) {
  TVMFFIAny filled[AOT_MAX_ARGUMENTS];
  made_t made[AOT_MAX_MADE];
  uint32_t made_count = 0;
  for (uint32_t i = 0; i < variant->source_count; ++i) {
    if (variant->sources[i] >= AOT_SOURCE_CONSTANT) {
      const aot_constant_t* constant = &library->constants[variant->sources[i] - AOT_SOURCE_CONSTANT];
      if (constant->type_index == kTVMFFIDLTensorPtr) {
        made_count += (uint32_t)fill_made(&filled[i], &made[made_count], constant, arguments);
        continue;
      }
      memset(&filled[i], 0, sizeof filled[i]);
      filled[i].type_index = constant->type_index;
      filled[i].v_int64 = constant->bits;
    } else if (variant->sources[i] == AOT_SOURCE_WORKSPACE) {
      memset(&filled[i], 0, sizeof filled[i]); /* None, for a variant that needs no workspace */
      if (workspace != NULL) filled[i].type_index = kTVMFFIDLTensorPtr;
      filled[i].v_ptr = workspace;
    } else if (fill_argument(&filled[i], variant->sources[i], ranking, variant, arguments) != 0) {
      return -1;
    }
  }
  return variant->entry(NULL, filled, (int32_t)variant->source_count, result);
}

__attribute__((noinline)) static int call_filled(const aot_function_t* function, const aot_ranking_t* ranking,
                                                 const aot_kernel_library_t* library, const aot_variant_t* variant,
                                                 const aot_arguments_t* arguments, const TVMFFIAny* args,
                                                 TVMFFIAny* result) {
  aot_workspace_held_t held;
  if (variant->workspace == NULL) return call_entry_filled(ranking, library, variant, arguments, NULL, result);
  void* stream = stream_of(variant, args, arguments->device);
  if (aot_workspace_take(function, library, variant, arguments, stream, &held) != 0) return -1;
  int status = call_entry_filled(ranking, library, variant, arguments, &held.tensor, result);
  aot_workspace_give_back(&held);
  return status;
}

/* The compiled entry refused: if the arguments are to blame, say it as a refusal always reads. An error of CUDA is told
 * by the kernel and the variant. */
SLOW_PATH static int explain_failure(aot_function_t* function, const aot_candidate_t* candidate, const aot_variant_t* variant,
                           const aot_ranking_t* ranking, const aot_arguments_t* arguments) {
  if (aot_variant_unmet(candidate->library, variant, arguments) == NULL) {
    aot_error_prefix("AotCudaError", function->name, variant->name);
    return -1;
  }
  aot_error_clear();
  return aot_raise_no_variant(function, &ranking->device, arguments);
}

FAST_PATH int run(aot_function_t* function, const aot_ranking_t* ranking, const aot_candidate_t* candidate,
                  const aot_variant_t* variant, const aot_arguments_t* arguments, const TVMFFIAny* args,
                  TVMFFIAny* result) {
  uint64_t loaded_on = __atomic_load_n(&variant->state->loaded_on, __ATOMIC_ACQUIRE);
  if (UNLIKELY(!(loaded_on >> arguments->device & 1)) &&
      load_first(function, ranking, candidate, variant, arguments, args) != 0) {
    return -1;
  }
  int status = variant->sources == NULL
                   ? variant->entry(NULL, args, (int32_t)function->argument_count, result)
                   : call_filled(function, ranking, candidate->library, variant, arguments, args, result);
  if (UNLIKELY(status != 0)) return explain_failure(function, candidate, variant, ranking, arguments);
  return 0;
}

SLOW_PATH static int find_device(const aot_function_t* function, aot_arguments_t* arguments) {
  if (arguments->device < 0) {
    if (!(function->flags & AOT_FUNCTION_USES_CURRENT_DEVICE)) return aot_raise_no_device(function, arguments);
    if (aot_driver_current_device(&arguments->device) != 0) return -1;
  }
  if (arguments->device < AOT_MAX_DEVICES) return 0;
  return aot_raise("AotDriverError", "device %d: a bundle serves devices 0 to %d", arguments->device, AOT_MAX_DEVICES - 1);
}

/* Decodes the arguments and finds what the function may run on their device; NULL with an error raised. */
FAST_PATH aot_ranking_t* begin(aot_function_t* function, const TVMFFIAny* args, int32_t count,
                               aot_arguments_t* arguments) {
  if (UNLIKELY(count != (int32_t)function->argument_count)) {
    aot_raise_argument_count(function, count);
    return NULL;
  }
  aot_arguments_decode(arguments, args, (uint32_t)count);
  arguments->hypothetical = 0;
  if (UNLIKELY((uint32_t)arguments->device >= AOT_MAX_DEVICES) && find_device(function, arguments) != 0) return NULL;
  aot_ranking_t* ranking = __atomic_load_n(&function->rankings[arguments->device], __ATOMIC_ACQUIRE);
  return UNLIKELY(ranking == NULL) ? aot_function_ranking(function, arguments->device) : ranking;
}

/* The variant that takes the call, and in `chosen` where it comes from; NULL with an error raised, or without one if
 * there is no candidate at all, as in a ranking that is traced. */
FAST_PATH const aot_variant_t* choose(aot_function_t* function, aot_ranking_t* ranking, uint32_t count,
                                       aot_arguments_t* arguments, const aot_candidate_t** chosen) {
  for (uint32_t i = 0; i < count; ++i) {
    aot_candidate_t* candidate = &ranking->candidates[i];
    const aot_kernel_library_t* library = __atomic_load_n(&candidate->library, __ATOMIC_ACQUIRE);
    if (UNLIKELY(library == NULL)) {
      if (aot_candidate_open(function, candidate) != 0) return NULL;
      library = candidate->library;
    }
    const aot_group_t* group = candidate->group;
    if (group == NULL) continue;
    if (group->slot_count > function->argument_count) aot_arguments_open_tuples(arguments, group);
    const aot_variant_t* variant = NULL;
    if (UNLIKELY(candidate->tuned != NULL)) variant = aot_tuned_choose(candidate->tuned, library, group, arguments);
    if (variant == NULL) variant = aot_group_choose(library, group, arguments);
    if (variant == NULL) continue;
    if (UNLIKELY(arguments->unsound)) break;
    /* What the tree left to the entry decides whether the next best architecture gets its chance. */
    if (i + 1 < count && aot_variant_unmet(library, variant, arguments) != NULL) continue;
    const aot_region_t* regions = &library->regions[variant->first_region];
    if (UNLIKELY(!aot_plainly_apart(regions, variant->region_count, arguments)) &&
        aot_overlap(regions, variant->region_count, arguments) != 0) {
      break;
    }
    *chosen = candidate;
    return variant;
  }
  if (count != 0) aot_raise_no_variant(function, &ranking->device, arguments);
  return NULL;
}

static void log_selection(const aot_function_t* function, const aot_candidate_t* candidate, const aot_variant_t* variant,
                          const aot_arguments_t* arguments) {
  aot_text_t text = AOT_TEXT_EMPTY;
  if (!(aot_trace_modes() & AOT_TRACE_LOG)) return;
  aot_append_call(&text, function, arguments);
  aot_trace_log("device %d selects %s %s for %s", arguments->device, candidate->library->arch, variant->name,
                aot_text_get(&text));
  aot_text_free(&text);
}

SLOW_PATH static int dispatch_traced(aot_function_t* function, aot_ranking_t* ranking, aot_arguments_t* arguments,
                                     const TVMFFIAny* args, TVMFFIAny* result) {
  const aot_candidate_t* candidate;
  const aot_variant_t* variant = choose(function, ranking, ranking->traced, arguments, &candidate);
  if (variant == NULL) return -1;
  log_selection(function, candidate, variant, arguments);
  aot_trace_push(variant->name);
  int status = run(function, ranking, candidate, variant, arguments, args, result);
  aot_trace_pop();
  return status;
}

int aot_dispatch(aot_function_t* function, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  aot_arguments_t arguments;
  const aot_candidate_t* candidate;
  aot_ranking_t* ranking = begin(function, args, count, &arguments);
  if (UNLIKELY(ranking == NULL)) return -1;
  const aot_variant_t* variant = choose(function, ranking, ranking->count, &arguments, &candidate);
  if (UNLIKELY(variant == NULL)) {
    return ranking->count != 0 ? -1 : dispatch_traced(function, ranking, &arguments, args, result);
  }
  return run(function, ranking, candidate, variant, &arguments, args, result);
}

/* The variant of that name, if it takes the call; NULL with an error raised. */
static const aot_variant_t* find_named(aot_function_t* function, aot_ranking_t* ranking, const char* name,
                                       aot_arguments_t* arguments, const aot_candidate_t** chosen) {
  for (uint32_t i = 0; i < aot_ranking_count(ranking); ++i) {
    aot_candidate_t* candidate = &ranking->candidates[i];
    if (aot_candidate_open(function, candidate) != 0) return NULL;
    for (uint32_t v = 0; candidate->group != NULL && v < candidate->group->variant_count; ++v) {
      const aot_variant_t* variant = &candidate->group->variants[v];
      if (strcmp(variant->name, name) != 0) continue;
      aot_arguments_open_tuples(arguments, candidate->group);
      *chosen = candidate;
      if (!arguments->unsound && aot_variant_unmet(candidate->library, variant, arguments) == NULL) return variant;
      aot_raise_no_variant(function, &ranking->device, arguments);
      return NULL;
    }
  }
  aot_raise("AotArgumentError", "%s has no variant `%s` for device %d", function->name, name, arguments->device);
  return NULL;
}

int aot_dispatch_variant(aot_function_t* function, const char* name, const TVMFFIAny* args, int32_t count,
                         TVMFFIAny* result) {
  aot_arguments_t arguments;
  const aot_candidate_t* candidate;
  aot_ranking_t* ranking = begin(function, args, count, &arguments);
  if (ranking == NULL) return -1;
  const aot_variant_t* variant = find_named(function, ranking, name, &arguments, &candidate);
  if (variant == NULL) return -1;
  return run(function, ranking, candidate, variant, &arguments, args, result);
}

int aot_dispatch_workspace(aot_function_t* function, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  aot_arguments_t arguments;
  const aot_candidate_t* candidate;
  aot_ranking_t* ranking = begin(function, args, count, &arguments);
  if (ranking == NULL) return -1;
  const aot_variant_t* variant = choose(function, ranking, aot_ranking_count(ranking), &arguments, &candidate);
  if (variant == NULL) return -1;
  /* The entry would have checked the rest. */
  if (aot_variant_unmet(candidate->library, variant, &arguments) != NULL) {
    return aot_raise_no_variant(function, &ranking->device, &arguments);
  }
  int64_t bytes = aot_workspace_bytes(candidate->library, variant, &arguments);
  if (bytes < 0) return -1;
  memset(result, 0, sizeof *result);
  result->type_index = kTVMFFIInt;
  result->v_int64 = bytes;
  return 0;
}
