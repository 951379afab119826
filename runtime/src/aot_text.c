#include "aot_text.h"

#include <stdio.h>
#include <stdlib.h>

static int reserve(aot_text_t* text, size_t extra) {
  size_t needed = text->length + extra + 1;
  if (needed <= text->capacity) return 1;
  size_t capacity = needed < 512 ? 512 : needed * 2;
  char* data = (char*)realloc(text->data, capacity);
  if (data == NULL) {
    text->failed = 1;
    return 0;
  }
  text->data = data;
  text->capacity = capacity;
  return 1;
}

void aot_text_append_list(aot_text_t* text, const char* format, va_list arguments) {
  va_list again;
  if (text->failed) return;
  va_copy(again, arguments);
  int size = vsnprintf(NULL, 0, format, arguments);
  if (size >= 0 && reserve(text, (size_t)size)) {
    vsnprintf(text->data + text->length, (size_t)size + 1, format, again);
    text->length += (size_t)size;
  }
  va_end(again);
}

void aot_text_append(aot_text_t* text, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  aot_text_append_list(text, format, arguments);
  va_end(arguments);
}

const char* aot_text_get(const aot_text_t* text) { return text->failed || text->data == NULL ? "" : text->data; }

void aot_text_free(aot_text_t* text) {
  free(text->data);
  text->data = NULL;
  text->length = text->capacity = 0;
}
