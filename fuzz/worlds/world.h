/* A bundle that a seed makes up: two libraries of one function, with trees, measured tables, workspaces, batches of
 * one and constants. All of it is sound, except a measured table now and then. */
#ifndef FUZZ_WORLDS_WORLD_H_
#define FUZZ_WORLDS_WORLD_H_

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../tests/standin/state.h"
#include "../random.h"
#include "aot_dispatch.h"
#include "aot_tuning.h"

#define ARGUMENTS 6 /* a tensor, an optional one, an int, a float or a stream, a tuple of two, scratch memory */
#define SLOTS 8
#define OPTIONAL 1
#define STREAM 3
#define TUPLE 4
#define SCRATCH 5
#define SUBJECTS 32
#define STEPS 768
#define REQUIREMENTS 24
#define VARIANTS 16
#define NODES 12
#define BRANCHES 512
#define TABLES 4
#define EXTENTS 3
#define FIRST_EXTENT 2 /* of the subjects that are extents of tensors, as tables ask for; the first two are programs */
#define CAPTURED UINT64_C(0x5000)

static int32_t get_device(int32_t* device) { return *device = 0; }
static int32_t set_device(int32_t device) {
  standin_set_current_device(device);
  return 0;
}
static const char* error_text(int32_t code) { return code == 0 ? "none" : "an error"; }
static int32_t zero(void* address, size_t bytes, void* stream) {
  (void)stream;
  memset(address, 0, bytes);
  return 0;
}
static void imported(void) {}

static const aot_provided_t provided[] = {
    {"_cudaGetDevice", (void*)get_device}, {"_cudaSetDevice", (void*)set_device}, {"aot_cuda_error_name",
        (void*)error_text},
    {"aot_cuda_error_text", (void*)error_text}, {"aot_cuda_zero", (void*)zero}, {"imported", (void*)imported},
        {NULL, NULL}};
const aot_bundle_t aot_this_bundle = {"worlds", {NULL, 0, {0}}, provided};
const char aot_identity[65] = "";
aot_function_t* const aot_functions[] = {NULL};
const uint32_t aot_function_count = 0;

typedef struct {
  aot_subject_t subjects[SUBJECTS];
  aot_step_t steps[STEPS];
  aot_requirement_t requirements[REQUIREMENTS];
  aot_node_t nodes[2 * NODES];
  aot_branch_t branches[BRANCHES];
  aot_region_t regions[4];
  aot_constant_t constants[4];
  aot_variant_t variants[VARIANTS];
  aot_variant_state_t states[VARIANTS];
  int32_t clusters[VARIANTS][AOT_MAX_DEVICES];
  void* loaded[VARIANTS];
  char names[VARIANTS][16];
  uint32_t own[VARIANTS][REQUIREMENTS];
  uint8_t sources[VARIANTS][16];
  aot_workspace_t workspaces[VARIANTS];
  aot_slot_t slots[SLOTS];
  aot_group_t group;
  aot_tunable_t tunable;
  uint32_t tuned_subjects[VARIANTS * EXTENTS];
  int32_t plain_root;
  void* import;
  aot_import_t imports;
  aot_kernel_library_t tables;
} library_t;

typedef struct {
  const char* names[VARIANTS];
  uint32_t bound_counts[EXTENTS + 2];
  int64_t bounds[EXTENTS][6];
  int64_t packed[EXTENTS * 6];
  uint8_t* cells;  /* one for each combination of bins */
  uint8_t* packed_cells;
  uint8_t* rows;
  int sound;
} set_t;

typedef struct {
  library_t libraries[2];
  aot_build_t builds[2];
  aot_kernel_t kernel;
  aot_function_t function;
  aot_tuning_t tables[TABLES];
  aot_tuned_set_t sets[TABLES][2];
  set_t contents[TABLES][2];
} world_t;

static world_t* world;

/* What an entry saw. */
static int ran; /* the entry of which variant, counted over both libraries; -1: none */
static TVMFFIAny seen[16];
static DLTensor seen_tensors[16];
static int64_t seen_extents[16][2][AOT_MAX_MADE];
static int seen_count;

