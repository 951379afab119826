/* The tables a bundle is made of.
 *
 * A kernel library (one kernel, one architecture) exports one `aot_kernel_library_t` named
 * `aot_kernel_library`: its variants, what each requires of the arguments, and a decision tree over
 * those requirements. The entry library holds one `aot_function_t` per public function. The builder
 * writes both as plain C; nothing here is parsed at run time.
 *
 * Every requirement has one form: an integer read off the arguments (the subject) lies in an
 * interval. Data types, ranks, extents, strides, alignment, `None` and guards all reduce to it, so
 * that matching, the decision tree and the reasons given for a refusal need one mechanism.
 */
#ifndef AOT_TABLES_H_
#define AOT_TABLES_H_

#include <stdint.h>

#include <dlpack/dlpack.h>
#include <tvm/ffi/c_api.h>

/* Major: layout or meaning changed, the entry library refuses the kernel library.
 * Minor: something was added at the end; older readers may still use the rest. */
#define AOT_TABLES_MAJOR 3
#define AOT_TABLES_MINOR 4 /* 1: constants; 2: tunables; 3: optional and single tensors; 4: plain_roots */

#define AOT_MAX_ARGUMENTS 64 /* of one call, elements of tuples included */
#define AOT_MAX_DEVICES 64

/* What a subject yields when the arguments do not have it (no such dimension, not a tensor, an
 * overflow). No interval contains it. */
#define AOT_MISSING INT64_MIN

/* Kinds of argument, ordered so that what a compiled entry accepts is always an interval:
 * float: [FLOAT, INT]; int and bool: [BOOL, INT]; pointer and stream: [INT, HANDLE]. */
enum {
  AOT_KIND_FLOAT = 1,
  AOT_KIND_BOOL = 2,
  AOT_KIND_INT = 3,
  AOT_KIND_NONE = 4,
  AOT_KIND_HANDLE = 5,
  AOT_KIND_TENSOR = 6,
  AOT_KIND_TUPLE = 7,
  AOT_KIND_OTHER = 8,
  /* No entry may see what follows. */
  AOT_KIND_BARE_TENSOR = 9, /* without shape or strides */
  AOT_KIND_NULL_TENSOR = 10 /* with elements, and no address */
};

enum {
  AOT_SUBJECT_KIND = 1,          /* kind of the argument */
  AOT_SUBJECT_DTYPE = 2,         /* bits << 32 | lanes << 8 | code */
  AOT_SUBJECT_NDIM = 3,
  AOT_SUBJECT_DEVICE_TYPE = 4,   /* DLDeviceType */
  AOT_SUBJECT_DEVICE_INDEX = 5,  /* minus the device of the call: 0 if they agree */
  AOT_SUBJECT_EXTENT = 6,        /* shape[dim] */
  AOT_SUBJECT_EXTENT_MODULO = 7, /* shape[dim] % parameter */
  AOT_SUBJECT_STRIDE_OFF = 8,    /* strides[dim] - parameter; 0 if the extent is 1 */
  AOT_SUBJECT_STRIDE_MODULO = 9, /* strides[dim] % parameter; 0 if the extent is 1 */
  AOT_SUBJECT_EXTENT_OFF = 10,   /* shape[dim] - other */
  AOT_SUBJECT_STRIDE_OFF_BY = 11, /* strides[dim] - other; 0 if the extent is 1 */
  AOT_SUBJECT_ADDRESS_MODULO = 12, /* (data + byte_offset) % parameter */
  AOT_SUBJECT_INTEGER = 13,      /* value of an int or bool scalar */
  AOT_SUBJECT_INTEGER_MODULO = 14,
  AOT_SUBJECT_FLOAT = 15,        /* order-preserving integer image of a float scalar */
  AOT_SUBJECT_LENGTH = 16,       /* of a tuple */
  AOT_SUBJECT_STRIDE = 17,       /* strides[dim], whatever the extent */
  AOT_SUBJECT_PROGRAM = 18,      /* value of an expression: `parameter` is its first step */
  AOT_SUBJECT_CONDITION = 19,    /* likewise, of one that is true (1) or false (0) */
  AOT_SUBJECT_OVERLAP = 20       /* of the `dim` regions from `parameter` on: 0 if outputs lie apart; aot_overlap.h */
};

