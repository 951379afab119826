/* What lib<name>_torch.so knows of a bundle's kernels. The builder generates one `aot_torch_this_bundle` per bundle, and
 * two functions per kernel, since torch calls them without saying which operator is meant. */
#ifndef AOT_TORCH_TABLE_H_
#define AOT_TORCH_TABLE_H_

#include <aot/abi.h>
#include <stdint.h>

enum { AOT_TORCH_MAX_ARGUMENTS = 64, AOT_TORCH_MAX_RANK = 64, AOT_TORCH_MAX_DEPTH = 32 };

/* What an input is in the schema of an operator. */
typedef enum { AOT_TORCH_TENSOR, AOT_TORCH_OPTIONAL_TENSOR, AOT_TORCH_FLOAT, AOT_TORCH_INT, AOT_TORCH_BOOL } aot_torch_kind;

/* The dtypes of declarations: their name there, torch's function that gives its number, DLPack's code, bits and lanes. */
/* dtypes: written by tools/dtypes.py */
#define AOT_TORCH_DTYPES(X) \
  X(bool, "aoti_torch_dtype_bool", AOT_DTYPE_BOOL, 8, 1) \
  X(i8, "aoti_torch_dtype_int8", AOT_DTYPE_INT, 8, 1) \
  X(u8, "aoti_torch_dtype_uint8", AOT_DTYPE_UINT, 8, 1) \
  X(i16, "aoti_torch_dtype_int16", AOT_DTYPE_INT, 16, 1) \
  X(u16, "aoti_torch_dtype_uint16", AOT_DTYPE_UINT, 16, 1) \
  X(i32, "aoti_torch_dtype_int32", AOT_DTYPE_INT, 32, 1) \
  X(u32, "aoti_torch_dtype_uint32", AOT_DTYPE_UINT, 32, 1) \
  X(i64, "aoti_torch_dtype_int64", AOT_DTYPE_INT, 64, 1) \
  X(u64, "aoti_torch_dtype_uint64", AOT_DTYPE_UINT, 64, 1) \
  X(f16, "aoti_torch_dtype_float16", AOT_DTYPE_FLOAT, 16, 1) \
  X(bf16, "aoti_torch_dtype_bfloat16", AOT_DTYPE_BFLOAT, 16, 1) \
  X(f32, "aoti_torch_dtype_float32", AOT_DTYPE_FLOAT, 32, 1) \
  X(f64, "aoti_torch_dtype_float64", AOT_DTYPE_FLOAT, 64, 1) \
  X(f8e4m3, "aoti_torch_dtype_float8_e4m3fn", AOT_DTYPE_FLOAT8_E4M3FN, 8, 1) \
  X(f8e5m2, "aoti_torch_dtype_float8_e5m2", AOT_DTYPE_FLOAT8_E5M2, 8, 1) \
  X(f8e8m0, "torch_dtype_float8_e8m0fnu", AOT_DTYPE_FLOAT8_E8M0FNU, 8, 1) \
  X(f4e2m1x2, "torch_dtype_float4_e2m1fn_x2", AOT_DTYPE_FLOAT4_E2M1FN, 4, 2)
/* end of dtypes */

#define AOT_TORCH_ENUMERATOR_(name, function, code, bits, lanes) AOT_TORCH_DTYPE_##name,
enum { AOT_TORCH_DTYPES(AOT_TORCH_ENUMERATOR_) AOT_TORCH_DTYPE_COUNT };

