/* Included by the generated tables of every kernel library, beside the launchers that CuTe DSL exported. */
#ifndef AOT_LAUNCHER_H_
#define AOT_LAUNCHER_H_

#include <string.h>

#include <tvm/ffi/c_api.h>

/* Launchers raise their errors through this function of TVM-FFI, which collects a backtrace: see aot_error.c. This
 * definition takes its place within the library, and is not exported. */
void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  char text[8192]; /* no launcher's message is as long; one that were would be cut */
  TVMFFIByteArray kind_bytes = {kind, strlen(kind)}, text_bytes = {text, 0}, backtrace = {"", 0};
  TVMFFIObjectHandle error = NULL;
  for (int32_t i = 0; i < count; ++i) {
    size_t size = parts[i] == NULL ? 0 : strlen(parts[i]), room = sizeof text - text_bytes.size;
    if (size > room) size = room;
    if (size > 0) memcpy(text + text_bytes.size, parts[i], size);
    text_bytes.size += size;
  }
  if (TVMFFIErrorCreate(&kind_bytes, &text_bytes, &backtrace, &error) != 0) return;
  TVMFFIErrorSetRaised(error);
  TVMFFIObjectDecRef(error);
}

#endif /* AOT_LAUNCHER_H_ */
