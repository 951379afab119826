/* libcudart.so.12 and .so.13: every function that libcuda_dialect_runtime_static.a leaves undefined, and a few more.
 *
 * "Device memory" is host memory, so that copies are real; events and streams are handles; nothing takes time.
 */
#define _GNU_SOURCE
#include "state.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    unsigned x, y, z;
} extent3;

typedef struct {
    extent3 grid, block;
    size_t shared_memory;
    void *stream;
    const standin_launch_attribute *attributes;
    unsigned attribute_count;
} runtime_launch_config;

/* Every failure is also what cudaGetLastError reports next. */
static int finish(int code) {
    if (code) standin_thread()->last_error = code;
    return code;
}

static int check_machine(void) {
    if (standin_device_count() == 0) return STANDIN_NO_DEVICE;
    standin_initialize();
    return STANDIN_OK;
}

/* Counts the call; returns from the caller where a failure was ordered or there is no device at all. */
#define ENTER_FOR(device)                                      \
    do {                                                       \
        static standin_call call_site = {.name = __func__};    \
        int refused = STANDIN_NOTE(&call_site, (device));      \
        if (!refused) refused = check_machine();               \
        if (refused) return finish(refused);                   \
    } while (0)

#define ENTER() ENTER_FOR(standin_current_device())

/* For functions that work on the device: like the real runtime they make its context current. */
#define ENTER_CONTEXT()                                        \
    do {                                                       \
        ENTER();                                               \
        standin_set_current_device(standin_current_device());  \
    } while (0)

#define ENTER_UNSAFE_IN_CAPTURE()                              \
    do {                                                       \
        ENTER_CONTEXT();                                       \
        int captured = standin_refuse_in_capture();            \
        if (captured) return finish(captured);                 \
    } while (0)

static uint64_t number(const void *handle) { return (uint64_t)(uintptr_t)handle; }

static int give_handle(void **handle) {
    if (!handle) return finish(STANDIN_INVALID_VALUE);
    *handle = (void *)(uintptr_t)standin_new_handle();
    return STANDIN_OK;
}

static int check_handle(const void *handle) { return finish(handle ? STANDIN_OK : STANDIN_INVALID_HANDLE); }

/* -- errors and versions: work without a device -- */

#define COUNT_ONLY()                                           \
    do {                                                       \
        static standin_call call_site = {.name = __func__};    \
        (void)STANDIN_NOTE(&call_site, -1);                    \
    } while (0)

int cudaGetLastError(void) {
    COUNT_ONLY();
    standin_thread_state *thread = standin_thread();
    int code = thread->last_error;
    thread->last_error = STANDIN_OK;
    return code;
}

int cudaPeekAtLastError(void) {
    COUNT_ONLY();
    return standin_thread()->last_error;
}

const char *cudaGetErrorName(int code) {
    COUNT_ONLY();
    const char *name = standin_runtime_error_name(code);
    return name ? name : "unrecognized error code";
}

const char *cudaGetErrorString(int code) {
    COUNT_ONLY();
    const char *text = standin_error_text(code);
    return text ? text : "unrecognized error code";
}

int cudaDriverGetVersion(int *version) {
    COUNT_ONLY();
    if (!version) return finish(STANDIN_INVALID_VALUE);
    *version = standin_driver_version();
    return STANDIN_OK;
}

int cudaRuntimeGetVersion(int *version) {
    COUNT_ONLY();
    if (!version) return finish(STANDIN_INVALID_VALUE);
    *version = STANDIN_RUNTIME_VERSION;
    return STANDIN_OK;
}

/* -- devices -- */

int cudaGetDeviceCount(int *count) {
    if (count) *count = standin_device_count();
    ENTER();
    return finish(count ? STANDIN_OK : STANDIN_INVALID_VALUE);
}

int cudaGetDevice(int *device) {
    ENTER();
    if (!device) return finish(STANDIN_INVALID_VALUE);
    *device = standin_current_device();
    return STANDIN_OK;
}

