/* Using a bundle from C: open it, look a function up, call it.
 *
 *     aot_bundle bundle;
 *     aot_function fill;
 *     if (aot_open("dist/kernels", NULL, &bundle) != AOT_OK) { puts(aot_error_text()); return 1; }
 *     if (aot_find(bundle, "fill", &fill) != AOT_OK) ...
 *     aot_value args[] = {aot_from_tensor(&out), aot_from_float(1.0)};
 *     if (aot_call(fill, args, 2) != AOT_OK) ...
 *
 * This header is all that is needed, with -ldl and -pthread (part of the C library from glibc 2.34 on). It opens
 * libtvm_ffi, which bundles are written against, if the process does not have it yet. Programs that link a
 * bundle include the <name>.h that was generated with it, which includes this.
 *
 * Every function returns AOT_OK or another AOT_ERROR_* code, results come through the last parameters, and the sentence
 * that belongs to a code is aot_last_error's, per thread. Nothing exits, aborts or prints.
 *
 * Threads: everything may be called from any thread at any time. What may not says so.
 *
 * Code that was opened stays mapped until the process ends, since CUDA graphs hold on to kernels. So there is nothing to
 * close: a bundle and its functions are values to copy, to pass on, to other shared libraries too, and to forget.
 *
 * C99 and C++11 or newer, gcc and clang, Linux.
 */
#ifndef AOT_AOT_H_
#define AOT_AOT_H_

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi.h"
#include "ed25519.h"
#include "files.h"
#include "linkage.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  AOT_OK = 0,
  AOT_ERROR_USAGE = 1,     /* a null pointer, a bundle that was never opened */
  AOT_ERROR_ARGUMENT = 2,  /* no variant takes the arguments; the text lists why */
  AOT_ERROR_BUNDLE = 3,    /* not a bundle, incomplete or damaged */
  AOT_ERROR_HOST = 4,      /* no code for this CPU */
  AOT_ERROR_VERSION = 5,   /* of another protocol than this header's */
  AOT_ERROR_DIGEST = 6,    /* a file is not the one the bundle was built with */
  AOT_ERROR_DEVICE = 7,    /* no code for the GPU */
  AOT_ERROR_DRIVER = 8,    /* the NVIDIA driver is missing or refused */
  AOT_ERROR_CUDA = 9,      /* a CUDA call failed */
  AOT_ERROR_CAPTURE = 10,  /* first use within a stream capture: preload before */
  AOT_ERROR_TVM_FFI = 11,  /* libtvm_ffi cannot be found */
  AOT_ERROR_NOT_FOUND = 12, /* no function of that name */
  AOT_ERROR_OTHER = 13,
  AOT_ERROR_SIGNATURE = 14 /* not signed by a trusted key, or not the bundle that was asked for */
};

/* All zero: none. */
typedef struct aot_bundle {
  const aot_interface* library;
} aot_bundle;

typedef struct aot_function {
  const aot_function_info* info;
  const aot_core* core;
} aot_function;

/* Zero-initialise it; fields may be added at the end. */
typedef struct aot_options {
  int32_t skip_verification; /* open native code without comparing its digest first */
  int32_t reserved;
  const char* tvm_ffi; /* path of libtvm_ffi.so, if neither the process nor the search path has it */
  /* The SHA-256 of the bundle's manifest.json, 64 hex digits: a bundle with another manifest, or with another entry
   * library than this manifest names, is refused before anything native is opened. The entry library in turn refuses
   * kernels other than its own. NULL: any bundle that is whole. */
  const char* manifest_sha256;
  /* Public keys of Ed25519, 64 hex digits each and separated by spaces: a bundle whose manifest.json none of them has
   * signed is refused before anything native is opened. `python -m aot sign --json` prints such a key. NULL: signed or
   * not. A signature does not say which of its signer's bundles is meant: give `name` too. */
  const char* public_keys;
  const char* name; /* the bundle must have this name; NULL: any */
} aot_options;

/* ---- declarations ---- */

/* The version this header was written for. This function stays for ever. */
int aot_get_version(uint32_t* major, uint32_t* minor);

/* The sentence of this thread's last failure, valid until its next one; "" if there was none. */
int aot_last_error(int* code, const char** text);

/* `path` is the directory that `python -m aot build` printed. `options` may be NULL. */
int aot_open(const char* path, const aot_options* options, aot_bundle* bundle);

/* A bundle that was linked: give &aot_<name>_interface, which <name>.h declares. */
int aot_attach(const aot_interface* library, aot_bundle* bundle);

/* Name, host, functions and the rest; the structure stays valid for ever. */
int aot_describe(aot_bundle bundle, const aot_interface** library);

/* The function at that index, which is below the `function_count` that aot_describe gives. They are sorted by name. */
int aot_function_at(aot_bundle bundle, uint32_t index, aot_function* function);

/* The function of that name; AOT_ERROR_NOT_FOUND if there is none. */
int aot_find(aot_bundle bundle, const char* name, aot_function* function);

/* Calls on the stream that is set for the device in this thread (at first, the default stream). */
static inline int aot_call(aot_function function, const aot_value* args, int32_t count);

/* Calls on `stream` of the device on which the first tensor lies. */
static inline int aot_call_on(aot_function function, void* stream, const aot_value* args, int32_t count);

/* How many bytes of scratch memory that call needs: what the argument that names it must have, if no framework that
 * allocates makes the call. Nothing is launched, and nothing need be passed for the memory itself. */
static inline int aot_workspace_size(aot_function function, const aot_value* args, int32_t count, size_t* bytes);

/* Sets the stream for later calls of this thread, of all bundles. `previous` may be NULL. */
int aot_set_stream(aot_bundle bundle, int32_t device, void* stream, void** previous);

