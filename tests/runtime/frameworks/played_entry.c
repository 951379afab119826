/* The entry library of a bundle that nobody built: its kernels are loops over CPU tensors. For tests of the library for
 * torch, which cannot have a GPU. */
#include <aot/abi.h>
#include <stdio.h>
#include <string.h>

#define VISIBLE __attribute__((visibility("default")))

static __thread char raised[256];

static int64_t elements(const aot_tensor* tensor) {
  int64_t count = 1;
  for (int32_t i = 0; i < tensor->ndim; ++i) count *= tensor->shape[i];
  return count;
}

static float* numbers(const aot_value* value) { return (float*)((const aot_tensor*)value->as.pointer)->data; }
static int64_t size(const aot_value* value) { return elements((const aot_tensor*)value->as.pointer); }

static int fail(const char* text) {
  snprintf(raised, sizeof raised, "%s", text);
  return -1;
}

static int check_tensor(const aot_value* value, aot_dtype dtype) {
  const aot_tensor* tensor = (const aot_tensor*)value->as.pointer;
  if (value->type != AOT_TENSOR || tensor->device_type != AOT_DEVICE_CPU || tensor->device_id != 0) return fail("not a CPU tensor");
  if (memcmp(&tensor->dtype, &dtype, sizeof dtype) != 0) return fail("the dtype was not built");
  return 0;
}

static const aot_dtype f32 = {AOT_DTYPE_FLOAT, 32, 1};

/* blend(x, out, factor, count, flip, bias): out = (flip ? -1 : 1) * factor * count * x (+ bias) */
static int blend(void* self, const aot_value* args, int32_t count, aot_value* result) {
  (void)self, (void)result;
  if (count != 6 || check_tensor(&args[0], f32) != 0 || check_tensor(&args[1], f32) != 0) return -1;
  if (args[2].type != AOT_FLOAT || args[3].type != AOT_INT || args[4].type != AOT_BOOL) return fail("not the scalars");
  double by = args[2].as.number * (double)args[3].as.integer * (args[4].as.integer ? -1 : 1);
  const float* bias = args[5].type == AOT_TENSOR ? numbers(&args[5]) : NULL;
  for (int64_t i = 0; i < size(&args[0]); ++i) {
    numbers(&args[1])[i] = (float)(by * numbers(&args[0])[i]) + (bias == NULL ? 0.0f : bias[i]);
  }
  return 0;
}

static int activation(const aot_value* args, float low) {
  if (check_tensor(&args[0], f32) != 0) return -1;
  for (int64_t i = 0; i < size(&args[0]); ++i) {
    float x = numbers(&args[0])[i];
    numbers(&args[1])[i] = x > low ? x : low;
  }
  return 0;
}

static int activation_relu(void* self, const aot_value* args, int32_t count, aot_value* result) {
  (void)self, (void)result, (void)count;
  return activation(args, 0.0f);
}

static int activation_one(void* self, const aot_value* args, int32_t count, aot_value* result) {
  (void)self, (void)result, (void)count;
  return activation(args, 1.0f);
}

/* sums(x, total, half): total[i] = the sum of row i, in f64; half = the first half of each row */
static int sums(void* self, const aot_value* args, int32_t count, aot_value* result) {
  (void)self, (void)result, (void)count;
  const aot_dtype f64 = {AOT_DTYPE_FLOAT, 64, 1};
  if (check_tensor(&args[1], f64) != 0) return -1;
  const aot_tensor* x = (const aot_tensor*)args[0].as.pointer;
  double* total = (double*)((const aot_tensor*)args[1].as.pointer)->data;
  int64_t columns = x->shape[1];
  for (int64_t i = 0; i < x->shape[0]; ++i) {
    total[i] = 0;
    for (int64_t j = 0; j < columns; ++j) {
      float value = ((const float*)x->data)[i * x->strides[0] + j * x->strides[1]];
      total[i] += value;
      if (j < columns / 2) numbers(&args[2])[i * (columns / 2) + j] = value;
    }
  }
  return 0;
}

/* axpy(x, y, out, alpha): out = alpha * x + y */
static int axpy(void* self, const aot_value* args, int32_t count, aot_value* result) {
  (void)self, (void)result, (void)count;
  for (int64_t i = 0; i < size(&args[0]); ++i) {
    numbers(&args[2])[i] = (float)args[3].as.number * numbers(&args[0])[i] + numbers(&args[1])[i];
  }
  return 0;
}