int cudaSetDevice(int device) {
    ENTER_FOR(device);
    if (!standin_device_at(device)) return finish(STANDIN_INVALID_DEVICE);
    standin_set_current_device(device);
    return STANDIN_OK;
}

int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    ENTER_FOR(device);
    return finish(standin_device_attribute(value, attribute, device));
}

int cudaDeviceSynchronize(void) {
    ENTER_UNSAFE_IN_CAPTURE();
    return STANDIN_OK;
}

/* The structure differs between runtime 12 and 13, and nothing in this project asks for it. */
int cudaGetDeviceProperties(void *properties, int device) {
    ENTER_FOR(device);
    (void)properties;
    return finish(STANDIN_NOT_SUPPORTED);
}

int cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version, unsigned long long flags,
                                     int *status) {
    typedef int (*lookup)(const char *, void **, int, uint64_t, int *);
    ENTER();
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    lookup get_proc_address = driver ? (lookup)dlsym(driver, "cuGetProcAddress_v2") : NULL;
    if (!get_proc_address) return finish(STANDIN_NOT_INITIALIZED);
    return finish(get_proc_address(symbol, function, (int)version, flags, status));
}

/* -- libraries and kernels -- */

int cudaLibraryLoadData(standin_library **library, const void *code, void *jit_options, void *jit_values,
                        unsigned jit_count, void *options, void *values, unsigned count) {
    ENTER();
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return finish(standin_load_library(library, code));
}

int cudaLibraryLoadFromFile(standin_library **library, const char *path, void *jit_options, void *jit_values,
                            unsigned jit_count, void *options, void *values, unsigned count) {
    ENTER();
    (void)library, (void)path, (void)jit_options, (void)jit_values, (void)jit_count;
    (void)options, (void)values, (void)count;
    return finish(STANDIN_FILE_NOT_FOUND);
}

int cudaLibraryUnload(standin_library *library) {
    ENTER();
    return finish(standin_is_library(library) ? STANDIN_OK : STANDIN_INVALID_HANDLE);
}

int cudaLibraryGetKernel(standin_kernel **kernel, standin_library *library, const char *name) {
    ENTER();
    return finish(standin_get_kernel(kernel, library, name));
}

int cudaLibraryGetKernelCount(unsigned *count, const standin_library *library) {
    ENTER();
    return finish(standin_kernel_count(count, library));
}

static int no_such_symbol(void) { return finish(STANDIN_SYMBOL_NOT_FOUND); }

int cudaLibraryGetGlobal(void **address, size_t *bytes, const standin_library *library, const char *name) {
    ENTER();
    (void)address, (void)bytes, (void)library, (void)name;
    return no_such_symbol();
}

int cudaLibraryGetManaged(void **address, size_t *bytes, const standin_library *library, const char *name) {
    ENTER();
    (void)address, (void)bytes, (void)library, (void)name;
    return no_such_symbol();
}

int cudaLibraryGetUnifiedFunction(void **function, const standin_library *library, const char *name) {
    ENTER();
    (void)function, (void)library, (void)name;
    return no_such_symbol();
}

int cudaKernelSetAttributeForDevice(standin_kernel *kernel, int attribute, int value, int device) {
    ENTER_FOR(device);
    return finish(standin_set_kernel_attribute(kernel, attribute, value, device));
}

int cudaFuncSetAttribute(standin_kernel *kernel, int attribute, int value) {
    ENTER_CONTEXT();
    return finish(standin_set_kernel_attribute(kernel, attribute, value, standin_current_device()));
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const standin_kernel *kernel, int threads,
                                                  size_t shared_memory) {
    ENTER_CONTEXT();
    return finish(standin_blocks_per_sm(blocks, kernel, threads, shared_memory));
}