/* Loads code now rather than at the first call. `function` NULL: of all functions that have code for the device. */
int aot_preload(aot_bundle bundle, const char* function, int32_t device);

/* What a call would run on a device of that compute capability, without one: lines "[*]arch TAB variant TAB reason". At
 * most `room` bytes are written to `text`, a final zero included; `needed` is the length of the whole. */
int aot_explain(aot_bundle bundle, const char* function, int32_t major, int32_t minor, const aot_value* args,
                int32_t count, char* text, size_t room, size_t* needed);

/* Describes memory as a tensor. The shape, and the strides if given, are pointed to, not copied, and must outlive
 * the tensor. `row_major` has room for `ndim` numbers, to be filled; it may be NULL if `strides` is not. */
int aot_make_tensor(aot_tensor* tensor, void* data, int32_t device, aot_dtype dtype, int32_t ndim, int64_t* shape,
                    int64_t* strides, int64_t* row_major);

/* ---- values ---- */

static inline aot_value aot_none(void) {
  aot_value value = {AOT_NONE, 0, {0}};
  return value;
}

static inline aot_value aot_from_int(int64_t integer) {
  aot_value value = {AOT_INT, 0, {0}};
  value.as.integer = integer;
  return value;
}

static inline aot_value aot_from_bool(int truth) {
  aot_value value = {AOT_BOOL, 0, {0}};
  value.as.integer = truth != 0;
  return value;
}

static inline aot_value aot_from_float(double number) {
  aot_value value = {AOT_FLOAT, 0, {0}};
  value.as.number = number;
  return value;
}

/* A device address, or a stream. */
static inline aot_value aot_from_pointer(const void* pointer) {
  aot_value value = {AOT_POINTER, 0, {0}};
  value.as.pointer = pointer;
  return value;
}

/* NULL: none, as optional parameters take it. */
static inline aot_value aot_from_tensor(const aot_tensor* tensor) {
  aot_value value = {AOT_NONE, 0, {0}};
  if (tensor == NULL) return value;
  value.type = AOT_TENSOR;
  value.as.pointer = tensor;
  return value;
}

/* `header` and `values` must outlive the call. */
static inline aot_value aot_from_tuple(aot_tuple_header* header, aot_value* values, int64_t size) {
  aot_value value = {AOT_TUPLE, 0, {0}};
  if (header == NULL) return value; /* no function takes it */
  /* Two references that nobody counts down: the object never deletes itself. */
  header->reference_count = UINT64_C(2) << 32 | 2;
  header->type = AOT_TUPLE;
  header->zero = 0;
  header->deleter = NULL;
  header->values = values;
  header->size = size;
  header->capacity = size;
  header->values_deleter = NULL;
  value.as.pointer = header;
  return value;
}

static inline aot_dtype aot_make_vector_dtype(uint8_t code, uint8_t bits, uint16_t lanes) {
  aot_dtype dtype;
  dtype.code = code;
  dtype.bits = bits;
  dtype.lanes = lanes;
  return dtype;
}

static inline aot_dtype aot_make_dtype(uint8_t code, uint8_t bits) { return aot_make_vector_dtype(code, bits, 1); }

/* Data types, for C; C++ has aot::float32 and its like. */
/* dtypes: written by tools/dtypes.py */
#define AOT_BOOLEAN aot_make_vector_dtype(AOT_DTYPE_BOOL, 8, 1)
#define AOT_INT8 aot_make_vector_dtype(AOT_DTYPE_INT, 8, 1)
#define AOT_UINT8 aot_make_vector_dtype(AOT_DTYPE_UINT, 8, 1)
#define AOT_INT16 aot_make_vector_dtype(AOT_DTYPE_INT, 16, 1)
#define AOT_UINT16 aot_make_vector_dtype(AOT_DTYPE_UINT, 16, 1)
#define AOT_INT32 aot_make_vector_dtype(AOT_DTYPE_INT, 32, 1)
#define AOT_UINT32 aot_make_vector_dtype(AOT_DTYPE_UINT, 32, 1)
#define AOT_INT64 aot_make_vector_dtype(AOT_DTYPE_INT, 64, 1)
#define AOT_UINT64 aot_make_vector_dtype(AOT_DTYPE_UINT, 64, 1)
#define AOT_FLOAT16 aot_make_vector_dtype(AOT_DTYPE_FLOAT, 16, 1)
#define AOT_BFLOAT16 aot_make_vector_dtype(AOT_DTYPE_BFLOAT, 16, 1)
#define AOT_FLOAT32 aot_make_vector_dtype(AOT_DTYPE_FLOAT, 32, 1)
#define AOT_FLOAT64 aot_make_vector_dtype(AOT_DTYPE_FLOAT, 64, 1)
#define AOT_FLOAT8_E4M3FN aot_make_vector_dtype(AOT_DTYPE_FLOAT8_E4M3FN, 8, 1)
#define AOT_FLOAT8_E5M2 aot_make_vector_dtype(AOT_DTYPE_FLOAT8_E5M2, 8, 1)
#define AOT_FLOAT8_E8M0FNU aot_make_vector_dtype(AOT_DTYPE_FLOAT8_E8M0FNU, 8, 1)
#define AOT_FLOAT6_E2M3FN aot_make_vector_dtype(AOT_DTYPE_FLOAT6_E2M3FN, 6, 1)
#define AOT_FLOAT6_E3M2FN aot_make_vector_dtype(AOT_DTYPE_FLOAT6_E3M2FN, 6, 1)
#define AOT_FLOAT4_E2M1FN_X2 aot_make_vector_dtype(AOT_DTYPE_FLOAT4_E2M1FN, 4, 2)
/* end of dtypes */

/* A tensor that holds its shape and strides itself. Not to be copied: the tensor points into it. */
enum { AOT_MAX_RANK = 8 };
typedef struct aot_held_tensor {
  aot_tensor tensor;
  int64_t shape[AOT_MAX_RANK];
  int64_t strides[AOT_MAX_RANK];
} aot_held_tensor;