static int note(int variant, const TVMFFIAny* args, int32_t count);
#define ENTRY(n) \
  static int entry_##n(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) { \
    (void)self, (void)result; \
    return note(n, args, count); \
  }
ENTRY(0) ENTRY(1) ENTRY(2) ENTRY(3) ENTRY(4) ENTRY(5) ENTRY(6) ENTRY(7) ENTRY(8) ENTRY(9) ENTRY(10) ENTRY(11)
    ENTRY(12)
ENTRY(13) ENTRY(14) ENTRY(15) ENTRY(16) ENTRY(17) ENTRY(18) ENTRY(19) ENTRY(20) ENTRY(21) ENTRY(22) ENTRY(23)
    ENTRY(24)
ENTRY(25) ENTRY(26) ENTRY(27) ENTRY(28) ENTRY(29) ENTRY(30) ENTRY(31)
static const TVMFFISafeCallType entries[2 * VARIANTS] = {
    entry_0,  entry_1,  entry_2,  entry_3,  entry_4,  entry_5,  entry_6,  entry_7,  entry_8,  entry_9,  entry_10,
    entry_11, entry_12, entry_13, entry_14, entry_15, entry_16, entry_17, entry_18, entry_19, entry_20, entry_21,
    entry_22, entry_23, entry_24, entry_25, entry_26, entry_27, entry_28, entry_29, entry_30, entry_31};

static int32_t load_libraries(void** libraries) {
  *libraries = (void*)libraries;
  return 0;
}
static int32_t load_kernels(void** libraries, int32_t device) { return *libraries == NULL || device != 0; }

static int64_t edge(void) {
  const int64_t edges[] = {INT64_MIN, INT64_MIN + 1, -7, -1, 0, 1, 2, 16, INT32_MAX, INT64_C(1) << 40, INT64_MAX};
  return below(4) ? below(70) : edges[below(11)];
}

/* Pushes leaves and joins them; ends with one value. */
static uint32_t make_program(library_t* made, uint32_t at) {
  int depth = 0, left = 1 + (int)below(9);
  while (left > 0 || depth > 1) {
    aot_step_t* step = &made->steps[at++];
    memset(step, 0, sizeof *step);
    if (left > 0 && depth < AOT_MAX_PROGRAM_DEPTH - 1 && (depth < 2 || below(2))) {
      step->operation = (uint8_t)(AOT_STEP_CONSTANT + below(4));
      step->slot = (uint8_t)below(SLOTS);
      step->dim = (uint8_t)below(4);
      step->value = edge();
      ++depth, --left;
    } else if (depth > 0 && below(5) == 0) {
      step->operation = AOT_STEP_NOT;
    } else if (depth > 1) {
      step->operation = (uint8_t)(AOT_STEP_ADD + below(13));
      --depth;
    } else {
      --at;
    }
  }
  memset(&made->steps[at], 0, sizeof made->steps[at]);
  return at + 1;
}

/* As the sizes of workspaces are: (value % 64) * factor. */
static uint32_t make_size(library_t* made, uint32_t at) {
  const aot_step_t steps[] = {{AOT_STEP_INTEGER, 2, 0, {0}, 0}, {AOT_STEP_CONSTANT, 0, 0, {0}, 1 + below(64)},
                              {AOT_STEP_MODULO, 0, 0, {0}, 0},  {AOT_STEP_CONSTANT, 0, 0, {0}, 1 + below(9)},
                              {AOT_STEP_MULTIPLY, 0, 0, {0}, 0}, {AOT_STEP_END, 0, 0, {0}, 0}};
  memcpy(&made->steps[at], steps, sizeof steps);
  return at + 6;
}