int cudaLaunchKernelExC(const runtime_launch_config *config, standin_kernel *kernel, void **arguments) {
    (void)arguments;
    if (!standin_is_watching() && standin_is_kernel(kernel)) return STANDIN_OK;
    ENTER_CONTEXT();
    if (!config) return finish(STANDIN_INVALID_VALUE);
    if (!standin_is_kernel(kernel)) return finish(STANDIN_INVALID_FUNCTION);
    standin_launch_record launch = {
        .stream = number(config->stream),
        .shared_memory = config->shared_memory,
        .grid = {config->grid.x, config->grid.y, config->grid.z},
        .block = {config->block.x, config->block.y, config->block.z},
        .device = standin_current_device(),
        .early = standin_is_early(config->attributes, config->attribute_count),
    };
    standin_read_cluster(launch.cluster, config->attributes, config->attribute_count);
    return finish(standin_launch(kernel, &launch));
}

/* -- memory -- */

static int allocate(void **address, size_t size) {
    if (!address) return finish(STANDIN_INVALID_VALUE);
    return finish(posix_memalign(address, 256, size ? size : 1) == 0 ? STANDIN_OK : STANDIN_OUT_OF_MEMORY);
}

static int copy(void *to, const void *from, size_t size) {
    memmove(to, from, size);
    return STANDIN_OK;
}

static int fill(void *address, int value, size_t size) {
    memset(address, value, size);
    return STANDIN_OK;
}

int cudaMalloc(void **address, size_t size) {
    ENTER_UNSAFE_IN_CAPTURE();
    return allocate(address, size);
}

int cudaMallocHost(void **address, size_t size) {
    ENTER_UNSAFE_IN_CAPTURE();
    return allocate(address, size);
}

int cudaMallocManaged(void **address, size_t size, unsigned flags) {
    ENTER_UNSAFE_IN_CAPTURE();
    (void)flags;
    return allocate(address, size);
}

int cudaMallocAsync(void **address, size_t size, void *stream) {
    ENTER_CONTEXT();
    (void)stream;
    return allocate(address, size);
}

int cudaFree(void *address) {
    ENTER_UNSAFE_IN_CAPTURE();
    free(address);
    return STANDIN_OK;
}

int cudaFreeHost(void *address) {
    ENTER_UNSAFE_IN_CAPTURE();
    free(address);
    return STANDIN_OK;
}

int cudaFreeAsync(void *address, void *stream) {
    ENTER_CONTEXT();
    (void)stream;
    free(address);
    return STANDIN_OK;
}

int cudaMemcpy(void *to, const void *from, size_t size, int kind) {
    ENTER_UNSAFE_IN_CAPTURE();
    (void)kind;
    return copy(to, from, size);
}

int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
    ENTER_CONTEXT();
    (void)kind, (void)stream;
    return copy(to, from, size);
}

int cudaMemset(void *address, int value, size_t size) {
    ENTER_UNSAFE_IN_CAPTURE();
    return fill(address, value, size);
}

int cudaMemsetAsync(void *address, int value, size_t size, void *stream) {
    ENTER_CONTEXT();
    (void)stream;
    return fill(address, value, size);
}

int cudaMemcpy3D(const void *parameters) {
    ENTER();
    (void)parameters;
    return finish(STANDIN_NOT_SUPPORTED);
}

int cudaMemcpy3DAsync(const void *parameters, void *stream) {
    ENTER();
    (void)parameters, (void)stream;
    return finish(STANDIN_NOT_SUPPORTED);
}

/* -- streams -- */

static int create_stream(void **stream) {
    int code = give_handle(stream);
    if (!code) standin_add_stream(number(*stream), standin_current_device());
    return code;
}

int cudaStreamCreate(void **stream) {
    ENTER_CONTEXT();
    return create_stream(stream);
}

int cudaStreamCreateWithFlags(void **stream, unsigned flags) {
    ENTER_CONTEXT();
    (void)flags;
    return create_stream(stream);
}

int cudaStreamDestroy(void *stream) {
    ENTER();
    return check_handle(stream);
}

