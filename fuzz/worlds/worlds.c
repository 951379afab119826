/* Calls into bundles that a seed makes up. Entries note what they are given, and a plain model of dispatch says what
 * each call must come to. The sanitizers find what it must not touch.
 *
 * usage: worlds SEED FIRST COUNT */
#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#include <tvm/ffi/extra/c_env_api.h>

#include "aot_workspace.h"
#include "entry.h"

#define CALLS 24 /* of one world */

static uint64_t succeeded, refused;

/* Whether an error was raised; it is taken away. */
static int raised(void) {
  TVMFFIObjectHandle error = NULL;
  TVMFFIErrorMoveFromRaised(&error);
  if (error != NULL) TVMFFIObjectDecRef(error);
  return error != NULL;
}

/* How much scratch memory some variant needs: what is given is often about as much. */
static int64_t needed_somewhere(void) {
  const library_t* of = &world->libraries[below(2)];
  return model_bytes(of, &of->variants[below(of->group.variant_count)]);
}

/* What was logged since it was last asked, or its end; NULL if nothing is logged. */
static const char* newly_logged(void) {
  static char text[1 << 15];
  static int file = -1;
  size_t used = 0;
  if (getenv("AOT_LOG") == NULL) return NULL;
  if (file < 0 && (file = open(getenv("AOT_LOG"), O_RDONLY)) < 0) abort();
  for (ssize_t got; (got = read(file, text + used, sizeof text - 1 - used)) > 0;) {
    used += (size_t)got;
    if (used > sizeof text / 2) memmove(text, text + used / 2, used -= used / 2);
  }
  text[used] = '\0';
  return text;
}

/* A call that a variant answers is logged with its name. */
static int is_logged(const library_t* of, const aot_variant_t* variant) {
  char selected[64];
  const char* text = newly_logged();
  snprintf(selected, sizeof selected, "selects %s %s for", of->tables.arch, variant->name);
  return text == NULL || strstr(text, selected) != NULL;
}

/* `way`: 0 a call, 1 one of a variant by name, 2 a question for scratch memory. */
static const char* check(int way) {
  const library_t* of = NULL;
  TVMFFIAny* args = make_arguments();
  TVMFFIAny result;
  aot_arguments_t decoded;
  int unsound, count = below(40) ? ARGUMENTS : (int)below(ARGUMENTS);
  char name[16];
  snprintf(name, sizeof name, "%c%d", below(2) ? 'v' : 'w', (int)below(VARIANTS));
  memset(&result, 0, sizeof result);
  model_arguments(args, &unsound);
  give_scratch(&args[SCRATCH], needed_somewhere());
  int32_t device = model_arguments(args, &unsound);
  aot_arguments_decode(&decoded, args, ARGUMENTS);
  aot_arguments_open_tuples(&decoded, &world->libraries[0].group);
  int expected = -1;
  if (count == ARGUMENTS && device == 0) expected = way == 1 ? model_named(unsound, name, &of)
      : model_choose(unsound, &decoded, &of);
  const aot_variant_t* variant = expected < 0 ? NULL : &of->variants[expected];
  int64_t bytes = variant == NULL ? -1 : model_bytes(of, variant);
  int loaded = variant != NULL && (variant->state->loaded_on & 1);
  int runs = variant != NULL && model_takes(of, variant);
  if (runs && way == 2) runs = bytes >= 0;
  else if (runs) runs = (loaded || !model_is_captured(variant)) && model_knows_clusters(variant);
  if (runs && way != 2 && variant->workspace != NULL) runs = model_has_room(variant, bytes);
  ran = -1;
  int status = way == 0   ? aot_dispatch(&world->function, args, count, &result)
               : way == 1 ? aot_dispatch_variant(&world->function, name, args, count, &result)
                          : aot_dispatch_workspace(&world->function, args, count, &result);
  int error = raised();
  if (status == 0) ++succeeded;
  else ++refused;
  if (status != 0 && status != -1) return "the status is neither 0 nor -1";
  if ((status == 0) == error) return "an error without a failure, or a failure without an error";
  if (live != 0) return "scratch memory was not given back";
  if ((status == 0) != runs) return status == 0 ? "it must be refused" : "it must be taken";
  if (status != 0) return NULL;
  if (way == 2) return result.type_index == kTVMFFIInt && result.v_int64 == bytes ? NULL
      : "another size of scratch memory";
  if (ran != expected + VARIANTS * (of == &world->libraries[1])) return "another variant ran";
  if (way == 0 && !is_logged(of, variant)) return "it was not logged";
  return wrong_arguments(of, variant, bytes);
}

static void end_case(void) {
  while (pointer_count > 0) free(pointers[--pointer_count]);
}

int main(int count, char** arguments) {
  if (count != 4) return 2;
  uint64_t seed = strtoull(arguments[1], NULL, 10), first = strtoull(arguments[2], NULL, 10);
  uint64_t cases = strtoull(arguments[3], NULL, 10), wrong = 0;
  const standin_device devices[] = {{9, 0, 132}, {8, 0, 108}};
  standin_reset(2, devices, 13000);
  standin_set_recording(0);
  standin_add_stream(CAPTURED, 0);
  standin_begin_capture(CAPTURED, 0);
  for (uint64_t at = first - first % CALLS; at < first + cases; at += CALLS) {
    state = seed * UINT64_C(0xD1342543DE82EF95) + at;
    make_world();
    allocator_works = (int)below(4) != 0;
    TVMFFIEnvSetDLPackManagedTensorAllocator(allocator_works ? (DLPackManagedTensorAllocator)allocate : NULL, 0,
        NULL);
    for (uint64_t call = 0; call < CALLS && at + call < first + cases; ++call) {
      const char* found = check(below(4) ? 0 : 1 + (int)below(2));
      if (found != NULL) printf("case %" PRIu64 ": %s\n", at + call, found);
      wrong += found != NULL;
      end_case();
    }
    end_world();
  }
  printf("cases %" PRIu64 " succeeded %" PRIu64 " refused %" PRIu64 " findings %" PRIu64 "\n", cases, succeeded,
      refused,
         wrong);
  return wrong != 0;
}
