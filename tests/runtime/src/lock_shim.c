/* Test-only door to whose the locks of aot_lock.c are. */
#include "aot_lock.c"

/* Takes a lock in a process that was forked while its parent was making the locks. */
__attribute__((visibility("default"))) void shim_lock_of_a_child(void) {
  owner = -(int32_t)getpid() - 1;
  aot_lock(0);
  aot_unlock(0);
}
