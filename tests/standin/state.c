/* Devices, threads, call counters and faults. */
#define _GNU_SOURCE
#include "state.h"

#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FAULTS = 64, MAX_NAME = 96 };

typedef struct {
    char name[MAX_NAME];
    int code;
    int device; /* -1: any */
    long after; /* calls to let pass first */
    long times; /* failures left; -1: no end */
} fault;

int standin_watching = 1;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static standin_device devices[STANDIN_MAX_DEVICES] = {{9, 0, 132}};
static int device_count = 1;
static int driver_version = 13000;
static int initialized;
static int recording = 1;
static unsigned epoch = 1;
static standin_call *first_call;
static fault faults[MAX_FAULTS];
static int fault_count;
static uint64_t next_handle = 0x10000;
static pthread_cond_t arrival = PTHREAD_COND_INITIALIZER;
static char meeting[MAX_NAME]; /* the function whose callers wait for each other */
static int awaited;

void standin_lock(void) { pthread_mutex_lock(&mutex); }
void standin_unlock(void) { pthread_mutex_unlock(&mutex); }

/* A child that is forked while another thread holds the lock would wait for it for ever. */
__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(standin_lock, standin_unlock, standin_unlock);
}

static int fault_is_armed(void) {
    for (int i = 0; i < fault_count; i++)
        if (faults[i].times != 0) return 1;
    return 0;
}

static void update_watching(void) {
    __atomic_store_n(&standin_watching, recording || fault_is_armed(), __ATOMIC_RELAXED);
}

static void clear_counters(void) {
    for (standin_call *call = first_call; call; call = call->next) call->count = 0;
}

void standin_clear(void) {
    standin_lock();
    clear_counters();
    standin_forget_launches();
    standin_forget_loads();
    standin_unlock();
}

void standin_reset(int count, const standin_device *wanted, int version) {
    standin_clear();
    standin_lock();
    memcpy(devices, wanted, sizeof *wanted * (size_t)count);
    __atomic_store_n(&device_count, count, __ATOMIC_RELAXED);
    driver_version = version;
    fault_count = 0;
    awaited = 0;
    recording = 1;
    standin_forget_streams();
    __atomic_add_fetch(&epoch, 1, __ATOMIC_RELAXED); /* every thread starts anew at its next call */
    update_watching();
    standin_unlock();
}

void standin_set_recording(int on) {
    standin_lock();
    __atomic_store_n(&recording, on, __ATOMIC_RELAXED);
    update_watching();
    standin_unlock();
}

int standin_recording(void) { return __atomic_load_n(&recording, __ATOMIC_RELAXED); }
int standin_driver_version(void) { return driver_version; }

void standin_initialize(void) {
    if (!initialized) __atomic_store_n(&initialized, 1, __ATOMIC_RELAXED);
}

int standin_initialized(void) {
    return __atomic_load_n(&initialized, __ATOMIC_RELAXED) && standin_device_count() > 0;
}

/* -- devices -- */

int standin_device_count(void) { return __atomic_load_n(&device_count, __ATOMIC_RELAXED); }

const standin_device *standin_device_at(int index) {
    return index >= 0 && index < standin_device_count() ? &devices[index] : NULL;
}

static int small_shared_memory(const standin_device *device) {
    return device->major == 12 || (device->major == 8 && (device->minor == 6 || device->minor == 9));
}

static int shared_memory_optin(const standin_device *device) {
    if (device->major < 8) return 64 * 1024;
    if (small_shared_memory(device)) return 99 * 1024;
    return device->major == 8 ? 163 * 1024 : 227 * 1024;
}

