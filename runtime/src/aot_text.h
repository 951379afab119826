/* Text that grows: messages of the slow paths. Never used while a call succeeds. */
#ifndef AOT_TEXT_H_
#define AOT_TEXT_H_

#include <stdarg.h>
#include <stddef.h>

typedef struct {
  char* data;
  size_t length;
  size_t capacity;
  int failed; /* memory ran out: later appends do nothing */
} aot_text_t;

/* Not {0}: C++ compilers warn of the fields that it leaves out. */
#define AOT_TEXT_EMPTY {NULL, 0, 0, 0}

void aot_text_append(aot_text_t* text, const char* format, ...) __attribute__((format(printf, 2, 3)));
void aot_text_append_list(aot_text_t* text, const char* format, va_list arguments) __attribute__((format(printf, 2, 0)));
const char* aot_text_get(const aot_text_t* text); /* "" after a failure */
void aot_text_free(aot_text_t* text);

#endif /* AOT_TEXT_H_ */