int cudaStreamSynchronize(void *stream) {
    ENTER_CONTEXT();
    int captured = standin_capture_status(number(stream)) != STANDIN_CAPTURE_NONE;
    return finish(captured ? STANDIN_CAPTURE_UNSUPPORTED : STANDIN_OK);
}

int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) {
    ENTER_CONTEXT();
    (void)stream, (void)flags;
    return check_handle(event);
}

int cudaStreamAddCallback(void *stream, void (*callback)(void *, int, void *), void *data, unsigned flags) {
    ENTER_CONTEXT();
    if (!callback || flags != 0) return finish(STANDIN_INVALID_VALUE);
    callback(stream, STANDIN_OK, data);
    return STANDIN_OK;
}

int cudaStreamIsCapturing(void *stream, int *status) {
    ENTER_CONTEXT();
    if (!status) return finish(STANDIN_INVALID_VALUE);
    *status = standin_capture_status(number(stream));
    return STANDIN_OK;
}

int cudaStreamBeginCapture(void *stream, int mode) {
    ENTER_CONTEXT();
    return finish(standin_begin_capture(number(stream), mode));
}

int cudaStreamEndCapture(void *stream, void **graph) {
    ENTER_CONTEXT();
    int code = standin_end_capture(number(stream));
    return code ? finish(code) : give_handle(graph);
}

/* -- events -- */

int cudaEventCreate(void **event) {
    ENTER_CONTEXT();
    return give_handle(event);
}

int cudaEventCreateWithFlags(void **event, unsigned flags) {
    ENTER_CONTEXT();
    (void)flags;
    return give_handle(event);
}

int cudaEventDestroy(void *event) {
    ENTER();
    return check_handle(event);
}

int cudaEventElapsedTime(float *milliseconds, void *start, void *end) {
    ENTER();
    (void)start, (void)end;
    if (!milliseconds) return finish(STANDIN_INVALID_VALUE);
    *milliseconds = 0;
    return STANDIN_OK;
}

int cudaEventQuery(void *event) {
    ENTER();
    return check_handle(event);
}

int cudaEventRecord(void *event, void *stream) {
    ENTER_CONTEXT();
    (void)stream;
    return check_handle(event);
}

int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags) {
    ENTER_CONTEXT();
    (void)stream, (void)flags;
    return check_handle(event);
}

int cudaEventSynchronize(void *event) {
    ENTER();
    return check_handle(event);
}

/* -- graphs: handles; a launched graph launches nothing -- */

int cudaGraphCreate(void **graph, unsigned flags) {
    ENTER();
    (void)flags;
    return give_handle(graph);
}

int cudaGraphDestroy(void *graph) {
    ENTER();
    return check_handle(graph);
}

int cudaGraphInstantiate(void **executable, void *graph, unsigned long long flags) {
    ENTER_CONTEXT();
    (void)flags;
    return graph ? give_handle(executable) : check_handle(graph);
}

int cudaGraphLaunch(void *executable, void *stream) {
    ENTER_CONTEXT();
    (void)stream;
    return check_handle(executable);
}

int cudaGraphExecDestroy(void *executable) {
    ENTER();
    return check_handle(executable);
}

int cudaGraphAddKernelNode(void **node, void *graph, const void *dependencies, size_t count, const void *parameters) {
    ENTER();
    (void)node, (void)graph, (void)dependencies, (void)count, (void)parameters;
    return finish(STANDIN_NOT_SUPPORTED);
}

int cudaGraphKernelNodeGetAttribute(void *node, int attribute, void *value) {
    ENTER();
    (void)node, (void)attribute, (void)value;
    return finish(STANDIN_NOT_SUPPORTED);
}

int cudaGraphKernelNodeSetAttribute(void *node, int attribute, const void *value) {
    ENTER();
    (void)node, (void)attribute, (void)value;
    return finish(STANDIN_NOT_SUPPORTED);
}

/* -- profiler -- */

int cudaProfilerStart(void) {
    ENTER();
    return STANDIN_OK;
}

int cudaProfilerStop(void) {
    ENTER();
    return STANDIN_OK;
}
