/* libcuda.so.1: the driver functions that the project's C code and NVIDIA's launch support ask for. */
#define _GNU_SOURCE
#include "state.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    unsigned grid[3], block[3], shared_memory;
    void *stream;
    const standin_launch_attribute *attributes;
    unsigned attribute_count;
} driver_launch_config;

/* The address of one of these is what a caller holds as a context. */
static char contexts[STANDIN_MAX_DEVICES];

/* Counts the call; returns from the caller where a failure was ordered. */
#define COUNT(device)                                          \
    do {                                                       \
        static standin_call call_site = {.name = __func__};    \
        int injected = STANDIN_NOTE(&call_site, (device));     \
        if (injected) return injected;                         \
    } while (0)

/* The same for functions that need cuInit first, which are nearly all. */
#define ENTER(device)                                                \
    do {                                                             \
        COUNT(device);                                               \
        if (!standin_initialized()) return STANDIN_NOT_INITIALIZED;  \
    } while (0)

#define ENTER_CONTEXT()                                                      \
    do {                                                                     \
        ENTER(standin_current_device());                                     \
        if (standin_thread()->device < 0) return STANDIN_INVALID_CONTEXT;    \
    } while (0)

static uint64_t number(const void *handle) { return (uint64_t)(uintptr_t)handle; }

/* -- initialisation, versions, errors -- */

int cuInit(unsigned flags) {
    COUNT(-1);
    if (flags != 0) return STANDIN_INVALID_VALUE;
    if (standin_device_count() == 0) return STANDIN_NO_DEVICE;
    standin_initialize();
    return STANDIN_OK;
}

int cuDriverGetVersion(int *version) {
    COUNT(-1);
    if (!version) return STANDIN_INVALID_VALUE;
    *version = standin_driver_version();
    return STANDIN_OK;
}

int cuGetErrorName(int code, const char **name) {
    COUNT(-1);
    if (!name) return STANDIN_INVALID_VALUE;
    *name = standin_driver_error_name(code);
    return *name ? STANDIN_OK : STANDIN_INVALID_VALUE;
}

int cuGetErrorString(int code, const char **text) {
    COUNT(-1);
    if (!text) return STANDIN_INVALID_VALUE;
    *text = standin_error_text(code);
    return *text ? STANDIN_OK : STANDIN_INVALID_VALUE;
}

/* Callers ask for cuEventDestroy and mean its newest version, which is exported as cuEventDestroy_v2. */
static void *find_function(const char *symbol) {
    char newer[128];
    void *self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!self) return NULL;
    snprintf(newer, sizeof newer, "%s_v2", symbol);
    void *function = dlsym(self, newer);
    if (!function) function = dlsym(self, symbol);
    dlclose(self);
    return function;
}

int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status) {
    enum { FOUND = 0, NOT_FOUND = 1 };
    COUNT(-1);
    (void)version, (void)flags;
    if (!symbol || !function) return STANDIN_INVALID_VALUE;
    *function = find_function(symbol);
    if (status) *status = *function ? FOUND : NOT_FOUND;
    return *function || status ? STANDIN_OK : STANDIN_SYMBOL_NOT_FOUND;
}

/* -- devices and contexts -- */

int cuDeviceGetCount(int *count) {
    if (count) *count = standin_device_count();
    ENTER(-1);
    return count ? STANDIN_OK : STANDIN_INVALID_VALUE;
}

int cuDeviceGet(int *device, int ordinal) {
    ENTER(ordinal);
    if (!device) return STANDIN_INVALID_VALUE;
    if (!standin_device_at(ordinal)) return STANDIN_INVALID_DEVICE;
    *device = ordinal;
    return STANDIN_OK;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    ENTER(device);
    return standin_device_attribute(value, attribute, device);
}

int cuDeviceGetName(char *name, int size, int device) {
    ENTER(device);
    const standin_device *target = standin_device_at(device);
    if (!target) return STANDIN_INVALID_DEVICE;
    if (!name || size < 1) return STANDIN_INVALID_VALUE;
    snprintf(name, (size_t)size, "Stand-in %d.%d", target->major, target->minor);
    return STANDIN_OK;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    ENTER(device);
    if (!context) return STANDIN_INVALID_VALUE;
    if (!standin_device_at(device)) return STANDIN_INVALID_DEVICE;
    *context = &contexts[device];
    return STANDIN_OK;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    ENTER(device);
    return standin_device_at(device) ? STANDIN_OK : STANDIN_INVALID_DEVICE;
}

