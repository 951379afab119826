#include "aot_rank.h"

#include <stdlib.h>

#include "aot_error.h"
#include "aot_trace.h"
#include "aot_tuning.h"

static int driver_is_too_old(const aot_build_t* build, const aot_device_t* device) {
  return device->driver != 0 && device->driver < build->driver_cuda;
}

int32_t aot_build_rank(const aot_build_t* build, const aot_device_t* device) {
  if (!aot_build_present(build) || driver_is_too_old(build, device)) return 0;
  return aot_arch_rank(build->arch, device->capability);
}

uint32_t aot_rank_builds(const aot_function_t* function, const aot_device_t* device, aot_candidate_t* candidates) {
  const aot_kernel_t* kernel = function->kernel;
  uint32_t count = 0;
  for (uint32_t i = 0; i < kernel->build_count; ++i) {
    int32_t rank = aot_build_rank(&kernel->builds[i], device);
    if (rank == 0) continue;
    uint32_t at = count++;
    for (; at > 0 && aot_build_rank(candidates[at - 1].build, device) < rank; --at) candidates[at] = candidates[at - 1];
    candidates[at].build = &kernel->builds[i];
    candidates[at].library = NULL;
    candidates[at].group = NULL;
    candidates[at].tuning = aot_tuning_find(function, kernel->builds[i].arch_name, device);
    candidates[at].tuned = NULL;
  }
  return count;
}

static void append_foreign(aot_text_t* text, aot_arch_t arch, aot_capability_t capability) {
  int alone = arch.suffix == 'a' || aot_is_tegra(arch.major, arch.minor);
  if (alone) aot_text_append(text, "runs on compute capability %d.%d alone", arch.major, arch.minor);
  else aot_text_append(text, "runs from compute capability %d.%d within its major version", arch.major, arch.minor);
  if (!alone && arch.major == capability.major && arch.minor <= capability.minor) {
    aot_text_append(text, ", except on %d.%d, which runs only code built for it", capability.major, capability.minor);
  } else {
    aot_text_append(text, ", not on %d.%d", capability.major, capability.minor);
  }
}

void aot_append_unrunnable(aot_text_t* text, const aot_build_t* build, const aot_device_t* device) {
  if (aot_arch_rank(build->arch, device->capability) == 0) {
    append_foreign(text, build->arch, device->capability);
  } else if (!aot_build_present(build)) {
    aot_text_append(text, "is in the bundle, but was not linked into this program");
  } else {
    aot_text_append(text, "needs driver %s or newer, of CUDA %d.%d; the installed driver supports CUDA %d.%d", build->driver,
                    build->driver_cuda / 1000, build->driver_cuda % 1000 / 10, device->driver / 1000,
                    device->driver % 1000 / 10);
  }
}

static int a_newer_driver_would_do(const aot_kernel_t* kernel, const aot_device_t* device) {
  aot_device_t updated = *device;
  updated.driver = 0;
  for (uint32_t i = 0; i < kernel->build_count; ++i) {
    if (aot_build_rank(&kernel->builds[i], &updated) != 0) return 1;
  }
  return 0;
}

int aot_raise_no_build(const aot_function_t* function, int32_t index, const aot_device_t* device) {
  aot_text_t text = AOT_TEXT_EMPTY;
  const aot_capability_t capability = device->capability;
  int too_old = a_newer_driver_would_do(function->kernel, device);
  aot_text_append(&text, too_old ? "%s: the NVIDIA driver is too old for the code in bundle `%s` for device %d, of compute "
                                   "capability %d.%d"
                                 : "%s: bundle `%s` holds no code for device %d, of compute capability %d.%d",
                  function->name, aot_this_bundle.name, index, capability.major, capability.minor);
  for (uint32_t i = 0; i < function->kernel->build_count; ++i) {
    const aot_build_t* build = &function->kernel->builds[i];
    aot_text_append(&text, "\n  %s: ", build->arch_name);
    aot_append_unrunnable(&text, build, device);
  }
  if (too_old) {
    aot_text_append(&text, "\nhint: update the NVIDIA driver; `nvidia-smi` shows its version");
    return aot_raise_text("AotDriverError", &text);
  }
  /* A compute capability, since `build` resolves it to what the kernel is written for. */
  if (capability.major < 8) aot_text_append(&text, "\nhint: use a GPU of compute capability 8.0 or newer; CuTe DSL has no code for older ones");
  else aot_text_append(&text, "\nhint: build it for this device too: `python -m aot build --add --arch %d.%d`", capability.major,
                       capability.minor);
  return aot_raise_text("AotDeviceError", &text);
}

static aot_ranking_t* make_ranking(const aot_function_t* function, int32_t index) {
  aot_device_t device;
  if (aot_driver_device(index, &device) != 0) return NULL;
  if (aot_tuning_needs_bandwidth(function, &device)) device.bandwidth = aot_driver_bandwidth(index);
  size_t room = sizeof(aot_ranking_t) + function->kernel->build_count * sizeof(aot_candidate_t);
  aot_ranking_t* ranking = (aot_ranking_t*)calloc(1, room);
  if (ranking == NULL) {
    aot_raise_out_of_memory();
    return NULL;
  }
  ranking->device = device;
  ranking->count = aot_rank_builds(function, &device, ranking->candidates);
  if (ranking->count > 0) {
    if (aot_trace_modes() != 0) {
      ranking->traced = ranking->count;
      ranking->count = 0;
    }
    return ranking;
  }
  free(ranking);
  aot_raise_no_build(function, index, &device);
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
