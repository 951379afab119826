/* Text that grows: messages of the slow paths. Never used while a call succeeds. */
#ifndef AOT_TEXT_H_
#define AOT_TEXT_H_

#include <stddef.h>

typedef struct {
  char* data; /* NULL after running out of memory: later appends do nothing */
  size_t length;
  size_t capacity;
  int failed;
} aot_text_t;

/* Not {0}: C++ compilers warn of the fields that it leaves out. */
#define AOT_TEXT_EMPTY {NULL, 0, 0, 0}

void aot_text_append(aot_text_t* text, const char* format, ...) __attribute__((format(printf, 2, 3)));
const char* aot_text_get(const aot_text_t* text);
void aot_text_free(aot_text_t* text);

/* Sets the TVM-FFI error of this thread and returns -1, what a TVM-FFI function returns then. */
int aot_raise(const char* kind, const char* format, ...) __attribute__((format(printf, 2, 3)));
int aot_raise_text(const char* kind, aot_text_t* text); /* frees the text */

#endif /* AOT_TEXT_H_ */