static inline const aot_tensor* aot_hold_tensor_(aot_held_tensor* held, void* data, aot_dtype dtype, size_t ndim,
                                                 const int64_t* shape) {
  held->tensor.device_type = AOT_DEVICE_CUDA;
  held->tensor.dtype = dtype;
  held->tensor.shape = held->shape;
  held->tensor.strides = held->strides;
  if (ndim > AOT_MAX_RANK) return &held->tensor; /* without an address: a call refuses it */
  int64_t elements = 1;
  for (size_t i = ndim; i-- > 0;) {
    held->shape[i] = shape[i];
    held->strides[i] = elements;
    if (__builtin_mul_overflow(elements, shape[i], &elements)) return &held->tensor;
  }
  held->tensor.data = data;
  held->tensor.ndim = (int32_t)ndim;
  return &held->tensor;
}

#ifndef __cplusplus
/* Memory of device 0 as a row-major tensor: data, data type, extents. For other devices and strides: aot_make_tensor.
 *
 *     kernels_add(aot_tensor_of(x, AOT_FLOAT32, m, n), aot_tensor_of(y, AOT_FLOAT32, m, n), ...);
 *
 * The result is a pointer that is valid until the block ends in which this stands. */
#define aot_tensor_of(data, dtype, ...)                                                               \
  aot_hold_tensor_(&(aot_held_tensor){.shape = {0}}, (data), (dtype),                                  \
                   sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]){__VA_ARGS__})
#endif

/* ---- errors ---- */

typedef struct aot_error_state {
  int code;
  size_t room;
  char* text;
} aot_error_state;

AOT_SHARED_DATA pthread_key_t aot_error_key_;
AOT_SHARED_DATA pthread_once_t aot_error_once_ = PTHREAD_ONCE_INIT;
AOT_SHARED_DATA aot_error_state aot_no_memory_ = {AOT_ERROR_OTHER, 0, NULL}; /* of threads that could not have their own */

void aot_free_error_(void* memory);
void aot_make_error_key_(void);
aot_error_state* aot_error_state_(void);
int aot_fail_text_(int code, const char* text, size_t size);
int aot_fail_(int code, const char* format, const char* first, const char* second, const char* third);
void aot_receive_error_(void* context, const char* kind, size_t kind_size, const char* text, size_t text_size);

AOT_SHARED void aot_free_error_(void* memory) {
  aot_error_state* state = (aot_error_state*)memory;
  if (state == &aot_no_memory_) return;
  free(state->text);
  free(state);
}

AOT_SHARED void aot_make_error_key_(void) {
  if (pthread_key_create(&aot_error_key_, aot_free_error_) != 0) aot_error_key_ = (pthread_key_t)-1;
}

/* To be written to; NULL if memory ran out, which this thread's aot_last_error then says. */
AOT_SHARED aot_error_state* aot_error_state_(void) {
  pthread_once(&aot_error_once_, aot_make_error_key_);
  aot_error_state* state = (aot_error_state*)pthread_getspecific(aot_error_key_);
  if (state != NULL && state != &aot_no_memory_) return state;
  state = (aot_error_state*)calloc(1, sizeof *state);
  if (state != NULL && pthread_setspecific(aot_error_key_, state) == 0) return state;
  free(state);
  pthread_setspecific(aot_error_key_, &aot_no_memory_);
  return NULL;
}

AOT_SHARED int aot_fail_text_(int code, const char* text, size_t size) {
  aot_error_state* state = aot_error_state_();
  if (state == NULL) return code;
  state->code = code;
  if (state->room <= size) {
    char* grown = (char*)realloc(state->text, size + 1);
    if (grown == NULL) free(state->text);
    state->text = grown;
    state->room = grown == NULL ? 0 : size + 1;
    if (grown == NULL) return code;
  }
  memcpy(state->text, text, size);
  state->text[size] = '\0';
  return code;
}

/* `format` holds three %s at most. */
AOT_SHARED int aot_fail_(int code, const char* format, const char* first, const char* second, const char* third) {
  const char* pieces[3];
  char text[2048];
  size_t at = 0, piece = 0;
  pieces[0] = first;
  pieces[1] = second;
  pieces[2] = third;
  for (const char* c = format; *c != '\0' && at + 1 < sizeof text; ++c) {
    if (c[0] != '%' || c[1] != 's') {
      text[at++] = *c;
      continue;
    }
    const char* insert = pieces[piece++] == NULL ? "" : pieces[piece - 1];
    size_t size = strlen(insert);
    if (size > sizeof text - 1 - at) size = sizeof text - 1 - at;
    memcpy(text + at, insert, size);
    at += size;
    ++c;
  }
  return aot_fail_text_(code, text, at);
}

/* Keeps what a bundle raised; `context` points to the code to return. */
AOT_SHARED void aot_receive_error_(void* context, const char* kind, size_t kind_size, const char* text,
                                   size_t text_size) {
  static const struct {
    const char* kind;
    int code;
  } known[] = {
      {"AotArgumentError", AOT_ERROR_ARGUMENT}, {"AotBundleError", AOT_ERROR_BUNDLE},
      {"AotCaptureError", AOT_ERROR_CAPTURE},   {"AotCudaError", AOT_ERROR_CUDA},
      {"AotDeviceError", AOT_ERROR_DEVICE},     {"AotDigestError", AOT_ERROR_DIGEST},
      {"AotDriverError", AOT_ERROR_DRIVER},     {"TypeError", AOT_ERROR_ARGUMENT},
      {"ValueError", AOT_ERROR_ARGUMENT},
  };
  int code = AOT_ERROR_OTHER;
  for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i) {
    if (strlen(known[i].kind) == kind_size && memcmp(known[i].kind, kind, kind_size) == 0) code = known[i].code;
  }
  if (text_size == 0) {
    static const char silent[] = "the bundle reported a failure and gave no reason";
    text = silent;
    text_size = sizeof silent - 1;
  }
  *(int*)context = aot_fail_text_(code, text, text_size);
}

