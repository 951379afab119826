/* Test-only door to how dispatch makes a batch of one tensor, which aot_dispatch.c keeps to itself. */
#include "aot_dispatch.c"

#define EXPORT __attribute__((visibility("default")))

/* Whether a batch was made of a tensor, and its strides. The bytes behind `made` must stay as they are. */
EXPORT int shim_batch(int32_t ndim, int64_t* shape, int64_t* strides, int64_t batch[AOT_MAX_MADE]) {
  struct {
    made_t made;
    int64_t behind[2];
  } room = {.behind = {12345, 67890}};
  DLTensor tensor = {.ndim = ndim, .shape = shape, .strides = strides};
  TVMFFIAny any = {.type_index = kTVMFFIDLTensorPtr}, filled;
  aot_constant_t constant = {0};
  aot_arguments_t arguments;
  memset(&arguments, 0, sizeof arguments);
  arguments.values[0].any = &any;
  arguments.values[0].tensor = &tensor;
  int made = fill_made(&filled, &room.made, &constant, &arguments);
  if (room.behind[0] != 12345 || room.behind[1] != 67890) return -1;
  memcpy(batch, room.made.strides, sizeof room.made.strides);
  return made;
}
