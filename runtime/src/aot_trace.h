/* What is done on request: a log of selections and loads (AOT_LOG), and ranges for profilers (AOT_NVTX).
 *
 * The environment is read once, when the bundle first ranks its builds for a device or opens a library. A call of a
 * bundle that is not traced asks nothing: see aot_ranking_t. */
#ifndef AOT_TRACE_H_
#define AOT_TRACE_H_

#include <stdint.h>

enum { AOT_TRACE_LOG = 1, AOT_TRACE_NVTX = 2 };

/* What is wanted, as bits. */
int aot_trace_modes(void);

/* Writes a line to the log, if it is wanted. */
void aot_trace_log(const char* format, ...) __attribute__((format(printf, 1, 2)));

/* Nanoseconds of a clock that only goes forward. */
int64_t aot_trace_now(void);

/* A range around a launch, if ranges are wanted. */
void aot_trace_push(const char* name);
void aot_trace_pop(void);

#endif /* AOT_TRACE_H_ */
