/* The C headers and a generated one, in two units of one program: the linker keeps one of everything. */
#include <aot/aot.h>
#include <bundle.h>

int error_from_c(void);
const char* text_from_c(void);

int error_from_c(void) {
  aot_bundle bundle;
  return aot_open("/nowhere/from/c", NULL, &bundle);
}

const char* text_from_c(void) { return aot_error_text(); }
