/* What the stand-in's driver and runtime share: pretended devices, and what was asked of them.
 *
 * One mutex guards everything. While nobody watches (standin_watching) a launch takes no lock and is not checked, so
 * that a benchmark with recording switched off pays a few nanoseconds for it.
 */
#ifndef STANDIN_STATE_H
#define STANDIN_STATE_H

#include <stddef.h>
#include <stdint.h>

/* The driver's and the runtime's error numbers are the same numbers, which is why one enum serves both. */
enum {
    STANDIN_OK = 0,
    STANDIN_INVALID_VALUE = 1,
    STANDIN_OUT_OF_MEMORY = 2,
    STANDIN_NOT_INITIALIZED = 3,
    STANDIN_INVALID_FUNCTION = 98,
    STANDIN_NO_DEVICE = 100,
    STANDIN_INVALID_DEVICE = 101,
    STANDIN_INVALID_IMAGE = 200,
    STANDIN_INVALID_CONTEXT = 201,
    STANDIN_NO_IMAGE_FOR_DEVICE = 209,
    STANDIN_FILE_NOT_FOUND = 301,
    STANDIN_INVALID_HANDLE = 400,
    STANDIN_SYMBOL_NOT_FOUND = 500,
    STANDIN_NOT_SUPPORTED = 801,
    STANDIN_CAPTURE_UNSUPPORTED = 900,
    STANDIN_CAPTURE_INVALIDATED = 901,
    STANDIN_INVALID_CLUSTER = 912
};

enum { STANDIN_MAX_DEVICES = 16 };

/* -- state.c: devices, threads, calls, faults -------------------------------------------------------------- */

typedef struct {
    int major, minor, sm_count;
} standin_device;

void standin_lock(void);
void standin_unlock(void);

void standin_reset(int count, const standin_device *devices, int driver_version);
void standin_clear(void);
void standin_set_recording(int on);
int standin_recording(void);
int standin_driver_version(void);

int standin_device_count(void);
const standin_device *standin_device_at(int index); /* NULL: no such device */
int standin_device_attribute(int *value, int attribute, int device);

/* Real driver functions refuse to work before cuInit; the runtime calls it by itself. */
void standin_initialize(void);
int standin_initialized(void);

typedef struct {
    unsigned epoch;   /* the reset this state belongs to */
    int device;       /* whose context is current; -1: none */
    int last_error;   /* what cudaGetLastError will say */
    int capture_mode; /* this thread's side of cuThreadExchangeStreamCaptureMode */
    int64_t id;       /* as gettid() says, which Python calls the native id */
} standin_thread_state;

standin_thread_state *standin_thread(void);
int standin_current_device(void); /* the runtime's view: 0 where no context is current */
void standin_set_current_device(int device);

/* One per function that can be called; lives in that function and is found by name once it was called. */
typedef struct standin_call {
    const char *name;
    long count;
    struct standin_call *next;
    int listed;
} standin_call;

extern int standin_watching; /* calls are counted or a fault is armed */
int standin_note_call(standin_call *call, int device);
long standin_calls(const char *name);
int standin_fail(const char *name, int code, int device, long after, long times);

/* Calls of that function wait for each other until `count` threads are in it. Half a minute is for those that never come:
 * standin_met says whether all did. */
void standin_meet(const char *name, int count);
int standin_met(void);

static inline int standin_is_watching(void) { return __atomic_load_n(&standin_watching, __ATOMIC_RELAXED); }

/* 0, or the code the call was told to fail with. `device` is evaluated only when somebody watches. */
#define STANDIN_NOTE(call, device) (standin_is_watching() ? standin_note_call((call), (device)) : STANDIN_OK)

uint64_t standin_new_handle(void); /* for events, graphs, streams: unique, never zero, nothing behind it */

/* -- errors.c ------------------------------------------------------------------------------------------------ */

const char *standin_runtime_error_name(int code); /* all three: NULL where the code is unknown */
const char *standin_driver_error_name(int code);
const char *standin_error_text(int code);

/* -- streams.c ------------------------------------------------------------------------------------------------ */

enum { STANDIN_CAPTURE_NONE, STANDIN_CAPTURE_ACTIVE, STANDIN_CAPTURE_BROKEN };
enum { STANDIN_MODE_GLOBAL, STANDIN_MODE_THREAD_LOCAL, STANDIN_MODE_RELAXED };

void standin_add_stream(uint64_t stream, int device);
int standin_stream_device(uint64_t stream); /* the calling thread's device for a stream nobody created here */
int standin_begin_capture(uint64_t stream, int mode);
int standin_end_capture(uint64_t stream);
int standin_capture_status(uint64_t stream);
int standin_refuse_in_capture(void);
void standin_forget_streams(void); /* caller holds the lock */

/* -- library.c ------------------------------------------------------------------------------------------------ */

typedef struct standin_library standin_library;
typedef struct standin_kernel standin_kernel;

typedef struct {
    int64_t thread;
    int32_t device;
    uint64_t size;
} standin_load_record;

int standin_load_library(standin_library **library, const void *code);
int standin_get_kernel(standin_kernel **kernel, standin_library *library, const char *name);
int standin_kernel_count(unsigned *count, const standin_library *library);
int standin_is_library(const standin_library *library);
int standin_is_kernel(const standin_kernel *kernel);
int standin_kernel_runs_on(const standin_kernel *kernel, int device);
const char *standin_kernel_name(const standin_kernel *kernel);
int standin_get_kernel_attribute(int *value, int attribute, const standin_kernel *kernel, int device);
int standin_set_kernel_attribute(standin_kernel *kernel, int attribute, int value, int device);
void standin_mark_ready(standin_kernel *kernel, int device);
void standin_forget_loads(void); /* caller holds the lock */

size_t standin_load_count(void);
int standin_load_at(size_t index, standin_load_record *out);
const char *standin_ready_kernel(int device, size_t index); /* NULL: no more */

/* Kernel attributes, numbered alike in driver and runtime. */
enum {
    STANDIN_KERNEL_MAX_THREADS = 0,
    STANDIN_KERNEL_STATIC_SHARED = 1,
    STANDIN_KERNEL_REGISTERS = 4,
    STANDIN_KERNEL_DYNAMIC_SHARED = 8,
    STANDIN_KERNEL_BIG_CLUSTERS = 14
};

/* -- launch.c ------------------------------------------------------------------------------------------------- */

typedef struct {
    const char *kernel;
    uint64_t stream, shared_memory;
    uint32_t grid[3], block[3], cluster[3];
    int32_t device;
    int32_t early, captured;
    int64_t thread;
} standin_launch_record;

/* cudaLaunchAttribute and CUlaunchAttribute have this layout. */
typedef struct {
    int32_t id;
    char padding[4];
    union {
        char space[64];
        uint32_t cluster[3];
        int32_t allowed;
    } value;
} standin_launch_attribute;

void standin_read_cluster(uint32_t cluster[3], const standin_launch_attribute *attributes, unsigned count);
int standin_is_early(const standin_launch_attribute *attributes, unsigned count);
int standin_launch(standin_kernel *kernel, standin_launch_record *launch);
int standin_blocks_per_sm(int *blocks, const standin_kernel *kernel, int threads, size_t shared_memory);
void standin_forget_launches(void); /* caller holds the lock */

size_t standin_launch_count(void);
int standin_launch_at(size_t index, standin_launch_record *out);

#endif