enum {
  AOT_STEP_END = 0,
  AOT_STEP_CONSTANT = 1, /* push value */
  AOT_STEP_EXTENT = 2,   /* push shape[dim] of slot */
  AOT_STEP_STRIDE = 3,
  AOT_STEP_INTEGER = 4, /* push the scalar in slot */
  AOT_STEP_ADD = 5,
  AOT_STEP_SUBTRACT = 6,
  AOT_STEP_MULTIPLY = 7,
  AOT_STEP_FLOOR_DIVIDE = 8,
  AOT_STEP_MODULO = 9,
  AOT_STEP_MINIMUM = 10,
  AOT_STEP_MAXIMUM = 11,
  AOT_STEP_LESS = 12,
  AOT_STEP_LESS_EQUAL = 13,
  AOT_STEP_EQUAL = 14,
  AOT_STEP_NOT_EQUAL = 15,
  AOT_STEP_AND = 16,
  AOT_STEP_OR = 17,
  AOT_STEP_NOT = 18
};
#define AOT_MAX_PROGRAM_DEPTH 16

typedef struct {
  uint8_t operation; /* AOT_STEP_* */
  uint8_t slot;
  uint8_t dim;
  uint8_t reserved[5];
  int64_t value;
} aot_step_t;

typedef struct {
  uint8_t operation; /* AOT_SUBJECT_* */
  uint8_t slot;
  uint8_t dim;
  uint8_t other_is_stride; /* the second operand: a stride rather than an extent */
  uint8_t other_slot;
  uint8_t other_dim;
  uint8_t optional; /* of an argument that may be None: see aot_subject_value; since minor 3 */
  uint8_t reserved;
  int64_t parameter;
  const char* label;       /* how messages name it: `x.shape[1]` */
  const char* other_label; /* of the second operand, if there is one */
} aot_subject_t;

/* A tensor whose memory a call touches. Outputs come first: each must lie apart from all other regions. */
typedef struct {
  uint8_t slot;
  uint8_t is_output;
  uint8_t reserved[6];
  uint64_t may_be; /* bit i: may be the very tensor that is output i, which then works in place */
  const char* label;
} aot_region_t;

typedef struct {
  uint32_t subject;
  uint32_t reserved;
  int64_t low; /* both ends included */
  int64_t high;
} aot_requirement_t;

/* One question of the decision tree, with `count` branches from `first` on. A branch leads to a child:
 * >= 0 a node, otherwise ~variant, or AOT_NO_VARIANT.
 *
 * If variants want single values (a dtype, a fixed extent), `multiplier` is not 0, and the branch at
 * (value * multiplier) >> shift is the only one that may hold the value. If they want ranges it is 0,
 * the branches are sorted, and the last one not above the value follows. `otherwise` is the child if
 * neither finds any. */
#define AOT_NO_VARIANT INT32_MIN
typedef struct {
  uint32_t subject;
  uint32_t count;
  uint32_t first; /* in the library's `branches` */
  uint32_t shift;
  uint64_t multiplier;
  int32_t otherwise;
  uint32_t reserved;
} aot_node_t;

typedef struct {
  int64_t value;
  int32_t child;
  uint32_t reserved;
} aot_branch_t;

/* An argument or an element of a tuple, which the tables call by its slot. Slots 0..argument_count-1 are the arguments
 * themselves. */
typedef struct {
  int16_t parent; /* slot of the tuple, or -1 */
  uint16_t index;
} aot_slot_t;

/* Where an argument of the compiled entry comes from: a public argument, the device, the variant's workspace, or the
 * declaration. */
enum {
  AOT_SOURCE_MULTIPROCESSORS = 0x80,
  AOT_SOURCE_ACTIVE_CLUSTERS = 0x81,
  AOT_SOURCE_WORKSPACE = 0x82,
  AOT_SOURCE_CONSTANT = 0x90 /* and above: the library's `constants`, counted from here */
};

