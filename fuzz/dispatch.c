/* Calls into an entry library with arguments of every kind. Prints one line per answer that is not one: a failure
 * without an error, an error without a failure. The sanitizers find the rest: what arguments point to is as large as
 * they say, and not a byte larger.
 *
 * usage: dispatch SEED FIRST COUNT ENTRY FUNCTION... */
#include <dlfcn.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tvm/ffi/c_api.h>

#include "../tests/standin/state.h"
#include "random.h"

#define MOST_ARGUMENTS 8
#define MOST_POINTERS 256

/* What a case has allocated. */
static void* pointers[MOST_POINTERS];
static int pointer_count;

static void* room(size_t size) {
  if (pointer_count == MOST_POINTERS) abort(); /* a case makes fewer */
  void* memory = malloc(size ? size : 1);
  if (memory == NULL) abort();
  memset(memory, 0, size);
  return pointers[pointer_count++] = memory;
}

static void free_all(void) {
  while (pointer_count > 0) free(pointers[--pointer_count]);
}

static int64_t number(void) {
  const int64_t edges[] = {INT64_MIN, INT64_MIN + 1, INT32_MIN, -1, 0, 1, 7, INT32_MAX, INT64_C(1) << 32, INT64_MAX};
  return below(2) ? below(1025) : edges[below(10)];
}

static const char* const* names;
static int name_count;
static const char* directory;

typedef struct {
  TVMFFIObject header;
  DLTensor tensor;
} tensor_object_t;
typedef struct {
  TVMFFIObject header;
  TVMFFISeqCell cell;
} tuple_object_t;
typedef struct {
  TVMFFIObject header;
  TVMFFIByteArray bytes;
} text_object_t;

static TVMFFIObject header(int32_t type) {
  TVMFFIObject made;
  memset(&made, 0, sizeof made);
  made.combined_ref_count = (UINT64_C(1) << 32) | (1 << 20); /* never freed by whoever takes a reference */
  made.type_index = type;
  return made;
}

static int64_t* extents(int32_t count, int sound, const int64_t* shape) {
  int64_t* made = (int64_t*)room((size_t)(count > 0 ? count : 0) * sizeof(int64_t));
  int64_t contiguous = 1;
  for (int32_t i = count - 1; i >= 0; --i) {
    if (!sound) made[i] = number();
    else made[i] = shape == NULL ? 1 + below(64) : contiguous;
    if (shape != NULL && sound) contiguous *= shape[i];
  }
  return made;
}

static void fill_tensor(DLTensor* tensor) {
  static const uint8_t codes[] = {kDLFloat, kDLBfloat, kDLInt, kDLUInt}, bits[] = {32, 16, 32, 8, 64, 4};
  int sound = below(3) != 0;
  memset(tensor, 0, sizeof *tensor);
  tensor->data = (void*)(uintptr_t)(below(20) == 0 ? 0 : 0x7F0000000000 + below(64) * (sound ? 4096 : 1));
  tensor->device.device_type = sound || below(2) ? kDLCUDA : (DLDeviceType)below(20);
  tensor->device.device_id = sound ? (int32_t)below(2) : (int32_t)number();
  tensor->dtype.code = sound ? codes[below(2)] : (uint8_t)next();
  tensor->dtype.bits = sound ? bits[below(3)] : (below(2) ? bits[below(6)] : (uint8_t)next());
  tensor->dtype.lanes = sound || below(2) ? 1 : (uint16_t)next();
  tensor->ndim = (int32_t)(sound ? 1 + (below(6) == 0) : below(6));
  tensor->byte_offset = sound ? 0 : (uint64_t)number();
  tensor->shape = extents(tensor->ndim, sound, NULL);
  tensor->strides = extents(tensor->ndim, sound, tensor->shape);
  if (sound) return;
  if (below(12) == 0) tensor->ndim = (int32_t)(INT32_MIN + below(3)); /* nothing may be read then */
  if (below(12) == 0) tensor->shape = NULL;
  if (below(12) == 0) tensor->strides = NULL;
}