static void make_subjects(library_t* made) {
  uint32_t at = 0;
  for (int i = 0; i < SUBJECTS; ++i) {
    aot_subject_t* subject = &made->subjects[i];
    memset(subject, 0, sizeof *subject);
    subject->operation = (uint8_t)(1 + below(19));
    subject->slot = (uint8_t)(below(3) ? below(3) : below(SLOTS));
    subject->dim = (uint8_t)below(4);
    subject->other_slot = (uint8_t)below(SLOTS);
    subject->other_dim = (uint8_t)below(4);
    subject->other_is_stride = (uint8_t)below(2);
    subject->optional = subject->slot == OPTIONAL && below(2);
    subject->parameter = below(3) ? INT64_C(1) << below(9) : 1 + below(100);
    subject->label = subject->other_label = "what is asked";
    if (subject->operation == AOT_SUBJECT_ADDRESS_MODULO) subject->parameter = INT64_C(1) << below(9);
    if (i < FIRST_EXTENT) subject->operation = AOT_SUBJECT_PROGRAM;
    else if (i < FIRST_EXTENT + EXTENTS) {
      subject->operation = AOT_SUBJECT_EXTENT;
      subject->slot = subject->optional = i == FIRST_EXTENT + 1 ? OPTIONAL : 0;
    }
    if (subject->operation != AOT_SUBJECT_PROGRAM && subject->operation != AOT_SUBJECT_CONDITION) continue;
    subject->slot = subject->optional = 0;
    subject->parameter = at;
    at = i == 0 ? make_size(made, at) : make_program(made, at);
    if (at + 100 > STEPS) abort();
  }
}

static int64_t usual_value(const aot_subject_t* subject) {
  switch (subject->operation) {
    case AOT_SUBJECT_KIND: return below(2) ? AOT_KIND_TENSOR : 1 + below(8);
    case AOT_SUBJECT_DTYPE: return (int64_t)(8 << below(3)) << 32 | 1 << 8 | below(2) * kDLFloat;
    case AOT_SUBJECT_DEVICE_TYPE: return kDLCUDA;
    case AOT_SUBJECT_FLOAT: return (int64_t)((uint64_t)edge() << 40);
    default: return edge();
  }
}

static void make_requirements(library_t* made) {
  for (int i = 0; i < REQUIREMENTS; ++i) {
    aot_requirement_t* one = &made->requirements[i];
    memset(one, 0, sizeof *one);
    one->subject = (uint32_t)below(SUBJECTS);
    int64_t low = usual_value(&made->subjects[one->subject]), high = usual_value(&made->subjects[one->subject]);
    one->low = below(2) ? INT64_MIN + 1 : low < high ? low : high;
    one->high = below(2) ? INT64_MAX : low < high ? high : low;
    if (one->low == INT64_MIN) one->low = INT64_MIN + 1; /* no interval has what is missing */
  }
  aot_subject_t* kind = &made->subjects[SUBJECTS - 1]; /* of the stream, which every compiled entry requires */
  kind->operation = AOT_SUBJECT_KIND;
  kind->slot = STREAM;
  kind->optional = 0;
  made->requirements[0].subject = SUBJECTS - 1;
  made->requirements[0].low = AOT_KIND_INT;
  made->requirements[0].high = AOT_KIND_HANDLE;
}

static int compare(const void* left, const void* right) {
  int64_t a = ((const aot_branch_t*)left)->value, b = ((const aot_branch_t*)right)->value;
  return (a > b) - (a < b);
}

static int32_t make_child(const library_t* made, int node, int last) {
  if (node + 1 < last && below(2)) return node + 1 + (int32_t)below(last - node - 1);
  return below(8) == 0 ? AOT_NO_VARIANT : ~(int32_t)below(made->group.variant_count);
}

static void make_lookup(library_t* made, aot_node_t* node, int at, int last) {
  uint32_t bits = 1 + (uint32_t)below(5);
  aot_branch_t* branches = &made->branches[node->first];
  node->shift = 64 - bits;
  node->multiplier = next() | 1;
  node->count = 1u << bits;
  for (uint32_t i = 0; i < node->count; ++i) branches[i].child = node->otherwise;
  for (uint32_t i = 0; i < node->count; ++i) {
    int64_t value = usual_value(&made->subjects[node->subject]);
    aot_branch_t* branch = &branches[(uint64_t)value * node->multiplier >> node->shift];
    branch->value = value;
    branch->child = make_child(made, at, last);
  }
}

