/* The protocol between a bundle and its loaders: layouts and a version number, no functions.
 *
 * Loaders are programs that use aot.h, and the Python package aot_runtime. Both call the entry library of a
 * bundle, and both accept every library whose protocol has the major number that they know.
 *
 * The entry library and the static archive of a bundle each hold one `aot_interface`. Three functions of the
 * entry library stay for ever, whatever else changes:
 *
 *     int aot_abi_version(uint32_t* major, uint32_t* minor);
 *     const aot_interface* aot_abi_interface(void);
 *     aot__protocol() -> int                        a function of TVM-FFI: major * 1000 + minor
 *
 * Protocol 1 has these functions of TVM-FFI beside the public ones:
 *
 *     aot__identity() -> str                        64 hex digits that the builder compiled in
 *     aot__configure(verify: int, directory: str)   see `configure` below
 *     aot__open_support()                           since minor 7: opens what the first call of any kernel needs
 *     aot__preload(function: str, device: int)
 *     aot__explain(function: str, major: int, minor: int, *arguments) -> str
 *     aot__explain_on(function: str, major: int, minor: int, name: str, multiprocessors: int, *arguments) -> str
 *                                                   since minor 2: for a device that has a table, or is near to one
 *     aot__explain_part(function: str, major: int, minor: int, name: str, multiprocessors: int, bandwidth: int, *arguments)
 *                                                   since minor 5: the same with the GB/s of its memory
 *     aot__run_variant(function: str, variant: str, *arguments)
 *                                                   since minor 2: a call that is not chosen but named
 *     aot__describe(code, bits, lanes, alignment, ndim, *shape, *strides) -> Tensor
 *     aot__check(function: str, device: int, *arguments)
 *                                                   since minor 6: raises what a call with such arguments would raise.
 *                                                   Of device -1: if no GPU that the bundle has code for takes them. A
 *                                                   string, and -2**63 as an extent or stride, stand for the unknown
 *
 * Major: a layout or a meaning changed. On a mismatch touch nothing but `major` and `minor`.
 * Minor: something was added at the end of a structure, or a function was added. A reader that knows an older
 * minor uses what it knows. A reader that knows a newer minor must not read the fields that came after the
 * library's.
 *
 * Values and tensors have the layout of TVM-FFI's TVMFFIAny and DLPack's DLTensor, so that neither of their
 * headers is needed here. Pointers to the one may be cast to the other.
 */
#ifndef AOT_ABI_H_
#define AOT_ABI_H_

#include <stddef.h>
#include <stdint.h>

/* Apart from AOT_TABLES_MAJOR, which is private between the entry and the kernel libraries of one bundle. */
#define AOT_PROTOCOL_MAJOR 1
#define AOT_PROTOCOL_MINOR 7