int cuCtxGetCurrent(void **context) {
    ENTER(standin_current_device());
    if (!context) return STANDIN_INVALID_VALUE;
    int device = standin_thread()->device;
    *context = device < 0 ? NULL : &contexts[device];
    return STANDIN_OK;
}

int cuCtxSetCurrent(void *context) {
    ENTER(standin_current_device());
    ptrdiff_t device = context ? (char *)context - contexts : -1;
    if (context && !standin_device_at((int)device)) return STANDIN_INVALID_CONTEXT;
    standin_set_current_device((int)device);
    return STANDIN_OK;
}

int cuCtxGetDevice(int *device) {
    ENTER_CONTEXT();
    if (!device) return STANDIN_INVALID_VALUE;
    *device = standin_thread()->device;
    return STANDIN_OK;
}

/* -- streams -- */

int cuStreamIsCapturing(void *stream, int *status) {
    ENTER(standin_stream_device(number(stream)));
    if (!status) return STANDIN_INVALID_VALUE;
    *status = standin_capture_status(number(stream));
    return STANDIN_OK;
}

int cuThreadExchangeStreamCaptureMode(int *mode) {
    COUNT(standin_current_device());
    if (!mode || *mode < STANDIN_MODE_GLOBAL || *mode > STANDIN_MODE_RELAXED) return STANDIN_INVALID_VALUE;
    standin_thread_state *thread = standin_thread();
    int previous = thread->capture_mode;
    thread->capture_mode = *mode;
    *mode = previous;
    return STANDIN_OK;
}

int cuStreamGetCtx(void *stream, void **context) {
    ENTER_CONTEXT();
    if (!context) return STANDIN_INVALID_VALUE;
    *context = &contexts[standin_stream_device(number(stream))];
    return STANDIN_OK;
}

int cuStreamGetDevice(void *stream, int *device) {
    ENTER_CONTEXT();
    if (!device) return STANDIN_INVALID_VALUE;
    *device = standin_stream_device(number(stream));
    return STANDIN_OK;
}

/* -- libraries and kernels -- */

int cuLibraryLoadData(standin_library **library, const void *code, void *jit_options, void *jit_values,
                      unsigned jit_count, void *options, void *values, unsigned count) {
    ENTER(standin_current_device());
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return standin_load_library(library, code);
}

int cuLibraryUnload(standin_library *library) {
    ENTER(standin_current_device());
    return standin_is_library(library) ? STANDIN_OK : STANDIN_INVALID_HANDLE;
}

int cuLibraryGetKernel(standin_kernel **kernel, standin_library *library, const char *name) {
    ENTER(standin_current_device());
    return standin_get_kernel(kernel, library, name);
}

int cuLibraryGetKernelCount(unsigned *count, const standin_library *library) {
    ENTER(standin_current_device());
    return standin_kernel_count(count, library);
}

int cuKernelGetFunction(void **function, standin_kernel *kernel) {
    ENTER_CONTEXT();
    if (!function || !standin_is_kernel(kernel)) return STANDIN_INVALID_VALUE;
    int device = standin_thread()->device;
    if (!standin_kernel_runs_on(kernel, device)) return STANDIN_NO_IMAGE_FOR_DEVICE;
    standin_mark_ready(kernel, device);
    *function = kernel;
    return STANDIN_OK;
}

int cuKernelGetAttribute(int *value, int attribute, standin_kernel *kernel, int device) {
    ENTER(device);
    return standin_get_kernel_attribute(value, attribute, kernel, device);
}

int cuKernelSetAttribute(int attribute, int value, standin_kernel *kernel, int device) {
    ENTER(device);
    return standin_set_kernel_attribute(kernel, attribute, value, device);
}

