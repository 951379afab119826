#include "aot_error.h"

#include <string.h>

#include <tvm/ffi/c_api.h>

static const char OUT_OF_MEMORY[] = "out of memory";
static TVMFFIObjectHandle spare; /* an error that says so */

static TVMFFIByteArray bytes_of(const char* text) {
  TVMFFIByteArray bytes = {text, strlen(text)};
  return bytes;
}

/* With an empty backtrace. TVM-FFI would collect one otherwise: the first takes a third of a second, and a mutex in
 * there hangs the children of a process that forks meanwhile. Nobody needs it: the text says what to do. */
static TVMFFIObjectHandle create(const char* kind, const char* text) {
  TVMFFIByteArray kind_bytes = bytes_of(kind), text_bytes = bytes_of(text), backtrace = {"", 0};
  TVMFFIObjectHandle error = NULL;
  return TVMFFIErrorCreate(&kind_bytes, &text_bytes, &backtrace, &error) == 0 ? error : NULL;
}

void aot_error_prepare(void) {
  if (__atomic_load_n(&spare, __ATOMIC_ACQUIRE) != NULL) return;
  TVMFFIObjectHandle expected = NULL, error = create("AotBundleError", OUT_OF_MEMORY);
  if (error == NULL) return;
  if (!__atomic_compare_exchange_n(&spare, &expected, error, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    TVMFFIObjectDecRef(error);
  }
}

int aot_raise_out_of_memory(void) {
  TVMFFIObjectHandle error = create("AotBundleError", OUT_OF_MEMORY);
  if (error == NULL) {
    TVMFFIObjectHandle kept = __atomic_load_n(&spare, __ATOMIC_ACQUIRE);
    if (kept != NULL) TVMFFIErrorSetRaised(kept);
    return -1;
  }
  TVMFFIErrorSetRaised(error); /* holds on to it by itself */
  TVMFFIObjectDecRef(error);
  return -1;
}

int aot_raise_text(const char* kind, aot_text_t* text) {
  TVMFFIObjectHandle error = text->failed ? NULL : create(kind, aot_text_get(text));
  aot_text_free(text);
  if (error == NULL) return aot_raise_out_of_memory();
  TVMFFIErrorSetRaised(error);
  TVMFFIObjectDecRef(error);
  return -1;
}

int aot_raise(const char* kind, const char* format, ...) {
  aot_text_t text = AOT_TEXT_EMPTY;
  va_list arguments;
  va_start(arguments, format);
  aot_text_append_list(&text, format, arguments);
  va_end(arguments);
  return aot_raise_text(kind, &text);
}

void aot_error_prefix(const char* kind, const char* function, const char* variant) {
  TVMFFIObjectHandle raised = NULL;
  TVMFFIErrorMoveFromRaised(&raised);
  if (raised == NULL) return;
  const TVMFFIErrorCell* cell = (const TVMFFIErrorCell*)((const char*)raised + sizeof(TVMFFIObject));
  if (cell->kind.size == strlen(kind) && memcmp(cell->kind.data, kind, cell->kind.size) == 0) {
    aot_raise(kind, "%s: %s: %.*s", function, variant, (int)cell->message.size, cell->message.data);
  } else {
    TVMFFIErrorSetRaised(raised);
  }
  TVMFFIObjectDecRef(raised);
}

void aot_error_clear(void) {
  TVMFFIObjectHandle raised = NULL;
  TVMFFIErrorMoveFromRaised(&raised);
  if (raised != NULL) TVMFFIObjectDecRef(raised);
}
