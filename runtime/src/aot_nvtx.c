#include "aot_nvtx.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Numbers of NVTX 3 (nvtxTypes.h), which its tools rely on. */
enum {
  MODULE_CORE = 1,
  MODULE_COUNT = 7, /* CORE, CUDA, OPENCL, CUDART, CORE2, SYNC, from 1 on */
  CORE_RANGE_PUSH = 9,
  CORE_RANGE_POP = 11,
  MOST_FUNCTIONS = 16, /* of a module, the unused number 0 included */
  TABLE_CALLBACKS = 1,
  TABLE_VERSION = 3,
  NVTX_VERSION = 3
};

typedef void (*function_t)(void);
typedef struct {
  size_t size;
  int (*get_module)(int module, function_t*** table, unsigned* count);
} callbacks_t;
typedef struct {
  size_t size;
  uint32_t version;
  uint32_t reserved;
  void (*set_injection_version)(uint32_t);
} version_t;
typedef const void* (*get_table_t)(uint32_t);

static const unsigned counts[MODULE_COUNT] = {0, 16, 9, 15, 7, 16, 7};
static function_t functions[MODULE_COUNT][MOST_FUNCTIONS];      /* what the profiler fills in */
static function_t* addresses[MODULE_COUNT][MOST_FUNCTIONS + 1]; /* where it does; ends with NULL */

static int get_module(int module, function_t*** table, unsigned* count) {
  if (module < MODULE_CORE || module >= MODULE_COUNT) return 0;
  if (table != NULL) *table = addresses[module];
  if (count != NULL) *count = counts[module];
  return 1;
}

static void set_injection_version(uint32_t version) { (void)version; }

static const void* get_table(uint32_t which) {
  static const callbacks_t callbacks = {sizeof callbacks, get_module};
  static const version_t version = {sizeof version, NVTX_VERSION, 0, set_injection_version};
  if (which == TABLE_CALLBACKS) return &callbacks;
  return which == TABLE_VERSION ? &version : NULL;
}

int aot_nvtx_attach(void) {
  const char* path = getenv("NVTX_INJECTION64_PATH");
  void* library = path == NULL || path[0] == '\0' ? NULL : dlopen(path, RTLD_LAZY);
  void* symbol = library == NULL ? NULL : dlsym(library, "InitializeInjectionNvtx2");
  int (*initialize)(get_table_t) = NULL;
  memcpy(&initialize, &symbol, sizeof symbol);
  if (initialize == NULL) return 0;
  for (int module = MODULE_CORE; module < MODULE_COUNT; ++module) {
    for (unsigned i = 1; i < counts[module]; ++i) addresses[module][i] = &functions[module][i];
  }
  if (initialize(get_table) == 0) return 0;
  return functions[MODULE_CORE][CORE_RANGE_PUSH] != NULL && functions[MODULE_CORE][CORE_RANGE_POP] != NULL;
}

void aot_nvtx_push(const char* name) {
  int (*push)(const char*);
  memcpy(&push, &functions[MODULE_CORE][CORE_RANGE_PUSH], sizeof push);
  push(name);
}

void aot_nvtx_pop(void) {
  int (*pop)(void);
  memcpy(&pop, &functions[MODULE_CORE][CORE_RANGE_POP], sizeof pop);
  pop();
}
