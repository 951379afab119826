/* Takes the name of a CUDA library in tests of programs that must never open the real one: opening it ends them. */
#include <stdio.h>
#include <stdlib.h>

#ifndef NAME
#define NAME "a CUDA library"
#endif

__attribute__((constructor)) static void fail(void) {
  fprintf(stderr, "this program opened another %s than the stand-in's\n", NAME);
  abort();
}
