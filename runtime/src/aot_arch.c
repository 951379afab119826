#include "aot_arch.h"

int aot_is_tegra(int32_t major, int32_t minor) {
  return (major == 8 && minor == 7) || (major == 11 && minor == 0);
}

int32_t aot_arch_rank(aot_arch_t arch, aot_capability_t device) {
  int same_chip = arch.major == device.major && arch.minor == device.minor;
  int family = arch.major == device.major && arch.minor <= device.minor;
  if (same_chip && arch.suffix == 'a') return 3000;
  if (aot_is_tegra(arch.major, arch.minor) || aot_is_tegra(device.major, device.minor)) family = same_chip;
  if (!family || arch.suffix == 'a') return 0;
  return (arch.suffix == 'f' ? 2000 : 1000) + arch.minor;
}
