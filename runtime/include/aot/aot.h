/* Using a bundle from C: open it, look a kernel up, call it.
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

#include "abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What functions return. Python and C++ raise a class for each, with the same number as its `code`. */
enum {
  AOT_OK = 0,
  /* errors: written by tools/errors.py */
  AOT_ERROR_USAGE = 1,       /* a wrong call or option: a null pointer, an absent file, two that exclude each other */
  AOT_ERROR_ARGUMENT = 2,    /* no variant takes the arguments; the message lists every candidate with the reason */
  AOT_ERROR_BUNDLE = 3,      /* a bundle is incomplete, damaged, or not one at all */
  AOT_ERROR_HOST = 4,        /* a bundle has no code for this CPU */
  AOT_ERROR_VERSION = 5,     /* the bundle, its loader and TVM-FFI do not fit together: one is too old or too new */
  AOT_ERROR_DIGEST = 6,      /* a file is not the one the bundle was built with */
  AOT_ERROR_DEVICE = 7,      /* the bundle holds no code for the device of the call */
  AOT_ERROR_DRIVER = 8,      /* the CUDA driver is missing or refused */
  AOT_ERROR_CUDA = 9,        /* a CUDA call failed while code was loaded or launched */
  AOT_ERROR_CAPTURE = 10,    /* a kernel was first used while its stream was being captured; preload it before */
  AOT_ERROR_TVM_FFI = 11,    /* TVM-FFI is not installed, or its library cannot be found */
  AOT_ERROR_NOT_FOUND = 12,  /* the bundle has no kernel of that name; the message lists those it has */
  AOT_ERROR_OTHER = 13,      /* everything else */
  AOT_ERROR_SIGNATURE = 14,  /* the bundle is unsigned, signed by another key than was given, or not what was signed */
  /* end of errors */
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
  /* A public key of Ed25519, 64 hex digits, or several separated by spaces: a bundle whose manifest.json none of them has
   * signed is refused before anything native is opened. `python -m aot sign --json` prints such a key. NULL: signed or
   * not. A signature does not say which of its signer's bundles is meant: give `name` too. */
  const char* key;
  const char* name; /* the bundle must have this name; NULL: any */
} aot_options;

/* ---- declarations ---- */

/* The version this header was written for. This function stays for ever. */
int aot_get_version(uint32_t* major, uint32_t* minor);

/* The sentence of this thread's last failure, valid until its next one; "" if there was none. */
int aot_last_error(int* code, const char** text);

/* The sentence of this thread's last failure, as aot_last_error gives it. */
static inline const char* aot_error_text(void);

/* `path` is the directory that `python -m aot build` printed. `options` may be NULL. */
int aot_open(const char* path, const aot_options* options, aot_bundle* bundle);

/* A bundle that was linked: give &aot_<name>_interface, which <name>.h declares. */
int aot_attach(const aot_interface* library, aot_bundle* bundle);

/* Name, host, functions and the rest; the structure stays valid for ever. */
int aot_describe(aot_bundle bundle, const aot_interface** library);

/* The function at that index, which is below the `function_count` that aot_describe gives. They are sorted by name. A
 * kernel has one function, or one for each value of its choices: activation__relu. */
int aot_function_at(aot_bundle bundle, uint32_t index, aot_function* function);

/* The function of the kernel of that name, with its choices: "add", "activation__relu". AOT_ERROR_NOT_FOUND if there is
 * none. */
int aot_find(aot_bundle bundle, const char* kernel, aot_function* function);

/* Calls on the stream that is set for the device in this thread (at first, the default stream). */
static inline int aot_call(aot_function function, const aot_value* args, int32_t count);

/* Calls on `stream` of the device on which the first tensor lies. */
static inline int aot_call_on(aot_function function, void* stream, const aot_value* args, int32_t count);

/* How many bytes of scratch memory that call needs: what the argument that names it must have, if no framework that
 * allocates makes the call. Nothing is launched, and nothing need be passed for the memory itself. */
static inline int aot_workspace_size(aot_function function, const aot_value* args, int32_t count, size_t* bytes);

/* Sets the stream for later calls of this thread, of all bundles. `previous` may be NULL. */
int aot_set_stream(aot_bundle bundle, int32_t device, void* stream, void** previous);

/* Loads code now rather than at the first call. `kernel` NULL: of all kernels that have code for the device. Without its
 * choices, a name stands for all of them: "activation". */
int aot_preload(aot_bundle bundle, const char* kernel, int32_t device);

/* What a call would run on a device of that compute capability, without one: lines "[*]arch TAB variant TAB reason". At
 * most `room` bytes are written to `text`, a final zero included; `needed` is the length of the whole. */
int aot_explain(aot_bundle bundle, const char* kernel, int32_t major, int32_t minor, const aot_value* args,
                int32_t count, char* text, size_t room, size_t* needed);

/* Describes memory as a tensor. The shape, and the strides if given, are pointed to, not copied, and must outlive
 * the tensor. `row_major` has room for `ndim` numbers, to be filled; it may be NULL if `strides` is not. */
int aot_make_tensor(aot_tensor* tensor, void* data, int32_t device, aot_dtype dtype, int32_t ndim, int64_t* shape,
                    int64_t* strides, int64_t* row_major);

/* ---- values ---- */

/* An argument that is left out. */
static inline aot_value aot_none(void);

/* A number, for parameters of any integer type. */
static inline aot_value aot_from_int(int64_t integer);

/* Any number but 0 is true. */
static inline aot_value aot_from_bool(int truth);

/* A number, for parameters of any floating-point type. */
static inline aot_value aot_from_float(double number);

/* A device address, or a stream. */
static inline aot_value aot_from_pointer(const void* pointer);

/* NULL: none, as optional parameters take it. */
static inline aot_value aot_from_tensor(const aot_tensor* tensor);

/* `header` and `values` must outlive the call. */
static inline aot_value aot_from_tuple(aot_tuple_header* header, aot_value* values, int64_t size);

/* A data type of AOT_DTYPE_*, with several numbers to an element. */
static inline aot_dtype aot_make_vector_dtype(uint8_t code, uint8_t bits, uint16_t lanes);

/* A data type of AOT_DTYPE_*. */
static inline aot_dtype aot_make_dtype(uint8_t code, uint8_t bits);

/* Data types, for C; C++ has aot::float32 and its like. */
/* dtypes: written by tools/dtypes.py */
#define AOT_BOOLEAN aot_make_vector_dtype(AOT_DTYPE_BOOL, 8, 1)
#define AOT_INT4 aot_make_vector_dtype(AOT_DTYPE_INT, 4, 1)
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
                                                 const int64_t* shape);

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

#ifdef __cplusplus
}
#endif

/* The implementation of what is declared above. There is nothing to link: each program or shared library that includes
 * this header gets one copy of it, and exports none. */
#include "detail/calling.h"
#include "detail/opening.h"
#include "detail/values.h"

#endif /* AOT_AOT_H_ */
