/* Calls a TVM-FFI function many times with the same arguments and tells the nanoseconds of one call: those that the
 * thread spent, so that other work on the machine does not count. */
#include <stdint.h>
#include <time.h>

#include <tvm/ffi/c_api.h>

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

double nanoseconds_per_call(TVMFFISafeCallType function, const TVMFFIAny* args, int32_t count, int64_t calls) {
  TVMFFIAny result = {0};
  double started = now();
  for (int64_t i = 0; i < calls; ++i) {
    if (function(0, args, count, &result) != 0) return -1.0;
  }
  return (now() - started) / (double)calls;
}