static void fill_text(TVMFFIAny* any) {
  const char* const texts[] = {"", "fill", "nothing", directory, "relative/path", "%s%n", "/nowhere"};
  const char* text = below(3) ? names[below(name_count)] : texts[below(7)];
  size_t size = strlen(text);
  switch (below(3)) {
    case 0:
      any->type_index = kTVMFFIRawStr;
      any->v_c_str = (const char*)memcpy(room(size + 1), text, size + 1);
      return;
    case 1:
      any->type_index = kTVMFFISmallStr;
      any->small_str_len = (uint32_t)(size < 7 ? size : 7);
      memcpy(any->v_bytes, text, any->small_str_len);
      return;
    default: break;
  }
  text_object_t* object = (text_object_t*)room(sizeof *object);
  object->header = header(kTVMFFIStr);
  object->bytes.data = (const char*)memcpy(room(size), text, size);
  object->bytes.size = size;
  any->type_index = kTVMFFIStr;
  any->v_obj = &object->header;
}

static void fill_any(TVMFFIAny* any, int depth);

static void fill_tuple(TVMFFIAny* any, int depth) {
  tuple_object_t* object = (tuple_object_t*)room(sizeof *object);
  int64_t size = below(4);
  TVMFFIAny* elements = (TVMFFIAny*)room((size_t)size * sizeof(TVMFFIAny));
  for (int64_t i = 0; i < size; ++i) fill_any(&elements[i], depth + 1);
  object->header = header(kTVMFFIArray);
  object->cell.data = elements;
  object->cell.size = object->cell.capacity = size;
  any->type_index = kTVMFFIArray;
  any->v_obj = &object->header;
}

static void fill_tensor_argument(TVMFFIAny* any) {
  if (below(2)) {
    tensor_object_t* object = (tensor_object_t*)room(sizeof *object);
    object->header = header(kTVMFFITensor);
    fill_tensor(&object->tensor);
    any->type_index = kTVMFFITensor;
    any->v_obj = &object->header;
  } else {
    any->type_index = kTVMFFIDLTensorPtr;
    any->v_ptr = below(30) == 0 ? NULL : room(sizeof(DLTensor));
    if (any->v_ptr != NULL) fill_tensor((DLTensor*)any->v_ptr);
  }
}

static void fill_any(TVMFFIAny* any, int depth) {
  static const double values[] = {0.5, 0.0, -1.0, 1e300};
  memset(any, 0, sizeof *any);
  switch (below(depth < 3 ? 12 : 10)) {
    case 0: any->type_index = kTVMFFINone; return;
    case 1: any->type_index = kTVMFFIInt; any->v_int64 = number(); return;
    case 2: any->type_index = kTVMFFIBool; any->v_int64 = below(2); return;
    case 3: any->type_index = kTVMFFIFloat; any->v_float64 = below(4) ? values[below(4)] : NAN; return;
    case 4: any->type_index = kTVMFFIOpaquePtr; any->v_ptr = (void*)(uintptr_t)(below(2) * 0x7F0000000000); return;
    case 5: any->type_index = (int32_t)(below(2) ? kTVMFFIDataType : kTVMFFIDevice); any->v_int64 = number(); return;
    case 6: fill_text(any); return;
    case 10: case 11: fill_tuple(any, depth); return;
    default: fill_tensor_argument(any); return;
  }
}

/* Arguments that some function takes, so that calls come to a launch. */
static int fill_sound(const char* name, TVMFFIAny* args) {
  int count = strcmp(name, "fill") == 0 || strcmp(name, "fill_optional") == 0 ? 2 : 1;
  memset(args, 0, 2 * sizeof *args);
  args[0].type_index = kTVMFFIDLTensorPtr;
  args[0].v_ptr = room(sizeof(DLTensor));
  fill_tensor((DLTensor*)args[0].v_ptr);
  if (strcmp(name, "fill") == 0) {
    args[1].type_index = kTVMFFIFloat;
    args[1].v_float64 = 2.0;
  }
  return count;
}

/* A text in the place where the functions of the protocol take one, and numbers where they take numbers. */
static int fill_protocol(const char* name, TVMFFIAny* args) {
  int count = (int)below(MOST_ARGUMENTS + 1);
  for (int i = 0; i < count; ++i) {
    fill_any(&args[i], 0);
    if (below(3) != 0) {
      args[i].type_index = kTVMFFIInt;
      args[i].v_int64 = below(4) ? below(12) : number();
    }
  }
  int text = strcmp(name, "aot__configure") == 0 ? 1 : 0;
  if (count > text && below(4) != 0) fill_text(&args[text]);
  return count;
}

static int fill_arguments(const char* name, TVMFFIAny* args) {
  if (strncmp(name, "aot__", 5) == 0) return fill_protocol(name, args);
  if (below(3) == 0) return fill_sound(name, args);
  int count = (int)(below(6) == 0 ? below(MOST_ARGUMENTS + 1) : 1 + below(3));
  for (int i = 0; i < count; ++i) fill_any(&args[i], 0);
  return count;
}