/* Scratch memory that a variant needs. */
typedef struct {
  const char* name;  /* of the public argument by which a caller may pass it */
  uint32_t subject;  /* how many bytes, in the library's `subjects` */
  uint8_t argument;  /* public argument: None, or bytes */
  uint8_t zeroed;    /* whether the kernel finds zeros in it */
  DLDataType dtype;  /* what the compiled entry takes it for */
} aot_workspace_t;

/* An argument that the declaration fixes: None or a number, as TVM-FFI passes it. Or, since minor 3, a tensor that
 * dispatch makes, of type kTVMFFIDLTensorPtr. With a rank: the public argument, or a tensor without elements if that is
 * None. Without a rank: the public argument as a batch of one, with one more dimension in front. */
#define AOT_RANK_SHIFT 48
typedef struct {
  int32_t type_index;
  uint32_t argument; /* of such a tensor */
  int64_t bits; /* of a float: those of a double; of an optional tensor: its dtype as of AOT_SUBJECT_DTYPE, and its rank */
} aot_constant_t;
#define AOT_MAX_MADE 8 /* tensors that dispatch makes for one variant, and their dimensions */

enum {
  AOT_STREAM_FROM_ENVIRONMENT = -1,
  AOT_STREAM_DEFAULT = -2 /* stream 0, by the author's wish */
};

/* What changes while a process runs; read without a lock. */
typedef struct {
  uint64_t loaded_on;       /* bit per device */
  int32_t* active_clusters; /* per device, if a source asks for them; 0: not asked yet */
} aot_variant_state_t;

typedef struct {
  const char* name;
  TVMFFISafeCallType entry;
  int32_t (*load_libraries)(void** libraries);
  int32_t (*load_kernels)(void** libraries, int32_t device);
  void** libraries;             /* filled by load_libraries */
  aot_variant_state_t* state;
  const uint32_t* requirements;
  uint32_t requirement_count;
  uint32_t first_region;        /* of what must lie apart, in the library's `regions` */
  uint32_t region_count;
  int32_t stream_argument;      /* public argument that holds the stream, or AOT_STREAM_* */
  const uint8_t* sources;       /* one per argument of the entry; NULL: the public ones, in order */
  uint32_t source_count;
  uint32_t cluster[3];          /* launch shape, for AOT_SOURCE_ACTIVE_CLUSTERS */
  uint32_t block[3];
  uint32_t dynamic_shared_memory;
  void** first_kernel;          /* handle of the kernel launched, valid once loaded */
  const aot_workspace_t* workspace; /* NULL: it needs none */
} aot_variant_t;

/* The variants that one public function chooses from: those that share the caller's named choices. */
typedef struct {
  const char* name;
  int32_t root; /* a child as in aot_node_t */
  uint32_t variant_count;
  const aot_variant_t* variants;
  const aot_slot_t* slots;
  uint32_t slot_count;
  uint32_t argument_count;
} aot_group_t;

/* The integers by which measured tables tell the calls of a group apart: `count` numbers of the library's `subjects` for
 * each variant, since an extent may be another dimension in another variant. */
typedef struct {
  const uint32_t* subjects;
  uint32_t count; /* 0: the group is not tuned */
} aot_tunable_t;

/* A function of the support library, and where its address goes. */
typedef struct {
  const char* name;
  void** address;
} aot_import_t;

typedef struct {
  uint32_t major;
  uint32_t minor;
  const char* kernel;
  const char* arch;
  const aot_group_t* groups;
  uint32_t group_count;
  uint32_t import_count;
  const aot_import_t* imports; /* what the support library provides */
  const aot_subject_t* subjects;
  const aot_requirement_t* requirements;
  const aot_node_t* nodes;
  const aot_branch_t* branches;
  const aot_step_t* steps;
  const aot_region_t* regions;
  const aot_constant_t* constants; /* since minor 1 */
  const aot_tunable_t* tunables;   /* since minor 2: one per group */
  const int32_t* plain_roots;      /* since minor 4: one per group, of the tree that asks for no preferences */
} aot_kernel_library_t;

#endif /* AOT_TABLES_H_ */
