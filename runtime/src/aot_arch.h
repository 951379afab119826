/* Architectures and devices: on which devices code runs, and which code is best there. */
#ifndef AOT_ARCH_H_
#define AOT_ARCH_H_

#include <stdint.h>

typedef struct {
  int32_t major;
  int32_t minor;
} aot_capability_t;

typedef struct {
  int32_t major;
  int32_t minor;
  char suffix; /* 'a': this chip; 'f': its family; 0: the portable subset */
} aot_arch_t;

/* Orin and Thor run only code built for them, and that code runs nowhere else. */
int aot_is_tegra(int32_t major, int32_t minor);

/* How good code for `arch` is on a device, higher is better; 0 if it cannot run there. */
int32_t aot_arch_rank(aot_arch_t arch, aot_capability_t device);

#endif /* AOT_ARCH_H_ */
