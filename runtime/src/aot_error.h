/* Raising errors as TVM-FFI functions do: the error is kept for this thread, and the function returns -1. */
#ifndef AOT_ERROR_H_
#define AOT_ERROR_H_

#include "aot_text.h"

/* Each returns -1. `kind` names the class of the exception in Python. */
int aot_raise(const char* kind, const char* format, ...) __attribute__((format(printf, 2, 3)));
int aot_raise_text(const char* kind, aot_text_t* text); /* frees the text */
int aot_raise_out_of_memory(void);

/* Keeps an error aside for when there is no memory to create one. Called when a loader configures the bundle. */
void aot_error_prepare(void);

/* Puts words in front of the error that is raised in this thread, if it is of that kind. */
void aot_error_prefix(const char* kind, const char* function, const char* variant);

/* Drops the error that is raised in this thread, if any. */
void aot_error_clear(void);

#endif /* AOT_ERROR_H_ */
