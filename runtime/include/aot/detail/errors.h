/* The last error of each thread, and the codes of what a bundle raises. Included by aot.h, after what it declares. */
#ifndef AOT_DETAIL_ERRORS_H_
#define AOT_DETAIL_ERRORS_H_

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "linkage.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct aot_error_state {
  int code;
  size_t room;
  char* text;
} aot_error_state;

AOT_SHARED_DATA pthread_key_t aot_error_key_;
AOT_SHARED_DATA pthread_once_t aot_error_once_ = PTHREAD_ONCE_INIT;
AOT_SHARED_DATA aot_error_state aot_no_memory_ = {AOT_ERROR_OTHER, 0, NULL}; /* of threads that could not have their own */

void aot_free_error_(void* memory);
void aot_make_error_key_(void);
aot_error_state* aot_error_state_(void);
int aot_fail_text_(int code, const char* text, size_t size);
int aot_fail_(int code, const char* format, const char* first, const char* second, const char* third);
void aot_receive_error_(void* context, const char* kind, size_t kind_size, const char* text, size_t text_size);

AOT_SHARED void aot_free_error_(void* memory) {
  aot_error_state* state = (aot_error_state*)memory;
  if (state == &aot_no_memory_) return;
  free(state->text);
  free(state);
}

AOT_SHARED void aot_make_error_key_(void) {
  if (pthread_key_create(&aot_error_key_, aot_free_error_) != 0) aot_error_key_ = (pthread_key_t)-1;
}

/* To be written to; NULL if memory ran out, which this thread's aot_last_error then says. */
AOT_SHARED aot_error_state* aot_error_state_(void) {
  pthread_once(&aot_error_once_, aot_make_error_key_);
  aot_error_state* state = (aot_error_state*)pthread_getspecific(aot_error_key_);
  if (state != NULL && state != &aot_no_memory_) return state;
  state = (aot_error_state*)calloc(1, sizeof *state);
  if (state != NULL && pthread_setspecific(aot_error_key_, state) == 0) return state;
  free(state);
  pthread_setspecific(aot_error_key_, &aot_no_memory_);
  return NULL;
}

AOT_SHARED int aot_fail_text_(int code, const char* text, size_t size) {
  aot_error_state* state = aot_error_state_();
  if (state == NULL) return code;
  state->code = code;
  if (state->room <= size) {
    char* grown = (char*)realloc(state->text, size + 1);
    if (grown == NULL) free(state->text);
    state->text = grown;
    state->room = grown == NULL ? 0 : size + 1;
    if (grown == NULL) return code;
  }
  memcpy(state->text, text, size);
  state->text[size] = '\0';
  return code;
}

/* `format` holds three %s at most. */
AOT_SHARED int aot_fail_(int code, const char* format, const char* first, const char* second, const char* third) {
  const char* pieces[3];
  char text[2048];
  size_t at = 0, piece = 0;
  pieces[0] = first;
  pieces[1] = second;
  pieces[2] = third;
  for (const char* c = format; *c != '\0' && at + 1 < sizeof text; ++c) {
    if (c[0] != '%' || c[1] != 's') {
      text[at++] = *c;
      continue;
    }
    const char* insert = pieces[piece++] == NULL ? "" : pieces[piece - 1];
    size_t size = strlen(insert);
    if (size > sizeof text - 1 - at) size = sizeof text - 1 - at;
    memcpy(text + at, insert, size);
    at += size;
    ++c;
  }
  return aot_fail_text_(code, text, at);
}

/* Keeps what a bundle raised; `context` points to the code to return. */
AOT_SHARED void aot_receive_error_(void* context, const char* kind, size_t kind_size, const char* text,
                                   size_t text_size) {
  static const struct {
    const char* kind;
    int code;
  } known[] = {
      /* errors: written by tools/errors.py */
      {"AotUsageError", AOT_ERROR_USAGE},
      {"AotArgumentError", AOT_ERROR_ARGUMENT},
      {"AotBundleError", AOT_ERROR_BUNDLE},
      {"AotDeviceError", AOT_ERROR_DEVICE},
      {"AotDriverError", AOT_ERROR_DRIVER},
      {"AotCudaError", AOT_ERROR_CUDA},
      {"AotTvmFfiError", AOT_ERROR_TVM_FFI},
      {"AotNotFoundError", AOT_ERROR_NOT_FOUND},
      {"AotHostError", AOT_ERROR_HOST},
      {"AotVersionError", AOT_ERROR_VERSION},
      {"AotDigestError", AOT_ERROR_DIGEST},
      {"AotCaptureError", AOT_ERROR_CAPTURE},
      {"AotSignatureError", AOT_ERROR_SIGNATURE},
      /* end of errors */
      {"TypeError", AOT_ERROR_ARGUMENT}, /* raised by the launchers that CuTe DSL compiles */
      {"ValueError", AOT_ERROR_ARGUMENT},
  };
  int code = AOT_ERROR_OTHER;
  for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i) {
    if (strlen(known[i].kind) == kind_size && memcmp(known[i].kind, kind, kind_size) == 0) code = known[i].code;
  }
  if (text_size == 0) {
    static const char silent[] = "the bundle reported a failure and gave no reason";
    text = silent;
    text_size = sizeof silent - 1;
  }
  *(int*)context = aot_fail_text_(code, text, text_size);
}

/* The code of what was just raised, with its text kept for aot_last_error. */
static inline int aot_raised_(const aot_core* core) {
  int code = AOT_ERROR_OTHER;
  core->take_error(&code, aot_receive_error_);
  return code;
}

AOT_SHARED int aot_last_error(int* code, const char** text) {
  pthread_once(&aot_error_once_, aot_make_error_key_);
  const aot_error_state* state = (const aot_error_state*)pthread_getspecific(aot_error_key_);
  if (code != NULL) *code = state == NULL ? AOT_OK : state->code;
  if (text != NULL) *text = state == NULL ? "" : state->text == NULL ? "out of memory" : state->text;
  return AOT_OK;
}

static inline const char* aot_error_text(void) {
  const char* text = "";
  aot_last_error(NULL, &text);
  return text;
}


int aot_refuse_version_(const char* what, uint32_t major, uint32_t minor);
int aot_refuse_unopened_(void);

AOT_SHARED int aot_refuse_unopened_(void) {
  return aot_fail_(AOT_ERROR_USAGE, "the bundle was never opened", NULL, NULL, NULL);
}

AOT_SHARED int aot_refuse_version_(const char* what, uint32_t major, uint32_t minor) {
  char numbers[64];
  snprintf(numbers, sizeof numbers, "%lu.%lu of the protocol, this header speaks %d.%d", (unsigned long)major,
           (unsigned long)minor, AOT_PROTOCOL_MAJOR, AOT_PROTOCOL_MINOR);
  return aot_fail_(AOT_ERROR_VERSION, "%s speaks version %s\nhint: build the bundle and the program with the same "
                   "cute-aot", what, numbers, NULL);
}

#ifdef __cplusplus
}
#endif

#endif /* AOT_DETAIL_ERRORS_H_ */