/* The code of what was just raised, with its text kept for aot_last_error. */
static inline int aot_raised_(const aot_core* core) {
  int code = AOT_ERROR_OTHER;
  core->take_error(&code, aot_receive_error_);
  return code;
}

AOT_SHARED int aot_last_error(int* code, const char** text) {
  pthread_once(&aot_error_once_, aot_make_error_key_);
  const aot_error_state* state = (const aot_error_state*)pthread_getspecific(aot_error_key_);
  if (code != NULL) *code = state == NULL ? AOT_OK : state->code;
  if (text != NULL) *text = state == NULL ? "" : state->text == NULL ? "out of memory" : state->text;
  return AOT_OK;
}

static inline const char* aot_error_text(void) {
  const char* text = "";
  aot_last_error(NULL, &text);
  return text;
}

AOT_SHARED int aot_get_version(uint32_t* major, uint32_t* minor) {
  if (major != NULL) *major = AOT_PROTOCOL_MAJOR;
  if (minor != NULL) *minor = AOT_PROTOCOL_MINOR;
  return AOT_OK;
}

/* ---- bundles ---- */

int aot_refuse_version_(const char* what, uint32_t major, uint32_t minor);
int aot_refuse_unopened_(void);

AOT_SHARED int aot_refuse_unopened_(void) {
  return aot_fail_(AOT_ERROR_USAGE, "the bundle was never opened", NULL, NULL, NULL);
}

AOT_SHARED int aot_refuse_version_(const char* what, uint32_t major, uint32_t minor) {
  char numbers[64];
  snprintf(numbers, sizeof numbers, "%lu.%lu of the protocol, this header speaks %d.%d", (unsigned long)major,
           (unsigned long)minor, AOT_PROTOCOL_MAJOR, AOT_PROTOCOL_MINOR);
  return aot_fail_(AOT_ERROR_VERSION, "%s speaks version %s\nhint: build the bundle and the program with the same "
                   "cute-aot", what, numbers, NULL);
}

AOT_SHARED int aot_attach(const aot_interface* library, aot_bundle* bundle) {
  if (library == NULL || bundle == NULL) {
    return aot_fail_(AOT_ERROR_USAGE, "aot_attach: a null pointer was given", NULL, NULL, NULL);
  }
  bundle->library = NULL;
  if (library->major != AOT_PROTOCOL_MAJOR) return aot_refuse_version_("the bundle", library->major, library->minor);
  bundle->library = library;
  return AOT_OK;
}

/* ---- opening ---- */

#if defined(__x86_64__)
#define AOT_HOST "x86_64-linux-gnu"
#elif defined(__aarch64__)
#define AOT_HOST "aarch64-linux-gnu"
#else
#define AOT_HOST "this-cpu-is-not-supported"
#endif

/* The entry library: its file name, and what the file must be. */
typedef struct aot_entry_record {
  char name[256];
  char sha256[65];
  unsigned long long size;
} aot_entry_record;

int aot_refuse_path_(const char* path);
int aot_read_file_(const char* path, size_t limit, char** text, size_t* size);
int aot_read_manifest_(const char* path, const aot_options* options, aot_entry_record* record);
int aot_find_entry_(const char* manifest, aot_entry_record* record);
int aot_check_entry_(int fd, const char* path, const aot_entry_record* record);
int aot_need_tvm_ffi_(const char* path);
int aot_map_entry_(int fd, const char* path, const aot_interface** library);
int aot_open_entry_(const char* path, const aot_entry_record* record, const aot_options* options,
                    const aot_interface** library);
void aot_hex_(const uint8_t digest[32], char hex[65]);

AOT_SHARED void aot_hex_(const uint8_t digest[32], char hex[65]) {
  for (int i = 0; i < 32; ++i) snprintf(hex + 2 * i, 3, "%02x", (unsigned)digest[i]);
}

/* Says what is wrong with a directory that holds no code for this host. */
AOT_SHARED int aot_refuse_path_(const char* path) {
  char place[4096], hosts[512] = "";
  size_t at = 0;
  int fd = -1;
  snprintf(place, sizeof place, "%s/manifest.json", path);
  if (aot_file_open(place, &fd) != 0) {
    return aot_fail_(AOT_ERROR_BUNDLE, "`%s` is not a bundle: it holds no manifest.json\nhint: give the directory that "
                     "`python -m aot build` printed", path, NULL, NULL);
  }
  close(fd);
  snprintf(place, sizeof place, "%s/lib", path);
  DIR* directory = opendir(place);
  for (struct dirent* entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
    if (entry->d_name[0] == '.' || at + strlen(entry->d_name) + 3 > sizeof hosts) continue;
    at += (size_t)snprintf(hosts + at, sizeof hosts - at, "%s%s", at == 0 ? "" : ", ", entry->d_name);
  }
  if (directory != NULL) closedir(directory);
  return aot_fail_(AOT_ERROR_HOST, "`%s` holds no code for this host, " AOT_HOST "; it has: %s\nhint: build it with "
                   "`--host`, for this CPU too", path, at == 0 ? "none" : hosts, NULL);
}

/* The text of a file, with a final zero, to be freed; 0 or an errno value. */
AOT_SHARED int aot_read_file_(const char* path, size_t limit, char** text, size_t* size) {
  int fd = -1;
  uint64_t length = 0;
  *text = NULL;
  int error = aot_file_open(path, &fd);
  if (error != 0) return error;
  error = aot_file_size(fd, &length);
  if (error == 0 && length > limit) error = EFBIG;
  if (error == 0 && (*text = (char*)malloc((size_t)length + 1)) == NULL) error = ENOMEM;
  if (error == 0) error = aot_file_read(fd, *text, (size_t)length, size);
  close(fd);
  if (error == 0) (*text)[*size] = '\0';
  else free(*text);
  return error;
}