/* As many clusters as the device has room for when every multiprocessor takes one block. */
int cuOccupancyMaxActiveClusters(int *clusters, const standin_kernel *kernel, const driver_launch_config *config) {
    ENTER_CONTEXT();
    uint32_t cluster[3];
    if (!clusters || !config) return STANDIN_INVALID_VALUE;
    if (!standin_is_kernel(kernel)) return STANDIN_INVALID_HANDLE;
    standin_read_cluster(cluster, config->attributes, config->attribute_count);
    unsigned blocks = cluster[0] * cluster[1] * cluster[2];
    if (blocks == 0) return STANDIN_INVALID_CLUSTER;
    *clusters = standin_device_at(standin_current_device())->sm_count / (int)blocks;
    return STANDIN_OK;
}

/* -- launches -- */

static int launch_with(const driver_launch_config *config, standin_kernel *kernel) {
    if (!config) return STANDIN_INVALID_VALUE;
    if (!standin_is_kernel(kernel)) return STANDIN_INVALID_HANDLE;
    standin_launch_record launch = {
        .stream = number(config->stream),
        .shared_memory = config->shared_memory,
        .device = standin_current_device(),
        .early = standin_is_early(config->attributes, config->attribute_count),
    };
    memcpy(launch.grid, config->grid, sizeof launch.grid);
    memcpy(launch.block, config->block, sizeof launch.block);
    standin_read_cluster(launch.cluster, config->attributes, config->attribute_count);
    return standin_launch(kernel, &launch);
}

int cuLaunchKernelEx(const driver_launch_config *config, standin_kernel *kernel, void **arguments, void **extra) {
    ENTER_CONTEXT();
    (void)arguments, (void)extra;
    return launch_with(config, kernel);
}

int cuLaunchKernel(standin_kernel *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_memory, void *stream, void **arguments,
                   void **extra) {
    ENTER_CONTEXT();
    (void)arguments, (void)extra;
    driver_launch_config config = {
        .grid = {grid_x, grid_y, grid_z},
        .block = {block_x, block_y, block_z},
        .shared_memory = shared_memory,
        .stream = stream,
    };
    return launch_with(&config, kernel);
}

/* -- tensor maps: checked as far as alignment and rank, then left blank -- */

enum { TENSOR_MAP_BYTES = 128 };

int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *extents,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides,
                           int interleave, int swizzle, int promotion, int fill) {
    COUNT(standin_current_device());
    (void)type, (void)extents, (void)box, (void)element_strides;
    (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    if (!map || rank < 1 || rank > 5 || number(address) % 16 != 0) return STANDIN_INVALID_VALUE;
    for (uint32_t i = 0; i + 1 < rank; i++)
        if (strides[i] % 16 != 0) return STANDIN_INVALID_VALUE;
    memset(map, 0, TENSOR_MAP_BYTES);
    return STANDIN_OK;
}

int cuTensorMapReplaceAddress(void *map, void *address) {
    COUNT(standin_current_device());
    return map && number(address) % 16 == 0 ? STANDIN_OK : STANDIN_INVALID_VALUE;
}

/* -- events: handles, and nothing ever takes time -- */

int cuEventCreate(void **event, unsigned flags) {
    ENTER_CONTEXT();
    (void)flags;
    if (!event) return STANDIN_INVALID_VALUE;
    *event = (void *)(uintptr_t)standin_new_handle();
    return STANDIN_OK;
}

int cuEventElapsedTime_v2(float *milliseconds, void *start, void *end) {
    ENTER(standin_current_device());
    (void)start, (void)end;
    if (!milliseconds) return STANDIN_INVALID_VALUE;
    *milliseconds = 0;
    return STANDIN_OK;
}

int cuEventRecordWithFlags(void *event, void *stream, unsigned flags) {
    ENTER(standin_stream_device(number(stream)));
    (void)flags;
    return event ? STANDIN_OK : STANDIN_INVALID_HANDLE;
}

int cuEventRecord(void *event, void *stream) {
    ENTER(standin_stream_device(number(stream)));
    return event ? STANDIN_OK : STANDIN_INVALID_HANDLE;
}

int cuEventDestroy_v2(void *event) {
    ENTER(standin_current_device());
    return event ? STANDIN_OK : STANDIN_INVALID_HANDLE;
}

int cuEventQuery(void *event) {
    ENTER(standin_current_device());
    return event ? STANDIN_OK : STANDIN_INVALID_HANDLE;
}

int cuEventSynchronize(void *event) {
    ENTER(standin_current_device());
    return event ? STANDIN_OK : STANDIN_INVALID_HANDLE;
}