static void make_ranges(library_t* made, aot_node_t* node, int at, int last) {
  aot_branch_t* branches = &made->branches[node->first];
  node->count = (uint32_t)below(24);
  for (uint32_t i = 0; i < node->count; ++i) branches[i].value = usual_value(&made->subjects[node->subject]);
  qsort(branches, node->count, sizeof *branches, compare);
  for (uint32_t i = 0; i < node->count; ++i) branches[i].child = make_child(made, at, last);
}

/* A tree over nodes first .. last-1; its root. */
static int32_t make_tree(library_t* made, int first, int last, uint32_t* used) {
  if (below(6) == 0) return make_child(made, first, first);
  for (int at = first; at < last; ++at) {
    aot_node_t* node = &made->nodes[at];
    memset(node, 0, sizeof *node);
    node->subject = (uint32_t)below(SUBJECTS);
    node->first = *used;
    node->otherwise = make_child(made, at, last);
    if (*used + 32 > BRANCHES) continue; /* no branches */
    if (below(2)) make_lookup(made, node, at, last);
    else make_ranges(made, node, at, last);
    *used += node->count;
  }
  return first;
}

static void make_constants(library_t* made) {
  double half = 0.5;
  memset(made->constants, 0, sizeof made->constants);
  made->constants[0].type_index = kTVMFFIFloat;
  memcpy(&made->constants[0].bits, &half, sizeof half);
  made->constants[1].type_index = kTVMFFINone;
  made->constants[2].type_index = kTVMFFIDLTensorPtr; /* a batch of one */
  made->constants[3].type_index = kTVMFFIDLTensorPtr; /* an optional tensor */
  made->constants[3].argument = OPTIONAL;
  made->constants[3].bits = (1 + below(AOT_MAX_MADE)) << AOT_RANK_SHIFT | INT64_C(16) << 32 | 1 << 8 | kDLBfloat;
}

static void make_sources(library_t* made, int number, aot_variant_t* variant) {
  static const uint8_t others[] = {AOT_SOURCE_MULTIPROCESSORS, AOT_SOURCE_ACTIVE_CLUSTERS, AOT_SOURCE_WORKSPACE,
                                   AOT_SOURCE_CONSTANT, AOT_SOURCE_CONSTANT + 1, AOT_SOURCE_CONSTANT + 2,
                                   AOT_SOURCE_CONSTANT + 3};
  uint8_t* sources = made->sources[number];
  variant->source_count = (uint32_t)(1 + below(12));
  for (uint32_t i = 0; i < variant->source_count; ++i) {
    sources[i] = below(2) ? (uint8_t)below(ARGUMENTS) : others[below(7)];
  }
  variant->sources = sources;
  if (below(2)) return;
  variant->workspace = &made->workspaces[number];
  aot_workspace_t needed = {"scratch", (uint32_t)(below(3) == 0), SCRATCH, (uint8_t)below(2), {kDLFloat, 32, 1}};
  if (below(2)) needed.dtype.bits = 8;
  made->workspaces[number] = needed;
}

static void make_variant(library_t* made, int which, int number) {
  aot_variant_t* variant = &made->variants[number];
  memset(variant, 0, sizeof *variant);
  snprintf(made->names[number], sizeof made->names[number], "%c%d", which ? 'w' : 'v', number);
  variant->name = made->names[number];
  variant->entry = entries[which * VARIANTS + number];
  variant->load_libraries = load_libraries;
  variant->load_kernels = load_kernels;
  variant->libraries = &made->loaded[number];
  made->loaded[number] = NULL;
  memset(made->clusters[number], 0, sizeof made->clusters[number]);
  if (below(8)) made->clusters[number][0] = 66; /* else the driver is asked, which does not know these kernels */
  memset(&made->states[number], 0, sizeof made->states[number]);
  made->states[number].active_clusters = made->clusters[number];
  variant->state = &made->states[number];
  variant->first_kernel = &made->loaded[number];
  variant->cluster[0] = 2, variant->cluster[1] = variant->cluster[2] = 1;
  variant->block[0] = 32, variant->block[1] = variant->block[2] = 1;
  variant->stream_argument = below(4) ? AOT_STREAM_FROM_ENVIRONMENT : below(2) ? STREAM : AOT_STREAM_DEFAULT;
  variant->requirements = made->own[number];
  if (variant->stream_argument == STREAM) made->own[number][variant->requirement_count++] = 0;
  for (int64_t left = below(3); left > 0; --left) {
    uint32_t chosen = 1 + (uint32_t)below(REQUIREMENTS - 1);
    made->own[number][variant->requirement_count++] = chosen;
    for (uint32_t i = 0; i + 1 < variant->requirement_count; ++i) {
      if (made->own[number][i] == chosen) --variant->requirement_count, i = REQUIREMENTS; /* each once */
    }
  }
  variant->region_count = (uint32_t)(below(3) == 0 ? 2 + below(2) : 0);
  if (below(2)) make_sources(made, number, variant);
}