static inline int aot_refuse_file_(const char* path, int error) {
  return aot_fail_(AOT_ERROR_BUNDLE, "cannot read `%s`: %s", path, strerror(error), NULL);
}

/* ---- the entry library in a manifest ----
 *
 * This is no reader of JSON, and needs to be none. If the caller trusts a digest or a key, the text is the author's. If
 * not, anybody who writes it may name any library, however it is read. */

static inline const char* aot_skip_spaces_(const char* at) { return at + strspn(at, " \t\r\n"); }

/* Past the colon of the next member of that name, or NULL. Within a string a quote would have a backslash before it. */
static inline const char* aot_next_member_(const char* at, const char* name) {
  const size_t size = strlen(name);
  for (; (at = strchr(at, '"')) != NULL; ++at) {
    if (strncmp(at + 1, name, size) != 0 || at[1 + size] != '"') continue;
    const char* colon = aot_skip_spaces_(at + 2 + size);
    if (*colon == ':') return aot_skip_spaces_(colon + 1);
  }
  return NULL;
}

/* The record in one member `"entry": {"path": ..., "sha256": ..., "size": ...}`; 1 if it is one for this host. */
static inline int aot_entry_member_(const char* at, aot_entry_record* record) {
  static const char folder[] = "\"lib/" AOT_HOST "/";
  char member[1024];
  const char* end = *at == '{' ? strchr(at, '}') : NULL;
  if (end == NULL || (size_t)(end - at) >= sizeof member) return 0;
  memcpy(member, at, (size_t)(end - at));
  member[end - at] = '\0';
  const char* path = aot_next_member_(member, "path");
  const char* sha256 = aot_next_member_(member, "sha256");
  const char* size = aot_next_member_(member, "size");
  if (path == NULL || sha256 == NULL || size == NULL || strncmp(path, folder, sizeof folder - 1) != 0) return 0;
  memset(record, 0, sizeof *record);
  return sscanf(path + sizeof folder - 1, "%255[^/\\\"\n]", record->name) == 1 && record->name[0] != '.' &&
         sscanf(sha256, "\"%64[0-9a-f]\"", record->sha256) == 1 && strlen(record->sha256) == 64 &&
         sscanf(size, "%llu", &record->size) == 1;
}

AOT_SHARED int aot_find_entry_(const char* manifest, aot_entry_record* record) {
  aot_entry_record found;
  int count = 0;
  for (const char* at = manifest; (at = aot_next_member_(at, "entry")) != NULL;) {
    if (!aot_entry_member_(at, &found)) continue;
    *record = found;
    ++count;
  }
  return count == 1 ? 0 : -1;
}

/* ---- which manifests are trusted ---- */