#ifdef __cplusplus
extern "C" {
#endif

/* What a value holds: numbers of TVM-FFI. */
enum {
  AOT_NONE = 0,
  AOT_INT = 1,
  AOT_BOOL = 2,
  AOT_FLOAT = 3,
  AOT_POINTER = 4,
  AOT_TENSOR = 7, /* pointer to an aot_tensor that outlives the call */
  AOT_TUPLE = 71  /* pointer to an aot_tuple_header */
};

typedef struct aot_value {
  int32_t type;
  uint32_t zero;
  union {
    int64_t integer; /* AOT_INT, AOT_BOOL */
    double number;   /* AOT_FLOAT */
    const void* pointer;
  } as;
} aot_value;

/* Numbers of DLPack. */
enum { AOT_DEVICE_CPU = 1, AOT_DEVICE_CUDA = 2 };
enum {
  /* dtypes: written by tools/dtypes.py */
  AOT_DTYPE_INT = 0,
  AOT_DTYPE_UINT = 1,
  AOT_DTYPE_FLOAT = 2,
  AOT_DTYPE_BFLOAT = 4,
  AOT_DTYPE_BOOL = 6,
  AOT_DTYPE_FLOAT8_E4M3FN = 10,
  AOT_DTYPE_FLOAT8_E5M2 = 12,
  AOT_DTYPE_FLOAT8_E8M0FNU = 14,
  AOT_DTYPE_FLOAT6_E2M3FN = 15,
  AOT_DTYPE_FLOAT6_E3M2FN = 16,
  AOT_DTYPE_FLOAT4_E2M1FN = 17,
  /* end of dtypes */
};

typedef struct aot_dtype {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes; /* 1 but for vector types */
} aot_dtype;

typedef struct aot_tensor {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  aot_dtype dtype;
  int64_t* shape;
  int64_t* strides; /* in elements; a bundle refuses NULL where ndim > 0 */
  uint64_t byte_offset;
} aot_tensor;

/* A tuple of values, laid out as a TVM-FFI array object. It may lie on the stack: callees only read it. */
typedef struct aot_tuple_header {
  uint64_t reference_count;
  int32_t type;
  uint32_t zero;
  void (*deleter)(void* self, int flags);
  void* values;
  int64_t size;
  int64_t capacity;
  void (*values_deleter)(void*);
} aot_tuple_header;

/* A function of a bundle. 0, or -1 with an error raised in this thread: see aot_core.take_error. `self` is NULL for a
 * call. From minor 1 on it may be AOT_ASK_WORKSPACE: then nothing is launched, and the result is the number of bytes
 * of scratch memory that the call needs. */
#define AOT_ASK_WORKSPACE ((void*)1)
typedef int (*aot_entry)(void* self, const aot_value* args, int32_t count, aot_value* result);

typedef void (*aot_error_receiver)(void* context, const char* kind, size_t kind_size, const char* text,
                                   size_t text_size);

/* What every call may need, apart from the table of all functions: a static link keeps only the kernels that are
 * called, and that table would keep all. */
typedef struct aot_core {
  uint32_t major;
  uint32_t minor;
  /* The stream that kernels launch on in this thread, for one device. `previous` may be NULL. */
  int (*set_stream)(int32_t device, void* stream, void** previous);
  /* Hands this thread's raised error to `receive`, and clears it. */
  void (*take_error)(void* context, aot_error_receiver receive);
} aot_core;

typedef struct aot_function_info {
  const char* name;      /* fill, activation__relu */
  const char* signature; /* fill(out, value) */
  const char* doc;
  const char* archs; /* what it was built for: "sm_80 sm_90a" */
  aot_entry call;
  uint32_t argument_count;
  uint32_t flags;
} aot_function_info;

typedef struct aot_interface {
  uint32_t major;
  uint32_t minor;
  const char* name;  /* of the bundle */
  const char* host;  /* x86_64-linux-gnu */
  const char* build; /* differs between two builds that differ in code */
  const aot_core* core;
  const aot_function_info* functions; /* sorted by name */
  uint32_t function_count;
  uint32_t function_size; /* of one entry of `functions`: a newer minor may have longer ones */
  /* Each returns 0, or -1 with an error raised. */
  /* `verify`: compare digests before code is opened. It stays on once one loader of the process asked for it. It is an
   * error if code was opened without a check before.
   * `directory`: the absolute path of the folder that holds the entry library, and beside it the kernels. A loader
   * that opened the entry library through a descriptor has to give it. NULL or "": as given before, or else where
   * the dynamic linker found the entry library. */
  int (*configure)(int32_t verify, const char* directory);
  int (*preload)(const char* function, int32_t device); /* NULL: all that have code for the device */
  /* Writes lines "[*]arch TAB variant TAB reason", as much as `room` holds and a final zero; `needed` is the whole
   * length without it. Touches no device. */
  int (*explain)(const char* function, int32_t major, int32_t minor, const aot_value* args, int32_t count, char* text,
                 size_t room, size_t* needed);
} aot_interface;

#ifdef __cplusplus
}
#endif

#endif /* AOT_ABI_H_ */
