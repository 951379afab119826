/* Numbers that a seed decides, the same on every machine: splitmix64. */
#ifndef FUZZ_RANDOM_H_
#define FUZZ_RANDOM_H_

#include <stdint.h>

static uint64_t state;

static uint64_t next(void) {
  uint64_t z = (state += UINT64_C(0x9E3779B97F4A7C15));
  z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return z ^ (z >> 31);
}

static int64_t below(int64_t limit) { return (int64_t)(next() % (uint64_t)limit); }

#endif /* FUZZ_RANDOM_H_ */