static inline int aot_hex_digit_(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

static inline int aot_from_hex_(const char* text, uint8_t bytes[32]) {
  for (int i = 0; i < 32; ++i) {
    const int high = aot_hex_digit_(text[2 * i]), low = high < 0 ? -1 : aot_hex_digit_(text[2 * i + 1]);
    if (low < 0) return 0;
    bytes[i] = (uint8_t)(16 * high + low);
  }
  return 1;
}

static inline int aot_check_pin_(const char* place, const char* text, size_t size, const char* pin) {
  uint8_t digest[32], expected[32];
  char seen[65];
  aot_sha256_state hash;
  if (!aot_from_hex_(pin, expected) || pin[64] != '\0') {
    return aot_fail_(AOT_ERROR_USAGE, "manifest_sha256 must be 64 hex digits in lower case, not `%s`", pin, NULL, NULL);
  }
  aot_sha256_begin(&hash, aot_sha256_blocks_portable);
  aot_sha256_update(&hash, text, size);
  aot_sha256_final(&hash, digest);
  if (memcmp(digest, expected, 32) == 0) return AOT_OK;
  aot_hex_(digest, seen);
  return aot_fail_(AOT_ERROR_DIGEST, "`%s` is not the manifest that this program was built for: sha256 %s, expected "
                   "%s\nhint: install the bundle that belongs to the program, or build the program with the new one",
                   place, seen, pin);
}

static inline int aot_check_signature_(const char* path, const char* text, size_t size, const char* keys) {
  char place[4096 + 64], *signature = NULL;
  size_t signature_size = 0;
  uint8_t key[32];
  int signed_by = 0, known = 0;
  snprintf(place, sizeof place, "%s/manifest.sig", path);
  int error = aot_read_file_(place, 4096, &signature, &signature_size);
  if (error == ENOENT) {
    return aot_fail_(AOT_ERROR_SIGNATURE, "`%s` is not signed: it has no manifest.sig\nhint: sign it with `python -m aot "
                     "sign`, or open it without a key if you trust its source", path, NULL, NULL);
  }
  if (error != 0) return aot_refuse_file_(place, error);
  const char* at = keys + strspn(keys, " ");
  for (; *at != '\0'; at += strspn(at, " "), ++known) {
    if (!aot_from_hex_(at, key) || (at[64] != ' ' && at[64] != '\0')) break;
    signed_by |= signature_size == AOT_ED25519_SIGNATURE_SIZE &&
                 aot_ed25519_verify(key, (const uint8_t*)signature, text, size);
    at += 64;
  }
  free(signature);
  if (*at != '\0' || known == 0) {
    return aot_fail_(AOT_ERROR_USAGE, "public_keys must be keys of 64 hex digits in lower case, separated by spaces, not `%s`",
                     keys, NULL, NULL);
  }
  if (signed_by) return AOT_OK;
  return aot_fail_(AOT_ERROR_SIGNATURE, "the signature of `%s` is not by a trusted key (%s), or its manifest was "
                   "altered\nhint: get the bundle from its signer again, or give the public key that signed it", path, keys,
                   NULL);
}

/* The entry library of a bundle is called after it. */
static inline int aot_check_name_(const char* path, const aot_entry_record* record, const char* name) {
  const size_t size = strlen(name);
  if (strncmp(record->name, "lib", 3) == 0 && strncmp(record->name + 3, name, size) == 0 &&
      strcmp(record->name + 3 + size, ".so") == 0) {
    return AOT_OK;
  }
  return aot_fail_(AOT_ERROR_SIGNATURE, "`%s` is not the bundle `%s`: its library is %s\nhint: install the bundle that was "
                   "meant", path, name, record->name);
}

/* Reads the manifest, checks it as the caller asked, then takes the entry library's record from it. */
AOT_SHARED int aot_read_manifest_(const char* path, const aot_options* options, aot_entry_record* record) {
  char place[4096 + 64], *text = NULL;
  size_t size = 0;
  int code = AOT_OK;
  snprintf(place, sizeof place, "%s/manifest.json", path);
  int error = aot_read_file_(place, (size_t)4 << 20, &text, &size);
  if (error == ENOENT || error == ENOTDIR) return aot_refuse_path_(path);
  if (error != 0) return aot_refuse_file_(place, error);
  if (options->manifest_sha256 != NULL) code = aot_check_pin_(place, text, size, options->manifest_sha256);
  if (code == AOT_OK && options->public_keys != NULL) code = aot_check_signature_(path, text, size, options->public_keys);
  if (code == AOT_OK && (strlen(text) != size || aot_find_entry_(text, record) != 0)) {
    code = aot_fail_(AOT_ERROR_HOST, "`%s` names no entry library for this host, " AOT_HOST "\nhint: build the bundle with "
                     "`--host`, for this CPU too; if it was, `python -m aot verify` lists what is damaged", place, NULL, NULL);
  }
  free(text);
  if (code == AOT_OK && options->name != NULL) code = aot_check_name_(path, record, options->name);
  return code;
}

/* ---- opening the entry library ---- */

AOT_SHARED int aot_check_entry_(int fd, const char* path, const aot_entry_record* record) {
  uint8_t digest[32];
  char hex[65];
  uint64_t size = 0;
  int error = aot_file_hash(fd, record->size, aot_sha256_blocks_portable, digest, &size);
  if (error != 0) return aot_refuse_file_(path, error);
  aot_hex_(digest, hex);
  if (size == record->size && strcmp(hex, record->sha256) == 0) return AOT_OK;
  const char* seen = size == record->size ? hex : "not computed, since the size differs";
  return aot_fail_(AOT_ERROR_DIGEST, "`%s` is not the file this bundle was built with: sha256 %s, expected %s\nhint: the bundle "
                   "was altered or copied incompletely; `python -m aot verify` lists what differs", path, seen, record->sha256);
}

/* Makes TVM-FFI's functions available to libraries that are opened from now on. */
AOT_SHARED int aot_need_tvm_ffi_(const char* path) {
  void* self = dlopen(NULL, RTLD_NOW);
  int there = self != NULL && dlsym(self, "TVMFFIErrorMoveFromRaised") != NULL;
  if (self != NULL) dlclose(self);
  if (there) return AOT_OK;
  /* Python's extension modules load it for themselves alone: this makes it everybody's. */
  if (dlopen("libtvm_ffi.so", RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD) != NULL) return AOT_OK;
  if (path != NULL && dlopen(path, RTLD_NOW | RTLD_GLOBAL) != NULL) return AOT_OK;
  if (path == NULL && dlopen("libtvm_ffi.so", RTLD_NOW | RTLD_GLOBAL) != NULL) return AOT_OK;
  return aot_fail_(AOT_ERROR_TVM_FFI, "libtvm_ffi.so, which bundles need, cannot be opened: %s\nhint: `pip install "
                   "apache-tvm-ffi`, then give the path that `tvm-ffi-config --libfiles` prints, link it, or put its "
                   "directory on the search path", dlerror(), NULL, NULL);
}

/* `fd` -1: the path is opened. */
AOT_SHARED int aot_map_entry_(int fd, const char* path, const aot_interface** library) {
  typedef int (*version_function)(uint32_t*, uint32_t*);
  typedef const aot_interface* (*interface_function)(void);
  version_function version;
  interface_function get;
  uint32_t major = 0, minor = 0;
  char quoted[4096 + 512];
  const char* error = "";
  void* opened = aot_file_map(fd, path, &error);
  if (opened == NULL) return aot_fail_(AOT_ERROR_BUNDLE, "cannot open `%s`: %s", path, error, NULL);
  void* version_address = dlsym(opened, "aot_abi_version");
  void* get_address = dlsym(opened, "aot_abi_interface");
  memcpy(&version, &version_address, sizeof version);
  memcpy(&get, &get_address, sizeof get);
  if (version == NULL || get == NULL) {
    return aot_fail_(AOT_ERROR_VERSION, "`%s` was built by a cute-aot without a C interface\nhint: rebuild the bundle", path,
                     NULL, NULL);
  }
  version(&major, &minor);
  if (major == AOT_PROTOCOL_MAJOR) {
    *library = get();
    return AOT_OK;
  }
  snprintf(quoted, sizeof quoted, "`%s`", path);
  return aot_refuse_version_(quoted, major, minor);
}

AOT_SHARED int aot_open_entry_(const char* path, const aot_entry_record* record, const aot_options* options,
                               const aot_interface** library) {
  int fd = -1, verify = !options->skip_verification;
  uint64_t size = 0;
  int error = aot_file_open(path, &fd);
  if (error != 0) return aot_refuse_file_(path, error);
  error = aot_file_size(fd, &size); /* the dynamic linker would wait for a writer to a FIFO */
  int code = error != 0 ? aot_refuse_file_(path, error) : AOT_OK;
  if (code == AOT_OK && verify) code = aot_check_entry_(fd, path, record);
  if (code == AOT_OK) code = aot_need_tvm_ffi_(options->tvm_ffi);
  if (code == AOT_OK) code = aot_map_entry_(verify ? fd : -1, path, library);
  close(fd);
  return code;
}

/* The absolute path of the folder that holds the entry library. */
static inline int aot_entry_directory_(const char* path, char directory[4096]) {
  char here[4096] = "";
  if (path[0] != '/' && getcwd(here, sizeof here) == NULL) here[0] = '\0';
  int size = snprintf(directory, 4096, "%s%s%s/lib/" AOT_HOST, here, path[0] == '/' ? "" : "/", path);
  if (size > 0 && size < 4096) return AOT_OK;
  return aot_fail_(AOT_ERROR_BUNDLE, "the path of the bundle is too long: `%s`", path, NULL, NULL);
}

AOT_SHARED int aot_open(const char* path, const aot_options* options, aot_bundle* bundle) {
  char directory[4096], entry[4096 + 256];
  aot_entry_record record;
  aot_options asked;
  const aot_interface* library = NULL;
  if (path == NULL || bundle == NULL) {
    return aot_fail_(AOT_ERROR_USAGE, "aot_open: a null pointer was given", NULL, NULL, NULL);
  }
  bundle->library = NULL;
  memset(&asked, 0, sizeof asked);
  if (options != NULL) asked = *options;
  if ((asked.manifest_sha256 != NULL || asked.public_keys != NULL) && asked.skip_verification) {
    return aot_fail_(AOT_ERROR_USAGE, "aot_open: manifest_sha256 or public_keys was given, and skip_verification too", NULL,
                     NULL, NULL);
  }
  int code = aot_entry_directory_(path, directory);
  if (code != AOT_OK) return code;
  if ((code = aot_read_manifest_(path, &asked, &record)) != AOT_OK) return code;
  snprintf(entry, sizeof entry, "%s/%s", directory, record.name);
  if ((code = aot_open_entry_(entry, &record, &asked, &library)) != AOT_OK) return code;
  if (library->configure(!asked.skip_verification, directory) != 0) return aot_raised_(library->core);
  return aot_attach(library, bundle);
}

/* ---- using ---- */

AOT_SHARED int aot_describe(aot_bundle bundle, const aot_interface** library) {
  if (library == NULL) return aot_fail_(AOT_ERROR_USAGE, "aot_describe: a null pointer was given", NULL, NULL, NULL);
  *library = bundle.library;
  return bundle.library != NULL ? AOT_OK : aot_refuse_unopened_();
}

/* Entries may be longer than this header knows. */
static inline const aot_function_info* aot_info_(const aot_interface* library, uint32_t index) {
  return (const aot_function_info*)(const void*)((const char*)library->functions + (size_t)index * library->function_size);
}

AOT_SHARED int aot_function_at(aot_bundle bundle, uint32_t index, aot_function* function) {
  const aot_interface* library = bundle.library;
  if (function == NULL) return aot_fail_(AOT_ERROR_USAGE, "aot_function_at: a null pointer was given", NULL, NULL, NULL);
  memset(function, 0, sizeof *function);
  if (library == NULL) return aot_refuse_unopened_();
  if (index >= library->function_count) {
    return aot_fail_(AOT_ERROR_NOT_FOUND, "bundle `%s` has fewer functions than that", library->name, NULL, NULL);
  }
  function->info = aot_info_(library, index);
  function->core = library->core;
  return AOT_OK;
}

AOT_SHARED int aot_find(aot_bundle bundle, const char* name, aot_function* function) {
  const aot_interface* library = bundle.library;
  if (name == NULL || function == NULL) {
    return aot_fail_(AOT_ERROR_USAGE, "aot_find: a null pointer was given", NULL, NULL, NULL);
  }
  memset(function, 0, sizeof *function);
  if (library == NULL) return aot_refuse_unopened_();
  uint32_t low = 0, high = library->function_count;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    int order = strcmp(aot_info_(library, middle)->name, name);
    if (order == 0) return aot_function_at(bundle, middle, function);
    if (order < 0) low = middle + 1;
    else high = middle;
  }
  return aot_fail_(AOT_ERROR_NOT_FOUND, "bundle `%s` has no function `%s`", library->name, name, NULL);
}

