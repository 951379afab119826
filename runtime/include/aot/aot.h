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
 * libtvm_ffi, which bundles are written against, where the process does not have it yet. Programs that link a
 * bundle include the <name>.h that was generated with it, which includes this.
 *
 * Every function returns AOT_OK or another AOT_ERROR_* code, results come through the last parameters, and the sentence
 * that belongs to a code is aot_last_error's, per thread. Nothing exits, aborts or prints.
 *
 * Threads: everything may be called from any thread at any time, on the same handles too. What is not so says it.
 * Handles belong to the program or shared library that made them: one passed to another shared library that includes
 * this header by itself is refused there.
 *
 * Code that was opened stays mapped until the process ends, since CUDA graphs hold on to kernels; closing ends the
 * handle alone.
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

#include "abi.h"

/* Definitions in a header, of which the linker keeps one per program or shared library. */
#ifdef __cplusplus
#define AOT_SHARED_DATA __attribute__((weak, visibility("hidden")))
#define AOT_SHARED inline __attribute__((visibility("hidden")))
extern "C" {
#else
#define AOT_SHARED_DATA __attribute__((weak, visibility("hidden")))
#define AOT_SHARED __attribute__((weak, visibility("hidden")))
#endif

enum {
  AOT_OK = 0,
  AOT_ERROR_USAGE = 1,     /* a null pointer, a closed handle */
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
  AOT_ERROR_OTHER = 13
};

/* Both are plain values to copy and pass around. All zero: none. */
typedef struct aot_bundle {
  uint32_t slot;
  uint32_t generation;
} aot_bundle;

typedef struct aot_function {
  const aot_function_info* info;
  aot_bundle bundle;
} aot_function;

/* Zero-initialise it; fields may be added at the end. */
typedef struct aot_options {
  int32_t skip_verification; /* open native code without comparing its digest first */
  int32_t reserved;
  const char* tvm_ffi; /* path of libtvm_ffi.so, for where neither the process nor the search path has it */
} aot_options;

/* ---- declarations ---- */

/* The version this header was written for. This function stays for ever. */
int aot_get_version(uint32_t* major, uint32_t* minor);

/* The sentence of this thread's last failure, valid until its next one; "" where there was none. */
int aot_last_error(int* code, const char** text);

/* `path` is the directory that `python -m aot build` printed. `options` may be NULL. */
int aot_open(const char* path, const aot_options* options, aot_bundle* bundle);

/* A handle for a bundle that was linked: give &aot_<name>_interface, which <name>.h declares. */
int aot_attach(const aot_interface* library, aot_bundle* bundle);

/* Ends the handle, and the functions found through it. */
int aot_close(aot_bundle bundle);

/* Name, host, functions and the rest; the structure stays valid for ever. */
int aot_describe(aot_bundle bundle, const aot_interface** library);
int aot_function_at(aot_bundle bundle, uint32_t index, aot_function* function);
int aot_find(aot_bundle bundle, const char* name, aot_function* function);

/* Calls on the stream that is set for the device in this thread (at first, the default stream). */
static inline int aot_call(aot_function function, const aot_value* args, int32_t count);

/* Calls on `stream` of the device on which the first tensor lies. */
static inline int aot_call_on(aot_function function, void* stream, const aot_value* args, int32_t count);

/* Sets the stream for later calls of this thread, of all bundles. `previous` may be NULL. */
int aot_set_stream(aot_bundle bundle, int32_t device, void* stream, void** previous);

/* Loads code now rather than at the first call. `function` NULL: of all functions that have code for the device. */
int aot_preload(aot_bundle bundle, const char* function, int32_t device);

/* What a call would run on a device of that compute capability, without one: lines "[*]arch TAB variant TAB reason". At
 * most `room` bytes are written to `text`, a final zero included; `needed` is the length of the whole. */
int aot_explain(aot_bundle bundle, const char* function, int32_t major, int32_t minor, const aot_value* args,
                int32_t count, char* text, size_t room, size_t* needed);

/* Describes memory as a tensor. The shape, and the strides where given, are pointed to, not copied, and must outlive
 * the tensor. `row_major` has room for `ndim` numbers, to be filled; it may be NULL where `strides` is not. */
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

static inline aot_dtype aot_make_dtype(uint8_t code, uint8_t bits) {
  aot_dtype dtype = {0, 0, 1};
  dtype.code = code;
  dtype.bits = bits;
  return dtype;
}

/* ---- errors ---- */

typedef struct aot_error_state {
  int code;
  size_t room;
  char* text;
} aot_error_state;

AOT_SHARED_DATA pthread_key_t aot_error_key_;
AOT_SHARED_DATA pthread_once_t aot_error_once_ = PTHREAD_ONCE_INIT;

void aot_free_error_(void* memory);
void aot_make_error_key_(void);
aot_error_state* aot_error_state_(void);
int aot_fail_text_(int code, const char* text, size_t size);
int aot_fail_(int code, const char* format, const char* first, const char* second, const char* third);
void aot_receive_error_(void* context, const char* kind, size_t kind_size, const char* text, size_t text_size);

AOT_SHARED void aot_free_error_(void* memory) {
  aot_error_state* state = (aot_error_state*)memory;
  free(state->text);
  free(state);
}

AOT_SHARED void aot_make_error_key_(void) {
  if (pthread_key_create(&aot_error_key_, aot_free_error_) != 0) aot_error_key_ = (pthread_key_t)-1;
}

/* NULL where memory ran out. */
AOT_SHARED aot_error_state* aot_error_state_(void) {
  pthread_once(&aot_error_once_, aot_make_error_key_);
  aot_error_state* state = (aot_error_state*)pthread_getspecific(aot_error_key_);
  if (state != NULL) return state;
  state = (aot_error_state*)calloc(1, sizeof *state);
  if (state == NULL) return NULL;
  if (pthread_setspecific(aot_error_key_, state) == 0) return state;
  free(state);
  return NULL;
}

AOT_SHARED int aot_fail_text_(int code, const char* text, size_t size) {
  aot_error_state* state = aot_error_state_();
  if (state == NULL) return code;
  state->code = code;
  if (state->room <= size) {
    char* grown = (char*)realloc(state->text, size + 1);
    if (grown == NULL) {
      if (state->text != NULL) state->text[0] = '\0';
      return code;
    }
    state->text = grown;
    state->room = size + 1;
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
  aot_error_state* state = aot_error_state_();
  if (code != NULL) *code = state == NULL ? AOT_ERROR_OTHER : state->code;
  if (text != NULL) *text = state == NULL ? "out of memory" : state->text == NULL ? "" : state->text;
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

/* ---- handles ---- */

/* A slot's generation is odd while its handle is open. Handles that were closed never become valid again. */
#define AOT_MAX_OPEN 1024
typedef struct aot_slot {
  uint32_t generation;
  const aot_interface* library;
} aot_slot;

AOT_SHARED_DATA aot_slot aot_slots_[AOT_MAX_OPEN];
AOT_SHARED_DATA pthread_mutex_t aot_slots_lock_ = PTHREAD_MUTEX_INITIALIZER;

int aot_new_handle_(const aot_interface* library, aot_bundle* bundle);
int aot_refuse_handle_(aot_bundle bundle);

static inline const aot_interface* aot_library_(aot_bundle bundle) {
  if (bundle.slot >= AOT_MAX_OPEN || bundle.generation % 2 == 0) return NULL;
  const aot_slot* slot = &aot_slots_[bundle.slot];
  /* The library of a slot is set before the generation says that it is open. */
  uint32_t generation = __atomic_load_n(&slot->generation, __ATOMIC_ACQUIRE);
  const aot_interface* library = __atomic_load_n(&slot->library, __ATOMIC_ACQUIRE);
  return generation == bundle.generation ? library : NULL;
}

AOT_SHARED int aot_refuse_handle_(aot_bundle bundle) {
  if (bundle.slot == 0 && bundle.generation == 0) {
    return aot_fail_(AOT_ERROR_USAGE, "the handle was never opened", NULL, NULL, NULL);
  }
  return aot_fail_(AOT_ERROR_USAGE, "the handle is closed, or belongs to another shared library\nhint: keep the bundle "
                   "open as long as its functions are called", NULL, NULL, NULL);
}

AOT_SHARED int aot_new_handle_(const aot_interface* library, aot_bundle* bundle) {
  int code = AOT_OK;
  uint32_t at = 0;
  pthread_mutex_lock(&aot_slots_lock_);
  while (at < AOT_MAX_OPEN && aot_slots_[at].generation % 2 != 0) ++at;
  if (at == AOT_MAX_OPEN) {
    code = aot_fail_(AOT_ERROR_USAGE, "1024 handles are open\nhint: close those that are not needed, or open each bundle once",
                     NULL, NULL, NULL);
  } else {
    aot_slot* slot = &aot_slots_[at];
    /* Different for every shared library that holds such a table, so that they refuse each other's handles. */
    uint32_t first = (uint32_t)((uintptr_t)aot_slots_ >> 4) & ~UINT32_C(1);
    uint32_t generation = (slot->generation == 0 ? first : slot->generation) + 1;
    __atomic_store_n(&slot->library, library, __ATOMIC_RELEASE);
    __atomic_store_n(&slot->generation, generation, __ATOMIC_RELEASE);
    bundle->slot = at;
    bundle->generation = generation;
  }
  pthread_mutex_unlock(&aot_slots_lock_);
  return code;
}

AOT_SHARED int aot_close(aot_bundle bundle) {
  pthread_mutex_lock(&aot_slots_lock_);
  const aot_interface* library = aot_library_(bundle);
  if (library != NULL) __atomic_store_n(&aot_slots_[bundle.slot].generation, bundle.generation + 1, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&aot_slots_lock_);
  return library != NULL ? AOT_OK : aot_refuse_handle_(bundle);
}

AOT_SHARED int aot_attach(const aot_interface* library, aot_bundle* bundle) {
  char numbers[64];
  if (library == NULL || bundle == NULL) {
    return aot_fail_(AOT_ERROR_USAGE, "aot_attach: a null pointer was given", NULL, NULL, NULL);
  }
  memset(bundle, 0, sizeof *bundle);
  if (library->major == AOT_PROTOCOL_MAJOR) return aot_new_handle_(library, bundle);
  snprintf(numbers, sizeof numbers, "%lu.%lu of the protocol, this header speaks %d.%d", (unsigned long)library->major,
           (unsigned long)library->minor, AOT_PROTOCOL_MAJOR, AOT_PROTOCOL_MINOR);
  return aot_fail_(AOT_ERROR_VERSION, "the bundle speaks version %s\nhint: build the bundle and the program "
                   "with the same cute-aot", numbers, NULL, NULL);
}

/* ---- SHA-256 (FIPS 180-4), for the entry library; the entry library checks the rest by itself ---- */

typedef struct aot_hash {
  uint32_t state[8];
  unsigned char block[64];
} aot_hash;

void aot_hash_block_(aot_hash* hash);
int aot_hash_file_(const char* path, char hex[65], unsigned long long* size);

#define AOT_ROTATE_(x, n) ((x) >> (n) | (x) << (32 - (n)))

AOT_SHARED void aot_hash_block_(aot_hash* hash) {
  static const uint32_t k[64] = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
      0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
      0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
      0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
      0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
  };
  uint32_t w[64], s[8];
  for (int i = 0; i < 16; ++i) {
    const unsigned char* p = hash->block + 4 * i;
    w[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
  }
  for (int i = 16; i < 64; ++i) {
    uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (AOT_ROTATE_(a, 7) ^ AOT_ROTATE_(a, 18) ^ a >> 3) +
           (AOT_ROTATE_(b, 17) ^ AOT_ROTATE_(b, 19) ^ b >> 10);
  }
  memcpy(s, hash->state, sizeof s);
  for (int i = 0; i < 64; ++i) {
    uint32_t e = s[4], a = s[0];
    uint32_t t = s[7] + (AOT_ROTATE_(e, 6) ^ AOT_ROTATE_(e, 11) ^ AOT_ROTATE_(e, 25)) + ((e & s[5]) ^ (~e & s[6])) + k[i] + w[i];
    uint32_t u = (AOT_ROTATE_(a, 2) ^ AOT_ROTATE_(a, 13) ^ AOT_ROTATE_(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
    memmove(s + 1, s, 7 * sizeof s[0]);
    s[4] += t;
    s[0] = t + u;
  }
  for (int i = 0; i < 8; ++i) hash->state[i] += s[i];
}

/* 0, or an errno value. */
AOT_SHARED int aot_hash_file_(const char* path, char hex[65], unsigned long long* size) {
  aot_hash hash = {{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}, {0}};
  FILE* file = fopen(path, "rb");
  size_t got;
  *size = 0;
  if (file == NULL) return errno;
  while ((got = fread(hash.block, 1, 64, file)) == 64) {
    *size += 64;
    aot_hash_block_(&hash);
  }
  *size += got;
  int failed = ferror(file);
  fclose(file);
  if (failed) return EIO;
  hash.block[got] = 0x80;
  memset(hash.block + got + 1, 0, 63 - got);
  if (got >= 56) {
    aot_hash_block_(&hash);
    memset(hash.block, 0, 64);
  }
  for (int i = 0; i < 8; ++i) hash.block[63 - i] = (unsigned char)(*size * 8 >> 8 * i);
  aot_hash_block_(&hash);
  for (int i = 0; i < 32; ++i) snprintf(hex + 2 * i, 3, "%02x", (unsigned)(hash.state[i / 4] >> (24 - 8 * (i % 4)) & 255));
  return 0;
}

/* ---- opening ---- */

#if defined(__x86_64__)
#define AOT_HOST "x86_64-linux-gnu"
#elif defined(__aarch64__)
#define AOT_HOST "aarch64-linux-gnu"
#else
#define AOT_HOST "this-cpu-is-not-supported"
#endif

/* What lib/<host>/entry.txt says: the builder writes it for readers that parse no JSON. */
typedef struct aot_note {
  char entry[256];
  char sha256[65];
  unsigned long long size;
} aot_note;

int aot_refuse_path_(const char* path);
int aot_read_note_(const char* path, aot_note* note);
int aot_check_entry_(const char* path, const aot_note* note);
int aot_need_tvm_ffi_(const char* path);
int aot_open_entry_(const char* path, const aot_interface** library);

/* Says what is wrong with a directory that holds no code for this host. */
AOT_SHARED int aot_refuse_path_(const char* path) {
  char place[4096], hosts[512] = "";
  size_t at = 0;
  snprintf(place, sizeof place, "%s/manifest.json", path);
  FILE* manifest = fopen(place, "rb");
  if (manifest == NULL) {
    return aot_fail_(AOT_ERROR_BUNDLE, "`%s` is not a bundle: it holds no manifest.json\nhint: give the directory that "
                     "`python -m aot build` printed", path, NULL, NULL);
  }
  fclose(manifest);
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

AOT_SHARED int aot_read_note_(const char* path, aot_note* note) {
  char place[4096], line[512];
  int size = snprintf(place, sizeof place, "%s/lib/" AOT_HOST "/entry.txt", path);
  if (size < 0 || (size_t)size >= sizeof place) {
    return aot_fail_(AOT_ERROR_BUNDLE, "the path of the bundle is too long: `%s`", path, NULL, NULL);
  }
  FILE* file = fopen(place, "rb");
  if (file == NULL) return aot_refuse_path_(path);
  memset(note, 0, sizeof *note);
  int known = 0;
  while (fgets(line, sizeof line, file) != NULL) {
    known += strcmp(line, "aot-entry 1\n") == 0;
    known += sscanf(line, "entry %255[^/\n]", note->entry) == 1;
    known += sscanf(line, "size %llu", &note->size) == 1;
    known += sscanf(line, "sha256 %64[0-9a-f]", note->sha256) == 1;
  }
  fclose(file);
  if (known == 4 && note->entry[0] != '.') return AOT_OK;
  return aot_fail_(AOT_ERROR_BUNDLE, "`%s` is damaged, or was written by a newer cute-aot\nhint: `python -m aot verify` "
                   "tells which", place, NULL, NULL);
}

AOT_SHARED int aot_check_entry_(const char* path, const aot_note* note) {
  char hex[65];
  unsigned long long size = 0;
  int error = aot_hash_file_(path, hex, &size);
  if (error != 0) return aot_fail_(AOT_ERROR_BUNDLE, "cannot read `%s`: %s", path, strerror(error), NULL);
  if (size == note->size && strcmp(hex, note->sha256) == 0) return AOT_OK;
  return aot_fail_(AOT_ERROR_DIGEST, "`%s` is not the file this bundle was built with: sha256 %s, expected %s\nhint: the bundle "
                   "was altered or copied incompletely; `python -m aot verify` lists what differs", path, hex, note->sha256);
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

AOT_SHARED int aot_open_entry_(const char* path, const aot_interface** library) {
  typedef int (*version_function)(uint32_t*, uint32_t*);
  typedef const aot_interface* (*interface_function)(void);
  version_function version;
  interface_function get;
  uint32_t major = 0, minor = 0;
  char numbers[64];
  void* opened = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (opened == NULL) return aot_fail_(AOT_ERROR_BUNDLE, "cannot open `%s`: %s", path, dlerror(), NULL);
  void* version_address = dlsym(opened, "aot_abi_version");
  void* get_address = dlsym(opened, "aot_abi_interface");
  memcpy(&version, &version_address, sizeof version);
  memcpy(&get, &get_address, sizeof get);
  if (version == NULL || get == NULL) {
    return aot_fail_(AOT_ERROR_VERSION, "`%s` was built by a cute-aot without a C interface\nhint: build the bundle again",
                     path, NULL, NULL);
  }
  version(&major, &minor);
  if (major == AOT_PROTOCOL_MAJOR) {
    *library = get();
    return AOT_OK;
  }
  snprintf(numbers, sizeof numbers, "%lu.%lu of the protocol, this header speaks %d.%d", (unsigned long)major,
           (unsigned long)minor, AOT_PROTOCOL_MAJOR, AOT_PROTOCOL_MINOR);
  return aot_fail_(AOT_ERROR_VERSION, "`%s` speaks version %s\nhint: build the bundle and the program with the same cute-aot",
                   path, numbers, NULL);
}

AOT_SHARED int aot_open(const char* path, const aot_options* options, aot_bundle* bundle) {
  char entry[4096 + 256];
  aot_note note;
  const aot_interface* library = NULL;
  if (path == NULL || bundle == NULL) {
    return aot_fail_(AOT_ERROR_USAGE, "aot_open: a null pointer was given", NULL, NULL, NULL);
  }
  memset(bundle, 0, sizeof *bundle);
  int verify = options == NULL || !options->skip_verification;
  int code = aot_read_note_(path, &note);
  if (code != AOT_OK) return code;
  /* A path without a slash would be searched for. */
  snprintf(entry, sizeof entry, "%s%s/lib/" AOT_HOST "/%s", path[0] == '/' ? "" : "./", path, note.entry);
  if (verify && (code = aot_check_entry_(entry, &note)) != AOT_OK) return code;
  if ((code = aot_need_tvm_ffi_(options == NULL ? NULL : options->tvm_ffi)) != AOT_OK) return code;
  if ((code = aot_open_entry_(entry, &library)) != AOT_OK) return code;
  if (library->configure(verify, NULL) != 0) return aot_raised_(library->core);
  return aot_attach(library, bundle);
}

/* ---- using ---- */

AOT_SHARED int aot_describe(aot_bundle bundle, const aot_interface** library) {
  const aot_interface* found = aot_library_(bundle);
  if (library == NULL) return aot_fail_(AOT_ERROR_USAGE, "aot_describe: a null pointer was given", NULL, NULL, NULL);
  *library = found;
  return found != NULL ? AOT_OK : aot_refuse_handle_(bundle);
}

/* Entries may be longer than this header knows. */
static inline const aot_function_info* aot_info_(const aot_interface* library, uint32_t index) {
  return (const aot_function_info*)(const void*)((const char*)library->functions + (size_t)index * library->function_size);
}

AOT_SHARED int aot_function_at(aot_bundle bundle, uint32_t index, aot_function* function) {
  const aot_interface* library = aot_library_(bundle);
  if (function == NULL) return aot_fail_(AOT_ERROR_USAGE, "aot_function_at: a null pointer was given", NULL, NULL, NULL);
  memset(function, 0, sizeof *function);
  if (library == NULL) return aot_refuse_handle_(bundle);
  if (index >= library->function_count) {
    return aot_fail_(AOT_ERROR_NOT_FOUND, "bundle `%s` has fewer functions than that", library->name, NULL, NULL);
  }
  function->info = aot_info_(library, index);
  function->bundle = bundle;
  return AOT_OK;
}

AOT_SHARED int aot_find(aot_bundle bundle, const char* name, aot_function* function) {
  const aot_interface* library = aot_library_(bundle);
  if (name == NULL || function == NULL) {
    return aot_fail_(AOT_ERROR_USAGE, "aot_find: a null pointer was given", NULL, NULL, NULL);
  }
  memset(function, 0, sizeof *function);
  if (library == NULL) return aot_refuse_handle_(bundle);
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
  const aot_interface* library = aot_library_(function.bundle);
  if (library == NULL) return aot_refuse_handle_(function.bundle);
  if (function.info == NULL || (args == NULL && count != 0)) {
    return aot_fail_(AOT_ERROR_USAGE, "aot_call: a null pointer was given", NULL, NULL, NULL);
  }
  if (function.info->call(NULL, args, count, &result) == 0) return AOT_OK;
  return aot_raised_(library->core);
}

/* The device of the first tensor, elements of tuples included; -1 where there is none. */
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
  const aot_interface* library = aot_library_(function.bundle);
  if (library == NULL) return aot_refuse_handle_(function.bundle);
  if (function.info == NULL || (args == NULL && count != 0)) {
    return aot_fail_(AOT_ERROR_USAGE, "aot_call_on: a null pointer was given", NULL, NULL, NULL);
  }
  return aot_call_entry_on_(library->core, function.info->call, stream, args, count);
}

AOT_SHARED int aot_set_stream(aot_bundle bundle, int32_t device, void* stream, void** previous) {
  const aot_interface* library = aot_library_(bundle);
  if (library == NULL) return aot_refuse_handle_(bundle);
  if (device < 0) return aot_fail_(AOT_ERROR_USAGE, "aot_set_stream: not a device", NULL, NULL, NULL);
  return library->core->set_stream(device, stream, previous) == 0 ? AOT_OK : aot_raised_(library->core);
}

AOT_SHARED int aot_preload(aot_bundle bundle, const char* function, int32_t device) {
  const aot_interface* library = aot_library_(bundle);
  if (library == NULL) return aot_refuse_handle_(bundle);
  return library->preload(function, device) == 0 ? AOT_OK : aot_raised_(library->core);
}

AOT_SHARED int aot_explain(aot_bundle bundle, const char* function, int32_t major, int32_t minor, const aot_value* args,
                           int32_t count, char* text, size_t room, size_t* needed) {
  const aot_interface* library = aot_library_(bundle);
  if (function == NULL || (args == NULL && count != 0) || (text == NULL && room != 0)) {
    return aot_fail_(AOT_ERROR_USAGE, "aot_explain: a null pointer was given", NULL, NULL, NULL);
  }
  if (library == NULL) return aot_refuse_handle_(bundle);
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
