#ifndef _GNU_SOURCE /* C++ compilers define it themselves */
#define _GNU_SOURCE /* secure_getenv */
#endif
#include "aot_trace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "aot_bundle.h"
#include "aot_lock.h"
#include "aot_nvtx.h"
#include "aot_text.h"

enum { NOT_DECIDED = -1, STANDARD_ERROR = 2 };

static int modes = NOT_DECIDED; /* written once, under AOT_LOCK_SETTINGS */
static int log_file = STANDARD_ERROR;

static void write_line(aot_text_t* text) {
  aot_text_append(text, "\n");
  /* One call per line: lines of several threads and processes stay whole. A log that cannot be written is not worth an
   * error. */
  if (!text->failed && write(log_file, text->data, text->length) < 0) errno = 0;
  aot_text_free(text);
}

static const char* wanted(const char* variable) {
  const char* value = secure_getenv(variable);
  return value == NULL || value[0] == '\0' || strcmp(value, "0") == 0 ? NULL : value;
}

static int open_log(const char* place) {
  if (strcmp(place, "1") == 0 || strcmp(place, "stderr") == 0) return STANDARD_ERROR;
  /* O_NONBLOCK: the open of a FIFO would wait for a reader, and a write to it for one that is busy. */
  int file = open(place, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
  if (file >= 0) return file;
  aot_text_t text = AOT_TEXT_EMPTY;
  aot_text_append(&text, "aot: AOT_LOG names `%s`, which cannot be written: %s; the log goes to stderr", place,
                  strerror(errno));
  write_line(&text);
  return STANDARD_ERROR;
}

static int decide(void) {
  int decided = 0;
  const char* place = wanted("AOT_LOG");
  if (place != NULL) {
    log_file = open_log(place);
    decided |= AOT_TRACE_LOG;
  }
  if (wanted("AOT_NVTX") != NULL && aot_nvtx_attach()) decided |= AOT_TRACE_NVTX;
  return decided;
}

int aot_trace_modes(void) {
  int known = __atomic_load_n(&modes, __ATOMIC_ACQUIRE);
  if (known != NOT_DECIDED) return known;
  aot_lock(AOT_LOCK_SETTINGS);
  known = modes;
  if (known == NOT_DECIDED) __atomic_store_n(&modes, known = decide(), __ATOMIC_RELEASE);
  aot_unlock(AOT_LOCK_SETTINGS);
  return known;
}

void aot_trace_log(const char* format, ...) {
  aot_text_t text = AOT_TEXT_EMPTY;
  va_list arguments;
  if (!(aot_trace_modes() & AOT_TRACE_LOG)) return;
  aot_text_append(&text, "aot: %s: ", aot_this_bundle.name);
  va_start(arguments, format);
  aot_text_append_list(&text, format, arguments);
  va_end(arguments);
  write_line(&text);
}

int64_t aot_trace_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void aot_trace_push(const char* name) {
  if (aot_trace_modes() & AOT_TRACE_NVTX) aot_nvtx_push(name);
}

void aot_trace_pop(void) {
  if (aot_trace_modes() & AOT_TRACE_NVTX) aot_nvtx_pop();
}