static inline int aot_call(aot_function function, const aot_value* args, int32_t count) {
  aot_value result = {AOT_NONE, 0, {0}};
  if (function.core == NULL) return aot_refuse_unopened_();
  if (function.info == NULL || (args == NULL && count != 0)) {
    return aot_fail_(AOT_ERROR_USAGE, "aot_call: a null pointer was given", NULL, NULL, NULL);
  }
  if (function.info->call(NULL, args, count, &result) == 0) return AOT_OK;
  return aot_raised_(function.core);
}

/* The device of the first tensor, elements of tuples included; -1 if there is none. */
static inline int32_t aot_first_device_(const aot_value* args, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (args[i].type == AOT_TENSOR && args[i].as.pointer != NULL) {
      return ((const aot_tensor*)args[i].as.pointer)->device_id;
    }
    if (args[i].type == AOT_TUPLE && args[i].as.pointer != NULL) {
      const aot_tuple_header* tuple = (const aot_tuple_header*)args[i].as.pointer;
      int32_t device = aot_first_device_((const aot_value*)tuple->values, tuple->values == NULL ? 0 : tuple->size);
      if (device >= 0) return device;
    }
  }
  return -1;
}

/* Calls with `stream` set meanwhile. Without a tensor there is no device whose stream it could be: such functions take
 * their stream as an argument. */
