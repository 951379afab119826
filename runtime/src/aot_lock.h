/* Locks of the slow paths: opening libraries, loading code. A call of code that is loaded takes none.
 *
 * Different libraries and different variants are opened and loaded at the same time. The order in which locks are
 * taken: one of the many, then AOT_LOCK_SUPPORT, then AOT_LOCK_SETTINGS or AOT_LOCK_DRIVER; never two of the many.
 */
#ifndef AOT_LOCK_H_
#define AOT_LOCK_H_

enum {
  AOT_LOCK_SETTINGS = 0, /* what loaders said */
  AOT_LOCK_DRIVER = 1,
  AOT_LOCK_SUPPORT = 2,
  AOT_LOCK_FIRST_OF_MANY = 3,
  AOT_LOCK_COUNT = 64
};

/* Which of the many guards a build or a variant: the same for the same address. */
int aot_lock_of(const void* address);

void aot_lock(int which);
void aot_unlock(int which);

/* Around each use of the dynamic linker that opens a library. It keeps lists of what is open. A child that is forked while
 * another thread opens a library has them half written: it would end with SIGSEGV, or by an assertion of the linker, when it
 * opens one itself. So a thread that forks waits until no thread is in between. `aot_linker_prepare` is for a moment at
 * which no other thread is here yet. */
void aot_linker_prepare(void);
void aot_linker_enter(void);
void aot_linker_leave(void);

#endif /* AOT_LOCK_H_ */
