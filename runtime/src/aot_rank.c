#include "aot_rank.h"

#include <stdlib.h>

#include "aot_error.h"

uint32_t aot_rank_builds(const aot_function_t* function, aot_capability_t capability, aot_candidate_t* candidates) {
  const aot_kernel_t* kernel = function->kernel;
  uint32_t count = 0;
  for (uint32_t i = 0; i < kernel->build_count; ++i) {
    int32_t rank = aot_arch_rank(kernel->builds[i].arch, capability);
    if (rank == 0 || !aot_build_present(&kernel->builds[i])) continue;
    uint32_t at = count++;
    for (; at > 0 && aot_arch_rank(candidates[at - 1].build->arch, capability) < rank; --at) {
      candidates[at] = candidates[at - 1];
    }
    candidates[at].build = &kernel->builds[i];
    candidates[at].library = NULL;
    candidates[at].group = NULL;
  }
  return count;
}

void aot_append_unrunnable(aot_text_t* text, const aot_build_t* build, aot_capability_t capability) {
  if (aot_arch_rank(build->arch, capability) != 0) {
    aot_text_append(text, "is in the bundle, but was not linked into this program");
    return;
  }
  int32_t major = build->arch.major, minor = build->arch.minor;
  int alone = build->arch.suffix == 'a' || aot_is_tegra(major, minor);
  if (alone) aot_text_append(text, "runs on compute capability %d.%d alone", major, minor);
  else aot_text_append(text, "runs from compute capability %d.%d within its major version", major, minor);
  if (!alone && major == capability.major && minor <= capability.minor) {
    aot_text_append(text, ", save on %d.%d, which runs only code built for it", capability.major, capability.minor);
  } else {
    aot_text_append(text, ", not on %d.%d", capability.major, capability.minor);
  }
}

int aot_raise_no_build(const aot_function_t* function, int32_t device, aot_capability_t capability) {
  aot_text_t text = AOT_TEXT_EMPTY;
  aot_text_append(&text, "%s: bundle `%s` holds no code for device %d, of compute capability %d.%d", function->name,
                  aot_this_bundle.name, device, capability.major, capability.minor);
  for (uint32_t i = 0; i < function->kernel->build_count; ++i) {
    const aot_build_t* build = &function->kernel->builds[i];
    aot_text_append(&text, "\n  %s: ", build->arch_name);
    aot_append_unrunnable(&text, build, capability);
  }
  aot_text_append(&text, "\nhint: build it for this device too: `python -m aot build --arch sm%d%d`", capability.major,
                  capability.minor);
  return aot_raise_text("AotDeviceError", &text);
}

static aot_ranking_t* make_ranking(const aot_function_t* function, int32_t index) {
  aot_device_t device;
  if (aot_driver_device(index, &device) != 0) return NULL;
  size_t room = sizeof(aot_ranking_t) + function->kernel->build_count * sizeof(aot_candidate_t);
  aot_ranking_t* ranking = (aot_ranking_t*)calloc(1, room);
  if (ranking == NULL) {
    aot_raise_out_of_memory();
    return NULL;
  }
  ranking->device = device;
  ranking->count = aot_rank_builds(function, device.capability, ranking->candidates);
  if (ranking->count > 0) return ranking;
  free(ranking);
  aot_raise_no_build(function, index, device.capability);
  return NULL;
}

aot_ranking_t* aot_function_ranking(aot_function_t* function, int32_t device) {
  aot_ranking_t* known = __atomic_load_n(&function->rankings[device], __ATOMIC_ACQUIRE);
  if (known != NULL) return known;
  aot_ranking_t* made = make_ranking(function, device);
  if (made == NULL) return NULL;
  /* Threads that come at the same time make the same ranking; the first one stays. */
  if (__atomic_compare_exchange_n(&function->rankings[device], &known, made, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    return made;
  }
  free(made);
  return known;
}