static inline int aot_call_entry_on_(const aot_core* core, aot_entry entry, void* stream, const aot_value* args,
                                     int32_t count) {
  aot_value result = {AOT_NONE, 0, {0}};
  void* previous = NULL;
  int32_t device = aot_first_device_(args, count);
  if (device < 0) {
    return aot_fail_(AOT_ERROR_ARGUMENT, "a stream was given, but no tensor says on which device\nhint: a function without "
                     "tensors takes its stream as an argument", NULL, NULL, NULL);
  }
  if (core->set_stream(device, stream, &previous) != 0) return aot_raised_(core);
  int code = entry(NULL, args, count, &result) == 0 ? AOT_OK : aot_raised_(core);
  if (core->set_stream(device, previous, NULL) != 0 && code == AOT_OK) return aot_raised_(core);
  return code;
}

static inline int aot_call_on(aot_function function, void* stream, const aot_value* args, int32_t count) {
  if (function.core == NULL) return aot_refuse_unopened_();
  if (function.info == NULL || (args == NULL && count != 0)) {
    return aot_fail_(AOT_ERROR_USAGE, "aot_call_on: a null pointer was given", NULL, NULL, NULL);
  }
  return aot_call_entry_on_(function.core, function.info->call, stream, args, count);
}

static inline int aot_entry_workspace_size_(const aot_core* core, aot_entry entry, const aot_value* args, int32_t count,
                                            size_t* bytes) {
  aot_value result = {AOT_NONE, 0, {0}};
  if (bytes == NULL) {
    return aot_fail_(AOT_ERROR_USAGE, "workspace_size: a null pointer was given for the number of bytes", NULL, NULL, NULL);
  }
  *bytes = 0;
  if (core->minor < 1) return AOT_OK; /* before there were any */
  if (entry(AOT_ASK_WORKSPACE, args, count, &result) != 0) return aot_raised_(core);
  *bytes = (size_t)result.as.integer;
  return AOT_OK;
}

static inline int aot_workspace_size(aot_function function, const aot_value* args, int32_t count, size_t* bytes) {
  if (function.core == NULL) return aot_refuse_unopened_();
  if (function.info == NULL || bytes == NULL || (args == NULL && count != 0)) {
    return aot_fail_(AOT_ERROR_USAGE, "aot_workspace_size: a null pointer was given", NULL, NULL, NULL);
  }
  return aot_entry_workspace_size_(function.core, function.info->call, args, count, bytes);
}

AOT_SHARED int aot_set_stream(aot_bundle bundle, int32_t device, void* stream, void** previous) {
  const aot_interface* library = bundle.library;
  if (library == NULL) return aot_refuse_unopened_();
  if (device < 0) return aot_fail_(AOT_ERROR_USAGE, "aot_set_stream: not a device", NULL, NULL, NULL);
  return library->core->set_stream(device, stream, previous) == 0 ? AOT_OK : aot_raised_(library->core);
}

AOT_SHARED int aot_preload(aot_bundle bundle, const char* function, int32_t device) {
  const aot_interface* library = bundle.library;
  if (library == NULL) return aot_refuse_unopened_();
  return library->preload(function, device) == 0 ? AOT_OK : aot_raised_(library->core);
}

AOT_SHARED int aot_explain(aot_bundle bundle, const char* function, int32_t major, int32_t minor, const aot_value* args,
                           int32_t count, char* text, size_t room, size_t* needed) {
  const aot_interface* library = bundle.library;
  if (function == NULL || (args == NULL && count != 0) || (text == NULL && room != 0)) {
    return aot_fail_(AOT_ERROR_USAGE, "aot_explain: a null pointer was given", NULL, NULL, NULL);
  }
  if (library == NULL) return aot_refuse_unopened_();
  int status = library->explain(function, major, minor, args, count, text, room, needed);
  return status == 0 ? AOT_OK : aot_raised_(library->core);
}

AOT_SHARED int aot_make_tensor(aot_tensor* tensor, void* data, int32_t device, aot_dtype dtype, int32_t ndim,
                               int64_t* shape, int64_t* strides, int64_t* row_major) {
  int64_t elements = 1;
  if (tensor == NULL || (ndim > 0 && (shape == NULL || (strides == NULL && row_major == NULL)))) {
    return aot_fail_(AOT_ERROR_USAGE, "aot_make_tensor: a null pointer was given", NULL, NULL, NULL);
  }
  if (ndim < 0 || device < 0) return aot_fail_(AOT_ERROR_ARGUMENT, "aot_make_tensor: a negative rank or device", NULL, NULL, NULL);
  for (int32_t i = ndim; i-- > 0;) {
    if (shape[i] < 0) return aot_fail_(AOT_ERROR_ARGUMENT, "aot_make_tensor: a negative extent", NULL, NULL, NULL);
    if (strides == NULL) row_major[i] = elements;
    if (__builtin_mul_overflow(elements, shape[i], &elements)) {
      return aot_fail_(AOT_ERROR_ARGUMENT, "aot_make_tensor: more than 2^63 elements", NULL, NULL, NULL);
    }
  }
  if (data == NULL && elements > 0) {
    return aot_fail_(AOT_ERROR_ARGUMENT, "aot_make_tensor: the address is null, and the tensor is not empty", NULL, NULL, NULL);
  }
  memset(tensor, 0, sizeof *tensor);
  tensor->data = data;
  tensor->device_type = AOT_DEVICE_CUDA;
  tensor->device_id = device;
  tensor->ndim = ndim;
  tensor->dtype = dtype;
  tensor->shape = shape;
  tensor->strides = strides != NULL ? strides : row_major;
  return AOT_OK;
}

#ifdef __cplusplus
}
#endif

#endif /* AOT_AOT_H_ */
