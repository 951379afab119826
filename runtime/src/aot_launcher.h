/* Included by the generated tables of every kernel library, beside the launchers that CuTe DSL exported. */
#ifndef AOT_LAUNCHER_H_
#define AOT_LAUNCHER_H_

#include <stdio.h>
#include <string.h>

#include <tvm/ffi/c_api.h>

static void aot_set_raised(const TVMFFIByteArray* kind, const TVMFFIByteArray* text) {
  TVMFFIByteArray backtrace = {"", 0};
  TVMFFIObjectHandle error = NULL;
  if (TVMFFIErrorCreate(kind, text, &backtrace, &error) != 0) return;
  TVMFFIErrorSetRaised(error);
  TVMFFIObjectDecRef(error);
}

/* How launchers describe a launch to the CUDA runtime: cudaLaunchConfig_t. */
typedef struct {
  uint32_t grid[3];
  uint32_t block[3];
  uint64_t shared_memory;
  void* stream;
} aot_launch_t;

enum { AOT_MAX_GRID_Y_AND_Z = 65535 }; /* on every device so far */

/* A launch failed, and its error is raised: completes the text with what was launched. */
void aot_launch_failed(const aot_launch_t* launch);
void aot_launch_failed(const aot_launch_t* launch) {
  char text[1024];
  TVMFFIObjectHandle raised = NULL;
  TVMFFIErrorMoveFromRaised(&raised);
  if (raised == NULL) return;
  const TVMFFIErrorCell* cell = (const TVMFFIErrorCell*)((const char*)raised + sizeof(TVMFFIObject));
  int beyond = launch->grid[1] > AOT_MAX_GRID_Y_AND_Z || launch->grid[2] > AOT_MAX_GRID_Y_AND_Z;
  int length = snprintf(text, sizeof text,
                        "%.*s; grid (%u, %u, %u), block (%u, %u, %u), %llu bytes of dynamic shared memory%s",
                        (int)(cell->message.size < 512 ? cell->message.size : 512), cell->message.data, launch->grid[0],
                        launch->grid[1], launch->grid[2], launch->block[0], launch->block[1], launch->block[2],
                        (unsigned long long)launch->shared_memory,
                        beyond ? "; a grid has at most 65535 blocks in y and in z" : "");
  TVMFFIByteArray bytes = {text, length < 0 ? 0 : (size_t)length};
  aot_set_raised(&cell->kind, &bytes);
  TVMFFIObjectDecRef(raised);
}

/* Launchers raise their errors through this function of TVM-FFI, which collects a backtrace: see aot_error.c. This
 * definition takes its place within the library, and is not exported. */
void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  char text[8192]; /* no launcher's message is as long; one that were would be cut */
  TVMFFIByteArray kind_bytes = {kind, strlen(kind)}, text_bytes = {text, 0};
  for (int32_t i = 0; i < count; ++i) {
    size_t size = parts[i] == NULL ? 0 : strlen(parts[i]), room = sizeof text - text_bytes.size;
    if (size > room) size = room;
    if (size > 0) memcpy(text + text_bytes.size, parts[i], size);
    text_bytes.size += size;
  }
  aot_set_raised(&kind_bytes, &text_bytes);
}

#endif /* AOT_LAUNCHER_H_ */
