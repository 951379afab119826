/* Launches: refused for the reasons a real device refuses them, recorded otherwise. */
#include "state.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_THREADS = 1024, MAX_GRID_YZ = 65535, MAX_PORTABLE_CLUSTER = 8, MAX_CLUSTER = 16 };
enum { CLUSTER_DIMENSION = 4, PROGRAMMATIC_STREAM_SERIALIZATION = 6 };

static standin_launch_record *launches;
static size_t launch_count, launch_capacity;

void standin_forget_launches(void) { launch_count = 0; }

static void make_room(void) {
    if (launch_count < launch_capacity) return;
    launch_capacity = launch_capacity ? 2 * launch_capacity : 256;
    launches = realloc(launches, sizeof *launches * launch_capacity);
    if (!launches) abort();
}

static void record(standin_launch_record *launch) {
    launch->thread = standin_thread()->id;
    launch->captured = standin_capture_status(launch->stream) == STANDIN_CAPTURE_ACTIVE;
    standin_lock();
    make_room();
    launches[launch_count++] = *launch;
    standin_unlock();
}

void standin_read_cluster(uint32_t cluster[3], const standin_launch_attribute *attributes, unsigned count) {
    cluster[0] = cluster[1] = cluster[2] = 1;
    for (unsigned i = 0; i < count; i++)
        if (attributes[i].id == CLUSTER_DIMENSION) memcpy(cluster, attributes[i].value.cluster, 3 * sizeof *cluster);
}

int standin_is_early(const standin_launch_attribute *attributes, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        if (attributes[i].id == PROGRAMMATIC_STREAM_SERIALIZATION) return attributes[i].value.allowed != 0;
    return 0;
}

static uint64_t volume(const uint32_t extent[3]) { return (uint64_t)extent[0] * extent[1] * extent[2]; }

static int grid_fits(const standin_launch_record *launch) {
    uint64_t threads = volume(launch->block);
    if (threads == 0 || threads > MAX_THREADS || launch->block[2] > 64) return 0;
    if (volume(launch->grid) == 0 || launch->grid[0] > INT32_MAX) return 0;
    return launch->grid[1] <= MAX_GRID_YZ && launch->grid[2] <= MAX_GRID_YZ;
}

static int cluster_fits(const standin_kernel *kernel, const standin_launch_record *launch) {
    uint64_t blocks = volume(launch->cluster);
    if (blocks == 1) return 1;
    for (int i = 0; i < 3; i++)
        if (launch->cluster[i] == 0 || launch->grid[i] % launch->cluster[i] != 0) return 0;
    int big = 0;
    standin_get_kernel_attribute(&big, STANDIN_KERNEL_BIG_CLUSTERS, kernel, launch->device);
    return blocks <= (big ? MAX_CLUSTER : MAX_PORTABLE_CLUSTER)
        && standin_device_at(launch->device)->major >= 9;
}

static int shared_memory_fits(const standin_kernel *kernel, const standin_launch_record *launch) {
    int limit = 0;
    standin_get_kernel_attribute(&limit, STANDIN_KERNEL_DYNAMIC_SHARED, kernel, launch->device);
    return launch->shared_memory <= (uint64_t)limit;
}

static int refusal(const standin_kernel *kernel, const standin_launch_record *launch) {
    if (!standin_device_at(launch->device)) return STANDIN_INVALID_DEVICE;
    /* "The kernel launch will fail if it is issued to a stream that is not associated to the current device." */
    if (standin_stream_device(launch->stream) != launch->device) return STANDIN_INVALID_HANDLE;
    if (!standin_kernel_runs_on(kernel, launch->device)) return STANDIN_NO_IMAGE_FOR_DEVICE;
    if (!grid_fits(launch) || !shared_memory_fits(kernel, launch)) return STANDIN_INVALID_VALUE;
    return cluster_fits(kernel, launch) ? STANDIN_OK : STANDIN_INVALID_CLUSTER;
}

int standin_launch(standin_kernel *kernel, standin_launch_record *launch) {
    int code = refusal(kernel, launch);
    if (code) return code;
    standin_mark_ready(kernel, launch->device);
    launch->kernel = standin_kernel_name(kernel);
    if (standin_recording()) record(launch);
    return STANDIN_OK;
}

int standin_blocks_per_sm(int *blocks, const standin_kernel *kernel, int threads, size_t shared_memory) {
    int device = standin_current_device(), most_threads, most_shared, shared = 0;
    if (!blocks || threads < 1 || threads > MAX_THREADS) return STANDIN_INVALID_VALUE;
    int code = standin_get_kernel_attribute(&shared, STANDIN_KERNEL_STATIC_SHARED, kernel, device);
    if (code) return code;
    standin_device_attribute(&most_threads, 39, device);
    standin_device_attribute(&most_shared, 81, device);
    size_t by_threads = (size_t)(most_threads / threads);
    size_t by_shared = (size_t)most_shared / ((size_t)shared + shared_memory + 1024);
    size_t fit = by_threads < by_shared ? by_threads : by_shared;
    *blocks = (int)(fit < 32 ? fit : 32);
    return STANDIN_OK;
}

size_t standin_launch_count(void) {
    standin_lock();
    size_t count = launch_count;
    standin_unlock();
    return count;
}

int standin_launch_at(size_t index, standin_launch_record *out) {
    standin_lock();
    int found = index < launch_count;
    if (found) *out = launches[index];
    standin_unlock();
    return found;
}
