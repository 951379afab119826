/* Test-only door to the hidden function of aot/detail/ed25519.h. */
#include <aot/detail/ed25519.h>

__attribute__((visibility("default"))) int shim_verify(const uint8_t* key, const uint8_t* signature, const void* message,
                                                       size_t size);
int shim_verify(const uint8_t* key, const uint8_t* signature, const void* message, size_t size) {
  return aot_ed25519_verify(key, signature, message, size);
}
