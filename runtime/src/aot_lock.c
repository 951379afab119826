#include "aot_lock.h"

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <unistd.h>

static pthread_mutex_t locks[AOT_LOCK_COUNT];
/* The process that the locks belong to; 0: nobody used them yet. While a process makes them it is minus its number, so
 * that a child which was forked at that moment does not wait for its parent. */
static int32_t owner;

int aot_lock_of(const void* address) {
  uint64_t mixed = (uint64_t)(uintptr_t)address * UINT64_C(0x9e3779b97f4a7c15) >> 32;
  return AOT_LOCK_FIRST_OF_MANY + (int)(mixed % (AOT_LOCK_COUNT - AOT_LOCK_FIRST_OF_MANY));
}

/* A child that was forked while another thread held a lock would wait for it for ever, since that thread is not in the
 * child. So the first thread that takes a lock in a new process initialises all of them. What the other thread had
 * begun is not there either: every state here is written when it is complete. */
static void own_locks(int32_t process) {
  int32_t seen = __atomic_load_n(&owner, __ATOMIC_ACQUIRE);
  while (seen != process) {
    if (seen != -process &&
        __atomic_compare_exchange_n(&owner, &seen, -process, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
      for (int i = 0; i < AOT_LOCK_COUNT; ++i) pthread_mutex_init(&locks[i], NULL);
      __atomic_store_n(&owner, process, __ATOMIC_RELEASE);
      return;
    }
    sched_yield();
    seen = __atomic_load_n(&owner, __ATOMIC_ACQUIRE);
  }
}

void aot_lock(int which) {
  own_locks((int32_t)getpid());
  pthread_mutex_lock(&locks[which]);
}

void aot_unlock(int which) { pthread_mutex_unlock(&locks[which]); }

static pthread_mutex_t linker = PTHREAD_MUTEX_INITIALIZER;
static pthread_t inside; /* the thread that holds it; 0: none */

/* A library that is being opened may fork in its constructor: that thread does not wait for itself. */
static int holds_linker(void) { return pthread_equal(__atomic_load_n(&inside, __ATOMIC_RELAXED), pthread_self()); }

static void before_fork(void) {
  if (!holds_linker()) pthread_mutex_lock(&linker);
}

static void after_fork(void) {
  if (!holds_linker()) pthread_mutex_unlock(&linker);
}

/* What `pthread_atfork` calls, in glibc itself. `pthread_atfork` is linked into each library, and zig builds it with the
 * paths of the build machine. No handle of a library: ours are never closed. */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void*);

static void watch_forks(void) { __register_atfork(before_fork, after_fork, after_fork, NULL); }

void aot_linker_prepare(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, watch_forks);
}

void aot_linker_enter(void) {
  aot_linker_prepare();
  pthread_mutex_lock(&linker);
  __atomic_store_n(&inside, pthread_self(), __ATOMIC_RELAXED);
}

void aot_linker_leave(void) {
  __atomic_store_n(&inside, (pthread_t)0, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&linker);
}