static uint64_t succeeded, refused;

/* What is wrong with an answer; NULL if nothing is. */
static const char* wrong_with(int status) {
  TVMFFIObjectHandle raised = NULL;
  TVMFFIErrorMoveFromRaised(&raised);
  if (status == 0) ++succeeded;
  else ++refused;
  const char* wrong = status == 0 && raised != NULL ? "an error is set though the call succeeded" : NULL;
  if (status == -1 && raised == NULL) wrong = "the call failed without an error";
  if (status != 0 && status != -1) wrong = "the status is neither 0 nor -1";
  if (raised != NULL) {
    const TVMFFIErrorCell* cell = (const TVMFFIErrorCell*)((const char*)raised + sizeof(TVMFFIObject));
    if (cell->kind.size == 0 || cell->message.size == 0) wrong = "the error has no kind or no message";
    TVMFFIObjectDecRef(raised);
  }
  return wrong;
}

typedef int (*entry_t)(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result);

/* A loader that tells the library another directory would only make all later calls fail. */
static void keep_directory(TVMFFIAny* args, int count) {
  if (count != 2 || args[0].type_index != kTVMFFIInt) return;
  memset(&args[1], 0, sizeof args[1]);
  args[1].type_index = kTVMFFIRawStr;
  args[1].v_c_str = directory;
}

/* Whether the case is a finding. */
static int check(uint64_t case_number, const entry_t* entries) {
  int which = (int)below(name_count);
  TVMFFIAny given[MOST_ARGUMENTS], result;
  int count = fill_arguments(names[which], given);
  if (strcmp(names[which], "aot__configure") == 0) keep_directory(given, count);
  TVMFFIAny* args = (TVMFFIAny*)room((size_t)count * sizeof(TVMFFIAny));
  memcpy(args, given, (size_t)count * sizeof(TVMFFIAny));
  memset(&result, 0, sizeof result);
  const char* wrong = wrong_with(entries[which](NULL, args, count, &result));
  if (wrong != NULL) printf("case %" PRIu64 ": %s: %s\n", case_number, names[which], wrong);
  if (result.type_index >= kTVMFFIStaticObjectBegin) TVMFFIObjectDecRef(result.v_obj);
  free_all();
  return wrong != NULL;
}

static void configure(entry_t entry) {
  TVMFFIAny args[2], result;
  memset(args, 0, sizeof args);
  memset(&result, 0, sizeof result);
  args[0].type_index = kTVMFFIInt;
  args[0].v_int64 = 1;
  keep_directory(args, 2);
  if (entry(NULL, args, 2, &result) != 0) abort();
}

int main(int count, char** arguments) {
  if (count < 6) return 2;
  uint64_t seed = strtoull(arguments[1], NULL, 10), first = strtoull(arguments[2], NULL, 10);
  uint64_t cases = strtoull(arguments[3], NULL, 10), wrong = 0;
  const standin_device devices[] = {{9, 0, 132}, {8, 0, 108}};
  standin_reset(2, devices, 13000);
  standin_set_recording(0);
  char* folder = strdup(arguments[4]);
  *strrchr(folder, '/') = '\0';
  directory = folder;
  names = (const char* const*)&arguments[5];
  name_count = count - 5;
  void* library = dlopen(arguments[4], RTLD_NOW | RTLD_LOCAL);
  entry_t* entries = (entry_t*)calloc((size_t)name_count, sizeof(entry_t));
  if (library == NULL || entries == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  for (int i = 0; i < name_count; ++i) {
    char symbol[300];
    snprintf(symbol, sizeof symbol, "__tvm_ffi_%s", names[i]);
    *(void**)&entries[i] = dlsym(library, symbol);
    if (entries[i] == NULL) return 2;
    if (strcmp(names[i], "aot__configure") == 0) configure(entries[i]);
  }
  for (uint64_t at = first; at < first + cases; ++at) {
    state = seed * UINT64_C(0xD1342543DE82EF95) + at;
    wrong += (uint64_t)check(at, entries);
  }
  printf("cases %" PRIu64 " succeeded %" PRIu64 " refused %" PRIu64 " findings %" PRIu64 "\n", cases, succeeded, refused,
         wrong);
  free(folder);
  free(entries);
  return wrong != 0;
}
