/* Streams: which device they belong to, and whether they are being captured.
 *
 * Any number serves as a stream: tests name one without creating it.
 */
#include "state.h"

#include <stdlib.h>

typedef struct {
    uint64_t handle;
    int device; /* -1: never created here */
    int status, mode;
    int64_t capturing_thread;
} stream;

static stream *streams;
static size_t stream_count;

void standin_forget_streams(void) {
    free(streams);
    streams = NULL;
    stream_count = 0;
}

static stream *find_stream(uint64_t handle) {
    for (size_t i = 0; i < stream_count; i++)
        if (streams[i].handle == handle) return &streams[i];
    return NULL;
}

static stream *find_or_add_stream(uint64_t handle) {
    stream *found = find_stream(handle);
    if (found) return found;
    stream *larger = realloc(streams, sizeof *streams * (stream_count + 1));
    if (!larger) abort();
    streams = larger;
    streams[stream_count] = (stream){.handle = handle, .device = -1};
    return &streams[stream_count++];
}

void standin_add_stream(uint64_t handle, int device) {
    standin_lock();
    find_or_add_stream(handle)->device = device;
    standin_unlock();
}

int standin_stream_device(uint64_t handle) {
    standin_lock();
    const stream *found = find_stream(handle);
    int device = found ? found->device : -1;
    standin_unlock();
    return device < 0 ? standin_current_device() : device;
}

int standin_begin_capture(uint64_t handle, int mode) {
    int64_t thread = standin_thread()->id;
    standin_lock();
    stream *target = find_or_add_stream(handle);
    int idle = target->status == STANDIN_CAPTURE_NONE;
    if (idle) {
        target->status = STANDIN_CAPTURE_ACTIVE;
        target->mode = mode;
        target->capturing_thread = thread;
    }
    standin_unlock();
    return idle ? STANDIN_OK : STANDIN_INVALID_VALUE;
}

static int finish_capture(stream *target) {
    if (!target || target->status == STANDIN_CAPTURE_NONE) return STANDIN_INVALID_VALUE;
    int intact = target->status == STANDIN_CAPTURE_ACTIVE;
    target->status = STANDIN_CAPTURE_NONE;
    return intact ? STANDIN_OK : STANDIN_CAPTURE_INVALIDATED;
}

int standin_end_capture(uint64_t handle) {
    standin_lock();
    int code = finish_capture(find_stream(handle));
    standin_unlock();
    return code;
}

int standin_capture_status(uint64_t handle) {
    standin_lock();
    const stream *found = find_stream(handle);
    int status = found ? found->status : STANDIN_CAPTURE_NONE;
    standin_unlock();
    return status;
}

static int forbids_unsafe_calls(const stream *capturing, int64_t thread) {
    if (capturing->status != STANDIN_CAPTURE_ACTIVE) return 0;
    if (capturing->mode == STANDIN_MODE_GLOBAL) return 1;
    return capturing->mode == STANDIN_MODE_THREAD_LOCAL && capturing->capturing_thread == thread;
}

/* A call that is unsafe during capture (cudaMalloc, say) is refused, and breaks the capture. Loading a library
 * and preparing a kernel are not among those calls: driver 580 does both in every capture mode. */
int standin_refuse_in_capture(void) {
    const standin_thread_state *thread = standin_thread();
    if (thread->capture_mode == STANDIN_MODE_RELAXED) return STANDIN_OK;
    int code = STANDIN_OK;
    standin_lock();
    for (size_t i = 0; i < stream_count; i++) {
        if (!forbids_unsafe_calls(&streams[i], thread->id)) continue;
        streams[i].status = STANDIN_CAPTURE_BROKEN;
        code = STANDIN_CAPTURE_UNSUPPORTED;
    }
    standin_unlock();
    return code;
}