/* One step of computing the shape of an output. Steps work on a stack of numbers. */
typedef enum {
  AOT_TORCH_NUMBER,   /* pushes `number` */
  AOT_TORCH_SCALAR,   /* pushes input `input`, an int or a bool */
  AOT_TORCH_EXTENT,   /* pushes extent `number` of input `input`; negative numbers count from the end */
  AOT_TORCH_ADD,      /* this and the next six replace the last two numbers by one */
  AOT_TORCH_SUBTRACT,
  AOT_TORCH_MULTIPLY,
  AOT_TORCH_DIVIDE,   /* towards minus infinity, as Python's // */
  AOT_TORCH_REMAINDER, /* as Python's % */
  AOT_TORCH_MIN,
  AOT_TORCH_MAX,
  AOT_TORCH_APPEND,   /* pops a number: the next extent of the shape */
  AOT_TORCH_SPREAD,   /* appends all extents of input `input` */
  AOT_TORCH_SPREAD_TO, /* appends its extents before `number`, as x.shape[:number] */
  AOT_TORCH_SPREAD_FROM /* appends its extents from `number` on, as x.shape[number:] */
} aot_torch_operation;

typedef struct aot_torch_step {
  aot_torch_operation operation;
  int32_t input;
  int64_t number;
} aot_torch_step;

typedef struct aot_torch_input {
  const char* name;
  aot_torch_kind kind;
} aot_torch_input;

typedef struct aot_torch_output {
  const char* name;
  const aot_torch_step* shape;
  uint32_t step_count;
  int32_t dtype_of; /* the input whose dtype the output has; -1: the output has `dtype` */
  int32_t dtype;    /* AOT_TORCH_DTYPE_* */
  int32_t optional; /* whether a caller of the form that writes may pass None */
} aot_torch_output;

typedef void (*aot_torch_boxed)(uint64_t* stack, uint64_t inputs, uint64_t outputs);

#define AOT_TORCH_WORKSPACE (INT32_MIN + 1) /* scratch memory, which is allocated for the call */

typedef struct aot_torch_operator {
  const char* name;
  const char* schema;     /* allocates: rmsnorm(Tensor x, Tensor weight) -> Tensor */
  const char* out_schema; /* writes: rmsnorm.out(Tensor x, Tensor weight, *, Tensor(a0!) out) -> () */
  aot_torch_boxed allocating;
  aot_torch_boxed writing;
  const char* const* functions; /* of the entry library: one, or one per combination of choices that was built */
  const aot_function_info** found; /* the same, filled when the bundle is opened */
  uint32_t function_count;
  const char* parameters;  /* of these functions: "(x, weight, out, eps)" */
  const int32_t* order;    /* per parameter of these functions: the input's number, -1 minus the output's, or
                            * AOT_TORCH_WORKSPACE */
  uint32_t parameter_count;
  const aot_torch_input* inputs;
  uint32_t input_count;
  const char* const* choices; /* names; their values come after the inputs */
  uint32_t choice_count;
  const aot_torch_output* outputs; /* those of `writing` come last */
  uint32_t output_count;
  uint32_t device_of; /* the input on whose device outputs are allocated */
} aot_torch_operator;

typedef struct aot_torch_bundle {
  const char* name;
  const char* key; /* CUDA: the dispatch key that the operators are registered for */
  const char* identity; /* a digest of these tables, for `python -m aot verify`: 64 hexadecimal digits */
  const aot_torch_operator* operators;
  uint32_t operator_count;
} aot_torch_bundle;

extern const aot_torch_bundle aot_torch_this_bundle;

/* What the generated functions call. */
void aot_torch_allocate(const aot_torch_operator* operator_, uint64_t* stack);
void aot_torch_write(const aot_torch_operator* operator_, uint64_t* stack);

/* Registers the operators; the library's constructor calls it. The sentence that says why not is kept. */
void aot_torch_register(void);
const char* aot_torch_registration_error(void); /* NULL: the operators are registered */

/* Opens the bundle in that directory now, for all operators. `manifest_sha256` is the digest of its manifest, 64
 * hexadecimal digits: then any other bundle is refused, by later calls of operators too. NULL: any bundle that is whole,
 * which operators also open by themselves when one is first called, in the directory that this library lies in. Returns
 * NULL, or a sentence that is valid until this thread's next failure. */
const char* aot_torch_open_at(const char* path, const char* manifest_sha256);

#endif /* AOT_TORCH_TABLE_H_ */