int standin_device_attribute(int *value, int attribute, int index) {
    const standin_device *device = standin_device_at(index);
    if (!device) return STANDIN_INVALID_DEVICE;
    if (!value || attribute < 1 || attribute > 200) return STANDIN_INVALID_VALUE;
    switch (attribute) {
    case 1: case 2: case 3: *value = 1024; break;       /* threads per block, block x, block y */
    case 4: *value = 64; break;                         /* block z */
    case 5: *value = INT32_MAX; break;                  /* grid x */
    case 6: case 7: *value = 65535; break;              /* grid y, z */
    case 8: *value = 48 * 1024; break;                  /* shared memory without opting in */
    case 10: *value = 32; break;                        /* warp */
    case 12: case 82: *value = 65536; break;            /* registers per block, per multiprocessor */
    case 16: *value = device->sm_count; break;
    case 39: *value = small_shared_memory(device) ? 1536 : 2048; break; /* threads per multiprocessor */
    case 75: *value = device->major; break;
    case 76: *value = device->minor; break;
    case 81: *value = shared_memory_optin(device) + 1024; break; /* per multiprocessor */
    case 97: *value = shared_memory_optin(device); break;
    case 106: *value = 32; break;                       /* blocks per multiprocessor */
    case 111: *value = 1024; break;                     /* reserved shared memory */
    case 120: *value = device->major >= 9; break;       /* clusters */
    default: *value = 1;
    }
    return STANDIN_OK;
}

/* -- threads -- */

/* Initial-exec: a library that is opened late may have that little, and it spares a call per access. */
static __thread standin_thread_state state __attribute__((tls_model("initial-exec")));

standin_thread_state *standin_thread(void) {
    unsigned now = __atomic_load_n(&epoch, __ATOMIC_RELAXED);
    if (state.epoch != now) {
        int64_t id = state.id ? state.id : (int64_t)syscall(SYS_gettid);
        state = (standin_thread_state){.epoch = now, .device = -1, .id = id};
    }
    return &state;
}

int standin_current_device(void) {
    int device = standin_thread()->device;
    return device < 0 ? 0 : device;
}

void standin_set_current_device(int device) { standin_thread()->device = device; }

/* -- calls and faults -- */

static int injected_failure(const char *name, int device) {
    for (int i = 0; i < fault_count; i++) {
        fault *rule = &faults[i];
        int applies = rule->times != 0 && (rule->device < 0 || rule->device == device);
        if (!applies || strcmp(rule->name, name) != 0) continue;
        if (rule->after > 0) {
            rule->after--;
            continue;
        }
        if (rule->times > 0) rule->times--;
        update_watching();
        return rule->code;
    }
    return STANDIN_OK;
}

/* The caller holds the lock. */
static void wait_for_others(void) {
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 30;
    awaited--;
    pthread_cond_broadcast(&arrival);
    while (awaited > 0 && pthread_cond_timedwait(&arrival, &mutex, &limit) == 0) continue;
}

void standin_meet(const char *name, int count) {
    standin_lock();
    strncpy(meeting, name, MAX_NAME - 1);
    awaited = count;
    standin_unlock();
}

int standin_met(void) {
    standin_lock();
    int met = awaited == 0;
    awaited = 0;
    standin_unlock();
    return met;
}

int standin_note_call(standin_call *call, int device) {
    standin_lock();
    if (!call->listed) {
        call->listed = 1;
        call->next = first_call;
        first_call = call;
    }
    call->count += recording;
    int code = injected_failure(call->name, device);
    if (awaited > 0 && strcmp(call->name, meeting) == 0) wait_for_others();
    standin_unlock();
    return code;
}

long standin_calls(const char *name) {
    long total = 0; /* two runtimes may be loaded, each with a function of that name */
    standin_lock();
    for (standin_call *call = first_call; call; call = call->next)
        if (strcmp(call->name, name) == 0) total += call->count;
    standin_unlock();
    return total;
}

static int add_fault(const char *name, int code, int device, long after, long times) {
    if (fault_count == MAX_FAULTS || strlen(name) >= MAX_NAME) return 0;
    fault *rule = &faults[fault_count++];
    *rule = (fault){.code = code, .device = device, .after = after, .times = times};
    strcpy(rule->name, name);
    update_watching();
    return 1;
}

int standin_fail(const char *name, int code, int device, long after, long times) {
    standin_lock();
    int added = add_fault(name, code, device, after, times);
    standin_unlock();
    return added;
}

uint64_t standin_new_handle(void) { return __atomic_add_fetch(&next_handle, 16, __ATOMIC_RELAXED); }
