/* DLPack tensors without memory behind them, or with host memory for the CPU device.
 *
 * Made and freed in C: a deleter written in Python may run after the interpreter is gone. The layouts are DLPack's
 * (dlpack.h, version 1).
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int32_t type, id;
} dl_device;

typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} dl_type;

typedef struct {
    void *data;
    dl_device device;
    int32_t ndim;
    dl_type type;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;

typedef struct managed_tensor {
    struct {
        uint32_t major, minor;
    } version;
    void *context;
    void (*deleter)(struct managed_tensor *);
    uint64_t flags;
    dl_tensor tensor;
} managed_tensor;

static long live_tensors;

long standin_live_tensors(void) { return __atomic_load_n(&live_tensors, __ATOMIC_RELAXED); }

static void free_tensor(managed_tensor *managed) {
    free(managed->context); /* the host memory, where there is any */
    free(managed->tensor.shape);
    free(managed->tensor.strides);
    free(managed);
    __atomic_sub_fetch(&live_tensors, 1, __ATOMIC_RELAXED);
}

static int64_t *copy_extents(const int64_t *extents, int count) {
    if (!extents) return NULL;
    int64_t *copy = malloc(sizeof *copy * (size_t)(count ? count : 1));
    if (!copy) abort();
    memcpy(copy, extents, sizeof *copy * (size_t)count);
    return copy;
}

static void *host_memory(uint64_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, 256, bytes) != 0) abort();
    return memset(memory, 0, bytes);
}

/* `host_bytes` > 0: the tensor owns that much zeroed memory, and `address` is ignored. */
void *standin_new_tensor(uint64_t address, uint64_t host_bytes, uint64_t byte_offset, int device_type, int device_id,
                         int ndim, const int64_t *shape, const int64_t *strides, int code, int bits, int lanes) {
    managed_tensor *managed = calloc(1, sizeof *managed);
    if (!managed) abort();
    managed->version.major = 1;
    managed->context = host_bytes ? host_memory(host_bytes) : NULL;
    managed->deleter = free_tensor;
    managed->tensor = (dl_tensor){
        .data = host_bytes ? managed->context : (void *)(uintptr_t)address,
        .device = {device_type, device_id},
        .ndim = ndim,
        .type = {(uint8_t)code, (uint8_t)bits, (uint16_t)lanes},
        .shape = copy_extents(shape, ndim),
        .strides = copy_extents(strides, ndim),
        .byte_offset = byte_offset,
    };
    __atomic_add_fetch(&live_tensors, 1, __ATOMIC_RELAXED);
    return managed;
}

/* tvm_ffi fills in missing strides when it imports a tensor, so a callee meets NULL only from C callers. Here they are
 * taken away again from the tensor inside tvm_ffi's object, which begins after a 24-byte object header. */
void standin_take_strides(void *tvm_ffi_object) {
    dl_tensor *tensor = (dl_tensor *)((char *)tvm_ffi_object + 24);
    tensor->strides = NULL;
}
