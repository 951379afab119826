/* Ranges for NVIDIA's profilers, by the protocol of NVTX 3: the profiler names a library in the environment, and that
 * library fills in the functions. NVTX's headers are not needed to build, and without a profiler nothing happens. */
#ifndef AOT_NVTX_H_
#define AOT_NVTX_H_

/* Asks the profiler for its functions; called once. Whether there is a profiler that takes ranges. */
int aot_nvtx_attach(void);

/* A range of this thread begins and ends; only after aot_nvtx_attach returned 1. */
void aot_nvtx_push(const char* name);
void aot_nvtx_pop(void);

#endif /* AOT_NVTX_H_ */