static void make_library(library_t* made, int which, const char* arch) {
  static const uint8_t slots[] = {0, OPTIONAL, TUPLE + 2, 0};
  uint32_t used = 0;
  memset(made, 0, sizeof *made);
  for (int i = 0; i < 4; ++i) made->regions[i] = (aot_region_t){slots[i], i == 0, {0}, 0, "a tensor"};
  for (int i = 0; i < SLOTS; ++i) made->slots[i].parent = (int16_t)(i < ARGUMENTS ? -1 : TUPLE),
      made->slots[i].index = (uint16_t)(i - ARGUMENTS);
  made->group = (aot_group_t){"call", 0, (uint32_t)(1 + below(VARIANTS)), made->variants, made->slots, SLOTS,
      ARGUMENTS};
  make_subjects(made);
  make_requirements(made);
  make_constants(made);
  for (int i = 0; i < VARIANTS; ++i) make_variant(made, which, i);
  made->group.root = make_tree(made, 0, NODES, &used);
  made->plain_root = make_tree(made, NODES, 2 * NODES, &used);
  made->tunable.count = (uint32_t)(1 + below(EXTENTS));
  made->tunable.subjects = made->tuned_subjects;
  for (int i = 0; i < VARIANTS * EXTENTS; ++i) {
    made->tuned_subjects[i] = (uint32_t)(below(3) ? FIRST_EXTENT + below(EXTENTS) : below(SUBJECTS));
  }
  made->imports = (aot_import_t){"imported", &made->import};
  uint32_t minor = below(8) == 0 ? (uint32_t)below(5) : AOT_TABLES_MINOR;
  aot_kernel_library_t tables = {AOT_TABLES_MAJOR, minor, "kernel", arch, &made->group, 1, 1, &made->imports,
      made->subjects,
                                 made->requirements, made->nodes, made->branches, made->steps, made->regions,
                                 made->constants, &made->tunable, &made->plain_root};
  if (below(30) == 0) tables.tunables = NULL;
  made->tables = tables;
}

/* The rows in another order, which the numbers of rows undo. */
static void pack_cells(set_t* content, uint32_t cells, uint32_t width) {
  uint32_t count = cells / width, first = (uint32_t)below(count);
  content->packed_cells = (uint8_t*)malloc(cells);
  content->rows = (uint8_t*)malloc(2 * count);
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t at = (i + first) % count;
    content->rows[2 * i] = (uint8_t)at, content->rows[2 * i + 1] = (uint8_t)(at >> 8);
    memcpy(content->packed_cells + (size_t)at * width, content->cells + (size_t)i * width, width);
  }
}