static int activate_clamp(void* self, const aot_value* args, int32_t count, aot_value* result) {
  (void)self, (void)result, (void)count;
  return activation(args, -1.0f);
}

/* twice(x, out, scratch): out = 2 * x by way of the scratch memory, as many bytes as x has; none for an empty x */
static int twice(void* self, const aot_value* args, int32_t count, aot_value* result) {
  (void)count;
  int64_t bytes = size(&args[0]) * 4;
  if (self == AOT_ASK_WORKSPACE) {
    if (args[2].type != AOT_NONE) return fail("asked with scratch memory");
    result->type = AOT_INT;
    result->as.integer = bytes;
    return 0;
  }
  if (bytes == 0) return args[2].type == AOT_NONE ? 0 : fail("scratch memory of no bytes");
  const aot_dtype u8 = {AOT_DTYPE_UINT, 8, 1};
  if (check_tensor(&args[2], u8) != 0 || size(&args[2]) != bytes) return fail("not the scratch memory");
  for (int64_t i = 0; i < size(&args[0]); ++i) numbers(&args[2])[i] = numbers(&args[0])[i];
  for (int64_t i = 0; i < size(&args[0]); ++i) numbers(&args[1])[i] = 2 * numbers(&args[2])[i];
  return 0;
}

/* peaks(x, out, total): out = x, or 1 where x is less, in f32 or f64; total[i] = the sum of row i, if it is wanted */
static int peaks(void* self, const aot_value* args, int32_t count, aot_value* result) {
  (void)self, (void)result, (void)count;
  const aot_tensor* out = (const aot_tensor*)args[1].as.pointer;
  const aot_tensor* x = (const aot_tensor*)args[0].as.pointer;
  for (int64_t i = 0; i < x->shape[0]; ++i) {
    float sum = 0;
    for (int64_t j = 0; j < x->shape[1]; ++j) {
      int64_t at = i * x->shape[1] + j;
      float value = numbers(&args[0])[at], peak = value > 1.0f ? value : 1.0f;
      if (out->dtype.bits == 64) ((double*)out->data)[at] = peak;
      else ((float*)out->data)[at] = peak;
      sum += value;
    }
    if (args[2].type == AOT_TENSOR) numbers(&args[2])[i] = sum;
    else if (args[2].type != AOT_NONE) return fail("neither a tensor nor none");
  }
  return 0;
}

static int set_stream(int32_t device, void* stream, void** previous) {
  (void)device;
  if (previous != NULL) *previous = NULL;
  return stream == NULL ? 0 : fail("the CPU has no stream");
}

static void take_error(void* context, aot_error_receiver receive) {
  receive(context, "AotArgumentError", 16, raised, strlen(raised));
}

static int configure(int32_t verify, const char* directory) {
  (void)verify, (void)directory;
  return 0;
}

/* Sorted by name. */
static const aot_function_info functions[] = {
    {"activate__clamp", "activate__clamp(x, out)", "", "", activate_clamp, 2, 0},
    {"activate__relu", "activate__relu(x, out)", "", "", activation_relu, 2, 0},
    {"activation__one", "activation__one(x, out)", "", "", activation_one, 2, 0},
    {"activation__relu", "activation__relu(x, out)", "", "", activation_relu, 2, 0},
    {"axpy", "axpy(x, y, out, alpha)", "", "", axpy, 4, 0},
    {"blend", "blend(x, out, factor, count, flip, bias)", "", "", blend, 6, 0},
    {"peaks", "peaks(x, out, total)", "", "", peaks, 3, 0},
    {"sums", "sums(x, total, half)", "", "", sums, 3, 0},
    {"twice", "twice(x, out, scratch)", "", "", twice, 3, 0},
};
static const aot_core core = {AOT_PROTOCOL_MAJOR, AOT_PROTOCOL_MINOR, set_stream, take_error};
static const aot_interface interface = {AOT_PROTOCOL_MAJOR, AOT_PROTOCOL_MINOR, "played", "", "", &core, functions, 9,
                                        sizeof(aot_function_info), configure, NULL, NULL};

VISIBLE int aot_abi_version(uint32_t* major, uint32_t* minor);
VISIBLE const aot_interface* aot_abi_interface(void);
int aot_abi_version(uint32_t* major, uint32_t* minor) {
  *major = AOT_PROTOCOL_MAJOR;
  *minor = AOT_PROTOCOL_MINOR;
  return 0;
}
const aot_interface* aot_abi_interface(void) { return &interface; }
