/* Test-only door to whose the locks of aot_lock.c are, and to what forks wait for. */
#include "aot_lock.c"

#include <sys/wait.h>

#define EXPORTED __attribute__((visibility("default")))

/* Takes a lock in a process that was forked while its parent was making the locks. */
EXPORTED void shim_lock_of_a_child(void) {
  owner = -(int32_t)getpid() - 1;
  aot_lock(0);
  aot_unlock(0);
}

static int opening; /* as the lists of the dynamic linker are while a library is being opened */
static int forking;

static void* open_slowly(void* nothing) {
  aot_linker_enter();
  __atomic_store_n(&opening, 1, __ATOMIC_SEQ_CST);
  while (!__atomic_load_n(&forking, __ATOMIC_SEQ_CST)) sched_yield();
  for (int i = 0; i < 20000; ++i) sched_yield(); /* the other thread forks meanwhile, unless it waits */
  __atomic_store_n(&opening, 0, __ATOMIC_SEQ_CST);
  aot_linker_leave();
  return nothing;
}

/* What a child exits with that ran `work` in a fork of this thread. */
static int status_of_child(int (*work)(void)) {
  int status = -1;
  pid_t child = fork();
  if (child == 0) _exit(work());
  waitpid(child, &status, 0);
  return status;
}

/* The child opens something too: it does not wait for a thread that it does not have. */
static int opens(void) {
  if (__atomic_load_n(&opening, __ATOMIC_SEQ_CST)) return 1;
  aot_linker_enter();
  aot_linker_leave();
  return 0;
}

/* 0 if a child that is forked while another thread opens a library sees it opened. */
EXPORTED int shim_fork_beside_an_opening(void) {
  pthread_t other;
  aot_linker_prepare();
  opening = forking = 0;
  if (pthread_create(&other, NULL, open_slowly, NULL) != 0) return -1;
  while (!__atomic_load_n(&opening, __ATOMIC_SEQ_CST)) sched_yield();
  __atomic_store_n(&forking, 1, __ATOMIC_SEQ_CST);
  int status = status_of_child(opens);
  pthread_join(other, NULL);
  return status;
}

static int nothing(void) { return 0; }

/* As the constructor of a library may do. */
EXPORTED int shim_fork_within_an_opening(void) {
  aot_linker_enter();
  int status = status_of_child(nothing);
  aot_linker_leave();
  return status;
}