/* Variants from `first` on. Now and then something about the set is wrong, and `sound` is 0. */
static void make_set(aot_tuned_set_t* set, set_t* content, library_t* of, uint32_t first, uint32_t count) {
  int64_t* packed = content->packed;
  uint32_t cells = 1, width = 1;
  content->sound = 1;
  set->extent_count = of->tunable.count;
  for (uint32_t i = 0; i < set->extent_count; ++i) {
    int64_t bound = below(40);
    content->bound_counts[i] = (uint32_t)below(6);
    for (uint32_t at = 0; at < content->bound_counts[i]; ++at) {
      content->bounds[i][at] = bound;
      *packed++ = bound;
      bound += below(4) ? 1 + below(20) : INT64_C(1) << below(50);
    }
    width = content->bound_counts[i] + 1;
    cells *= width;
  }
  content->cells = (uint8_t*)malloc(cells);
  for (uint32_t i = 0; i < cells; ++i) content->cells[i] = (uint8_t)below(count);
  for (uint32_t i = 0; i < count; ++i) content->names[i] = of->names[first + i];
  set->variants = content->names, set->variant_count = count, set->bound_counts = content->bound_counts;
  pack_cells(content, cells, width);
  set->bounds = content->packed, set->rows = content->rows, set->row_count = cells / width;
  set->cells = content->packed_cells, set->cell_count = cells;
  if (below(6) != 0) return;
  content->sound = 0;
  switch (below(7)) {
    case 0: case 5: content->packed_cells[below(cells)] = (uint8_t)(count + (uint32_t)below(3)); return;
    case 6: content->rows[2 * below(cells / width) + 1] = 255; return;
    case 1: if (below(2)) set->row_count += 1; else set->cell_count = 0; return;
    case 2: content->names[below(count)] = "nobody"; return;
    case 3: set->extent_count = below(2) ? set->extent_count + 1 : AOT_MAX_TUNED_BY + 1; return;
    default:
      if (packed < content->packed + 2 || content->bound_counts[0] < 2) content->names[0] = "nobody";
      else content->packed[1] = content->packed[0];
  }
}

static void make_tables(void) {
  static const char* const devices[] = {"Stand-in 9.0", "Another", "Third", "Fourth MIG 1g"};
  aot_function_t* function = &world->function;
  function->tuning_count = (uint32_t)(below(3) ? below(TABLES + 1) : 0);
  for (uint32_t i = 0; i < function->tuning_count; ++i) {
    int which = (int)below(2);
    library_t* of = &world->libraries[which];
    aot_tuning_t table = {devices[below(4)], below(2) ? 132 : (int32_t)(1 + below(200)), (int32_t)(below(3)
        * 2000), {9, (int32_t)(below(4) == 0)},
                          NULL, of->tables.arch, world->sets[i], 1 + (uint32_t)below(2)};
    uint32_t count = of->group.variant_count, cut = 1 + (uint32_t)below(count);
    if (cut == count) table.set_count = 1;
    world->tables[i] = table;
    make_set(&world->sets[i][0], &world->contents[i][0], of, 0, cut);
    if (table.set_count == 2) make_set(&world->sets[i][1], &world->contents[i][1], of, cut, count - cut);
  }
  function->tunings = world->tables;
}

static void make_world(void) {
  world = (world_t*)calloc(1, sizeof *world);
  if (world == NULL) abort();
  make_library(&world->libraries[0], 0, "sm_90a");
  make_library(&world->libraries[1], 1, "sm_90");
  for (int i = 0; i < 2; ++i) {
    aot_build_t* build = &world->builds[i];
    build->arch_name = world->libraries[i].tables.arch;
    build->arch = (aot_arch_t){9, 0, i == 0 ? 'a' : 0};
    build->opened = &world->libraries[i].tables;
    build->driver = "570.26";
  }
  world->kernel = (aot_kernel_t){"kernel", world->builds, 1 + (uint32_t)below(2)};
  world->function.name = world->function.group = "call";
  world->function.signature = "call(out, bias, count, scale, pair, scratch)";
  world->function.kernel = &world->kernel;
  world->function.argument_count = ARGUMENTS;
  world->function.workspaces = 1 << SCRATCH;
  make_tables();
}

/* What a process keeps for ever is kept once per world here. */
static void end_world(void) {
  for (int device = 0; device < AOT_MAX_DEVICES; ++device) {
    aot_ranking_t* ranking = world->function.rankings[device];
    for (uint32_t i = 0; ranking != NULL && i < aot_ranking_count(ranking); ++i)
        aot_tuning_free(ranking->candidates[i].tuned);
    free(ranking);
  }
  for (int i = 0; i < 2 * TABLES; ++i) {
    set_t* content = &world->contents[i / 2][i % 2];
    free(content->cells), free(content->packed_cells), free(content->rows);
  }
  free(world);
}

#endif /* FUZZ_WORLDS_WORLD_H_ */
