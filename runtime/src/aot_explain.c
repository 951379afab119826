#include "aot_explain.h"

#include <stdlib.h>
#include <string.h>

#include "aot_error.h"
#include "aot_open.h"
#include "aot_overlap.h"
#include "aot_rank.h"
#include "aot_select.h"
#include "aot_tuning.h"

static const char* kind_name(int64_t kind) {
  switch (kind) {
    case AOT_KIND_FLOAT: return "a float";
    case AOT_KIND_BOOL: return "a bool";
    case AOT_KIND_INT: return "an int";
    case AOT_KIND_NONE: return "None";
    case AOT_KIND_HANDLE: return "a pointer";
    case AOT_KIND_TENSOR: return "a tensor";
    case AOT_KIND_TUPLE: return "a tuple";
    case AOT_KIND_BARE_TENSOR: return "a tensor without strides";
    case AOT_KIND_NULL_TENSOR: return "a tensor whose address is null";
    default: return "something else";
  }
}

/* What an interval of kinds asks for: the last of it names it (an int will do for a float). */
static const char* kinds_name(const aot_requirement_t* requirement) {
  if (requirement->low == AOT_KIND_FLOAT) return "a float";
  if (requirement->low == AOT_KIND_NONE && requirement->high == AOT_KIND_TENSOR) return "a tensor or None";
  return kind_name(requirement->high);
}

/* The names of dtypes, by what DLPack says of them. */
static const struct {
  int code, bits, lanes;
  const char* name;
} dtypes[] = {
    /* dtypes: written by tools/dtypes.py */
    {6, 8, 1, "bool"},
    {0, 4, 1, "int4"},
    {0, 8, 1, "int8"},
    {1, 8, 1, "uint8"},
    {0, 16, 1, "int16"},
    {1, 16, 1, "uint16"},
    {0, 32, 1, "int32"},
    {1, 32, 1, "uint32"},
    {0, 64, 1, "int64"},
    {1, 64, 1, "uint64"},
    {2, 16, 1, "float16"},
    {4, 16, 1, "bfloat16"},
    {2, 32, 1, "float32"},
    {2, 64, 1, "float64"},
    {10, 8, 1, "float8_e4m3fn"},
    {12, 8, 1, "float8_e5m2"},
    {14, 8, 1, "float8_e8m0fnu"},
    {15, 6, 1, "float6_e2m3fn"},
    {16, 6, 1, "float6_e3m2fn"},
    {17, 4, 2, "float4_e2m1fn_x2"},
    {7, 8, 1, "float8_e3m4"},
    {8, 8, 1, "float8_e4m3"},
    {9, 8, 1, "float8_e4m3b11fnuz"},
    {11, 8, 1, "float8_e4m3fnuz"},
    {13, 8, 1, "float8_e5m2fnuz"},
    {17, 4, 1, "float4_e2m1fn"},
    {5, 64, 1, "complex64"},
    {5, 128, 1, "complex128"},
    /* end of dtypes */
};

static void append_dtype(aot_text_t* text, int64_t packed) {
  static const char* const kinds[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  int code = (int)(packed & 0xff), lanes = (int)(packed >> 8 & 0xffff), bits = (int)(packed >> 32);
  if (packed == AOT_MISSING) {
    aot_text_append(text, "not that of a tensor");
    return;
  }
  for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; ++i) {
    if (dtypes[i].code != code || dtypes[i].bits != bits || dtypes[i].lanes != lanes) continue;
    aot_text_append(text, "%s", dtypes[i].name);
    return;
  }
  if (code < (int)(sizeof kinds / sizeof *kinds)) aot_text_append(text, "%s%d", kinds[code], bits);
  else aot_text_append(text, "dtype %d of %d bits", code, bits);
  if (lanes != 1) aot_text_append(text, "x%d", lanes);
}

static double from_ordered(int64_t ordered) {
  int64_t bits = ordered >= 0 ? ordered : (-ordered) | INT64_MIN;
  double number;
  memcpy(&number, &bits, sizeof number);
  return number;
}

static void append_value(aot_text_t* text, const aot_subject_t* subject, int64_t value) {
  if (subject->operation == AOT_SUBJECT_DTYPE) append_dtype(text, value);
  else if (value == AOT_MISSING) aot_text_append(text, subject->operation == AOT_SUBJECT_FLOAT ? "NaN" : "not there");
  else if (subject->operation == AOT_SUBJECT_FLOAT) aot_text_append(text, "%.17g", from_ordered(value));
  else aot_text_append(text, "%lld", (long long)value);
}

static void append_interval(aot_text_t* text, const aot_subject_t* subject, const aot_requirement_t* wanted) {
  if (wanted->low == wanted->high) {
    append_value(text, subject, wanted->low);
  } else if (wanted->high == INT64_MAX && wanted->low == 1 && subject->operation == AOT_SUBJECT_FLOAT) {
    aot_text_append(text, "> 0"); /* 1 stands for the smallest number above it */
  } else if (wanted->high == INT64_MAX) {
    aot_text_append(text, ">= ");
    append_value(text, subject, wanted->low);
  } else if (wanted->low == INT64_MIN + 1) {
    aot_text_append(text, "<= ");
    append_value(text, subject, wanted->high);
  } else {
    append_value(text, subject, wanted->low);
    aot_text_append(text, " to ");
    append_value(text, subject, wanted->high);
  }
}

/* The plain extent, stride or scalar behind a derived subject, so that a message shows what the caller passed. */
static int64_t plain_value(const aot_kernel_library_t* library, const aot_subject_t* subject, uint8_t operation,
                           const aot_arguments_t* arguments) {
  aot_subject_t plain = *subject;
  plain.operation = operation;
  plain.optional = 0;
  return aot_subject_value(library, &plain, arguments);
}

static void append_plain(aot_text_t* text, const aot_kernel_library_t* library, const aot_subject_t* subject,
                         uint8_t operation, const aot_arguments_t* arguments) {
  aot_text_append(text, "%s is ", subject->label);
  append_value(text, subject, plain_value(library, subject, operation, arguments));
}

static void append_other(aot_text_t* text, const aot_kernel_library_t* library, const aot_subject_t* subject,
                         const aot_arguments_t* arguments) {
  aot_subject_t other = *subject;
  other.optional = 0;
  other.slot = subject->other_slot;
  other.dim = subject->other_dim;
  other.operation = subject->other_is_stride ? AOT_SUBJECT_STRIDE : AOT_SUBJECT_EXTENT;
  aot_text_append(text, ", must equal %s, which is ", subject->other_label);
  append_value(text, subject, aot_subject_value(library, &other, arguments));
}

static void append_overlap(aot_text_t* text, const aot_kernel_library_t* library, const aot_subject_t* subject,
                           int64_t overlap, const aot_arguments_t* arguments) {
  const aot_region_t* regions = &library->regions[subject->parameter];
  const aot_region_t* output = &regions[aot_overlap_output(overlap)];
  const aot_region_t* other = &regions[aot_overlap_other(overlap)];
  if (output == other) {
    aot_text_append(text, "elements of %s share memory with each other, must lie apart", output->label);
    return;
  }
  uint64_t start = aot_address(arguments->values[output->slot].tensor);
  uint64_t other_start = aot_address(arguments->values[other->slot].tensor);
  uint64_t apart = start < other_start ? other_start - start : start - other_start;
  int may_be = other->may_be >> aot_overlap_output(overlap) & 1;
  aot_text_append(text, "%s starts %llu bytes %s %s and shares memory with it, must lie apart%s", output->label,
                  (unsigned long long)apart, start < other_start ? "before" : "after", other->label,
                  may_be ? " or be the same tensor, of equal shape and strides" : "");
}

static int is_about_memory(const aot_subject_t* subject) {
  return subject->operation == AOT_SUBJECT_DEVICE_TYPE || subject->operation == AOT_SUBJECT_DEVICE_INDEX ||
         subject->operation == AOT_SUBJECT_ADDRESS_MODULO;
}

static void append_reason(aot_text_t* text, const aot_kernel_library_t* library, const aot_requirement_t* unmet,
                          const aot_arguments_t* arguments) {
  const aot_subject_t* subject = &library->subjects[unmet->subject];
  int64_t value = aot_subject_value(library, subject, arguments);
  if (value == AOT_MISSING && is_about_memory(subject)) {
    aot_text_append(text, "%s is not a tensor", subject->label);
    return;
  }
  switch (subject->operation) {
    case AOT_SUBJECT_KIND:
      aot_text_append(text, "%s is %s, must be %s", subject->label,
                      kind_name(arguments->values[subject->slot].kind), kinds_name(unmet));
      return;
    case AOT_SUBJECT_DEVICE_TYPE:
      aot_text_append(text, "%s lies on a device of type %lld, must lie on a CUDA device", subject->label, (long long)value);
      return;
    case AOT_SUBJECT_DEVICE_INDEX:
      aot_text_append(text, "%s lies on device %lld, the first tensor on device %d", subject->label,
                      (long long)value + arguments->device, arguments->device);
      return;
    case AOT_SUBJECT_EXTENT_MODULO:
      append_plain(text, library, subject, AOT_SUBJECT_EXTENT, arguments);
      break;
    case AOT_SUBJECT_STRIDE_MODULO:
      append_plain(text, library, subject, AOT_SUBJECT_STRIDE, arguments);
      break;
    case AOT_SUBJECT_INTEGER_MODULO:
      append_plain(text, library, subject, AOT_SUBJECT_INTEGER, arguments);
      break;
    case AOT_SUBJECT_ADDRESS_MODULO:
      aot_text_append(text, "%s starts %lld bytes past a multiple of %lld, must be aligned", subject->label, (long long)value,
                      (long long)subject->parameter);
      return;
    case AOT_SUBJECT_STRIDE_OFF:
      append_plain(text, library, subject, AOT_SUBJECT_STRIDE, arguments);
      aot_text_append(text, ", must be %lld", (long long)subject->parameter);
      return;
    case AOT_SUBJECT_EXTENT_OFF:
      append_plain(text, library, subject, AOT_SUBJECT_EXTENT, arguments);
      append_other(text, library, subject, arguments);
      return;
    case AOT_SUBJECT_STRIDE_OFF_BY:
      append_plain(text, library, subject, AOT_SUBJECT_STRIDE, arguments);
      append_other(text, library, subject, arguments);
      return;
    case AOT_SUBJECT_CONDITION:
      aot_text_append(text, "`%s` does not hold", subject->label);
      return;
    case AOT_SUBJECT_OVERLAP:
      append_overlap(text, library, subject, value, arguments);
      return;
    default:
      aot_text_append(text, "%s is ", subject->label);
      append_value(text, subject, value);
      aot_text_append(text, ", must be ");
      append_interval(text, subject, unmet);
      return;
  }
  aot_text_append(text, ", must be divisible by %lld", (long long)subject->parameter);
}

/* What an explanation comes to. */
typedef struct {
  int chosen;
  int eligible; /* whether any variant takes the arguments */
  /* The first variant, if any, that takes all of the arguments but for where they lie. */
  const aot_kernel_library_t* overlapping;
  const aot_requirement_t* overlap;
  /* The first variant that the arguments miss by the fewest requirements. */
  const aot_kernel_library_t* nearest_library;
  const aot_variant_t* nearest;
  uint32_t nearest_unmet;
  uint32_t refused; /* how many variants */
  uint64_t only_none; /* the arguments that are given, by their bits, for which every refused variant takes None alone */
} aot_outcome_t;

#define AOT_OUTCOME_EMPTY {0, 0, NULL, NULL, NULL, NULL, 0, 0, 0}

/* Whether a requirement is among the reasons of a variant. The first that is not met always is: it may be about a value
 * that has no place in any order, such as NaN. */
static int is_reason(const aot_kernel_library_t* library, const aot_requirement_t* requirement,
                     const aot_requirement_t* first, const aot_arguments_t* arguments) {
  return requirement == first || aot_requirement_missed(library, requirement, arguments);
}

static void note_nearest(aot_outcome_t* outcome, const aot_kernel_library_t* library, const aot_variant_t* variant,
                         const aot_arguments_t* arguments) {
  uint32_t unmet = 0;
  const aot_requirement_t* first = aot_variant_unmet(library, variant, arguments);
  for (uint32_t i = 0; i < variant->requirement_count; ++i) {
    unmet += is_reason(library, &library->requirements[variant->requirements[i]], first, arguments) ? 1u : 0u;
  }
  if (outcome->refused++ > 0 && unmet >= outcome->nearest_unmet) return;
  outcome->nearest_library = library;
  outcome->nearest = variant;
  outcome->nearest_unmet = unmet;
}

/* Called for each variant that is refused, after it was counted. */
static void note_only_none(aot_outcome_t* outcome, const aot_kernel_library_t* library, const aot_variant_t* variant,
                           const aot_arguments_t* arguments) {
  uint64_t refused = 0;
  for (uint32_t i = 0; i < variant->requirement_count; ++i) {
    const aot_requirement_t* requirement = &library->requirements[variant->requirements[i]];
    const aot_subject_t* subject = &library->subjects[requirement->subject];
    if (subject->operation != AOT_SUBJECT_KIND || subject->slot >= 64) continue;
    if (requirement->low != AOT_KIND_NONE || requirement->high != AOT_KIND_NONE) continue;
    if (arguments->values[subject->slot].kind != AOT_KIND_NONE) refused |= UINT64_C(1) << subject->slot;
  }
  outcome->only_none = outcome->refused > 1 ? outcome->only_none & refused : refused;
}

static void note_overlap(aot_outcome_t* outcome, const aot_kernel_library_t* library, const aot_requirement_t* unmet) {
  if (outcome->overlap != NULL || library->subjects[unmet->subject].operation != AOT_SUBJECT_OVERLAP) return;
  outcome->overlapping = library;
  outcome->overlap = unmet;
}

/* The variant that a call would run, or NULL; and in `table` what named it, or NULL: preferences did. */
static const aot_variant_t* picked(const aot_candidate_t* candidate, const aot_arguments_t* arguments,
                                   const aot_tuning_t** table) {
  const aot_kernel_library_t* library = candidate->library;
  const aot_group_t* group = candidate->group;
  const aot_variant_t* variant = NULL;
  if (candidate->tuned != NULL) variant = aot_tuned_choose(candidate->tuned, library, group, arguments);
  *table = variant != NULL ? candidate->tuning : NULL;
  if (variant == NULL) variant = aot_group_choose(library, group, arguments);
  if (variant == NULL) return NULL;
  return aot_variant_unmet(library, variant, arguments) == NULL ? variant : NULL;
}

/* Which table decided, and why this one if it was made for another device. */
static void append_table(aot_text_t* lines, const aot_tuning_t* table, const aot_device_t* device) {
  aot_text_append(lines, "%s, %d multiprocessors", table->device, table->multiprocessors);
  if (table->measured_on != NULL) aot_text_append(lines, ", predicted from times of %s", table->measured_on);
  if (aot_tuning_is_for(table, device)) return;
  aot_text_append(lines, ", the nearest to %d multiprocessors", device->multiprocessors);
  if (device->bandwidth > 0) aot_text_append(lines, " and %d GB/s (%d GB/s)", device->bandwidth, table->bandwidth);
}

static void explain_group(const aot_candidate_t* candidate, const aot_device_t* device, aot_arguments_t* arguments,
                          aot_outcome_t* outcome, aot_text_t* lines) {
  const aot_kernel_library_t* library = candidate->library;
  const aot_group_t* group = candidate->group;
  const aot_tuning_t* table = NULL;
  aot_arguments_open_tuples(arguments, group);
  const aot_variant_t* pick = outcome->chosen ? NULL : picked(candidate, arguments, &table);
  for (uint32_t i = 0; i < group->variant_count; ++i) {
    const aot_variant_t* variant = &group->variants[i];
    const aot_requirement_t* unmet = aot_variant_unmet(library, variant, arguments);
    outcome->eligible |= unmet == NULL;
    aot_text_append(lines, "%s%s\t%s\t", variant == pick ? "*" : "", library->arch, variant->name);
    if (variant == pick) {
      outcome->chosen = 1;
      if (table != NULL) append_table(lines, table, device);
    } else if (unmet != NULL) {
      note_overlap(outcome, library, unmet);
      note_nearest(outcome, library, variant, arguments);
      note_only_none(outcome, library, variant, arguments);
      append_reason(lines, library, unmet, arguments);
    }
    aot_text_append(lines, "\n");
  }
}

static int explain_build(const aot_function_t* function, const aot_device_t* device, aot_candidate_t* candidate,
                         aot_arguments_t* arguments, aot_outcome_t* outcome, aot_text_t* lines) {
  if (aot_candidate_open(function, candidate) != 0) return -1;
  if (candidate->group == NULL) {
    aot_text_append(lines, "%s\t%s\tnot built for this architecture\n", candidate->build->arch_name, function->name);
    return 0;
  }
  explain_group(candidate, device, arguments, outcome, lines);
  return 0;
}

static int explain(const aot_function_t* function, const aot_device_t* device, aot_arguments_t* arguments,
                   aot_outcome_t* outcome, aot_text_t* lines) {
  const aot_kernel_t* kernel = function->kernel;
  aot_candidate_t* candidates = (aot_candidate_t*)calloc(kernel->build_count + 1, sizeof *candidates);
  if (candidates == NULL) return aot_raise_out_of_memory();
  uint32_t count = aot_rank_builds(function, device, candidates);
  int status = 0;
  for (uint32_t i = 0; i < count && status == 0; ++i) {
    status = explain_build(function, device, &candidates[i], arguments, outcome, lines);
    aot_tuning_free(candidates[i].tuned);
  }
  free(candidates);
  for (uint32_t i = 0; i < kernel->build_count && status == 0; ++i) {
    const aot_build_t* build = &kernel->builds[i];
    if (aot_build_rank(build, device) != 0) continue;
    aot_text_append(lines, "%s\t%s\t", build->arch_name, function->name);
    aot_append_unrunnable(lines, build, device);
    aot_text_append(lines, "\n");
  }
  return status;
}

int aot_explain_variants(const aot_function_t* function, const aot_device_t* device, aot_arguments_t* arguments,
                         aot_text_t* lines) {
  aot_outcome_t outcome = AOT_OUTCOME_EMPTY;
  if (explain(function, device, arguments, &outcome, lines) != 0) return -1;
  return lines->failed ? aot_raise_out_of_memory() : 0;
}

static void append_numbers(aot_text_t* text, const int64_t* numbers, int32_t count) {
  for (int32_t i = 0; i < count; ++i) {
    aot_text_append(text, i == 0 ? "" : ", ");
    if (numbers[i] == AOT_MISSING) aot_text_append(text, "?");
    else aot_text_append(text, "%lld", (long long)numbers[i]);
  }
}

static void append_argument(aot_text_t* text, const aot_value_t* value, int32_t hypothetical) {
  const DLTensor* tensor = value->tensor;
  if (tensor == NULL) {
    int is_unknown = value->kind == AOT_KIND_OTHER && hypothetical == AOT_PARTLY_KNOWN;
    aot_text_append(text, "%s", is_unknown ? "?" : kind_name(value->kind));
    return;
  }
  append_dtype(text, aot_packed_dtype(tensor->dtype));
  aot_text_append(text, "[");
  append_numbers(text, tensor->shape, tensor->ndim);
  aot_text_append(text, "] strides (");
  append_numbers(text, tensor->strides, tensor->ndim);
  aot_text_append(text, ")");
}

/* Scratch memory that the caller did not pass. Messages name what was passed. */
static int is_left_out(const aot_function_t* function, const aot_arguments_t* arguments, uint32_t argument) {
  return argument < 64 && (function->workspaces >> argument & 1) != 0 &&
         arguments->values[argument].kind == AOT_KIND_NONE;
}

/* `add(x, y, out)`, without the names of what was left out. */
static void append_signature(aot_text_t* text, const aot_function_t* function, const aot_arguments_t* arguments) {
  const char* at = function->signature + strcspn(function->signature, "(");
  aot_text_append(text, "%.*s(", (int)(at - function->signature), function->signature);
  const char* separator = "";
  for (uint32_t i = 0; i < function->argument_count; ++i) {
    at += strspn(at, "(, ");
    const size_t size = strcspn(at, ",)");
    if (!is_left_out(function, arguments, i)) {
      aot_text_append(text, "%s%.*s", separator, (int)size, at);
      separator = ", ";
    }
    at += size;
  }
  aot_text_append(text, ")");
}

void aot_append_call(aot_text_t* text, const aot_function_t* function, const aot_arguments_t* arguments) {
  const char* separator = " with ";
  append_signature(text, function, arguments);
  for (uint32_t i = 0; i < function->argument_count; ++i) {
    if (is_left_out(function, arguments, i)) continue;
    aot_text_append(text, "%s", separator);
    append_argument(text, &arguments->values[i], arguments->hypothetical);
    separator = "; ";
  }
}

static void append_call(aot_text_t* text, const aot_function_t* function, const aot_arguments_t* arguments) {
  aot_text_append(text, "\n  called as: ");
  aot_append_call(text, function, arguments);
}

int aot_raise_argument_count(const aot_function_t* function, int32_t count) {
  return aot_raise("AotArgumentError", "%s takes %u arguments, got %d\n  called as: %s", function->name,
                   function->argument_count, count, function->signature);
}

static int any_of_kind(const aot_arguments_t* arguments, int32_t kind) {
  for (uint32_t i = 0; i < arguments->count; ++i) {
    if (arguments->values[i].kind == kind) return 1;
  }
  return 0;
}

int aot_raise_no_device(const aot_function_t* function, const aot_arguments_t* arguments) {
  aot_text_t text = AOT_TEXT_EMPTY;
  const char* hint = any_of_kind(arguments, AOT_KIND_TENSOR) ? "move the tensors to a GPU first"
                                                             : "pass tensors that lie on a GPU";
  if (any_of_kind(arguments, AOT_KIND_NULL_TENSOR)) hint = "give every tensor the address of memory on a GPU";
  if (any_of_kind(arguments, AOT_KIND_BARE_TENSOR)) hint = "fill in the strides of every DLTensor; NULL is not accepted";
  aot_text_append(&text, "%s: none of the tensors lies on a CUDA device", function->name);
  append_call(&text, function, arguments);
  aot_text_append(&text, "\nhint: %s", hint);
  return aot_raise_text("AotArgumentError", &text);
}

static void append_candidates(aot_text_t* text, const aot_text_t* lines) {
  const char* line = aot_text_get(lines);
  while (*line != '\0') {
    const char* end = strchr(line, '\n');
    if (end == NULL) break;
    const char* first = (const char*)memchr(line, '\t', (size_t)(end - line));
    const char* second = first == NULL ? NULL : (const char*)memchr(first + 1, '\t', (size_t)(end - first - 1));
    if (second != NULL) {
      aot_text_append(text, "\n  %.*s %.*s: %.*s", (int)(first - line), line, (int)(second - first - 1), first + 1,
                      (int)(end - second - 1), second + 1);
    }
    line = end + 1;
  }
}

/* Of many variants, the one that a caller probably meant, with all that it misses. */
static void append_nearest(aot_text_t* text, const aot_outcome_t* outcome, aot_arguments_t* arguments) {
  const aot_kernel_library_t* library = outcome->nearest_library;
  const aot_variant_t* variant = outcome->nearest;
  if (outcome->refused < 2) return;
  aot_text_append(text, "\n  nearest: %s %s: ", library->arch, variant->name);
  const char* separator = "";
  const aot_requirement_t* first = aot_variant_unmet(library, variant, arguments);
  for (uint32_t i = 0; i < variant->requirement_count; ++i) {
    const aot_requirement_t* requirement = &library->requirements[variant->requirements[i]];
    if (!is_reason(library, requirement, first, arguments)) continue;
    aot_text_append(text, "%s", separator);
    append_reason(text, library, requirement, arguments);
    separator = "; ";
  }
}

/* The name of an argument, out of `add(x, y, out)`. */
static void append_name(aot_text_t* text, const aot_function_t* function, uint32_t argument) {
  const char* at = function->signature + strcspn(function->signature, "(");
  for (uint32_t i = 0; i < argument; ++i) at += 1 + strcspn(at + 1, ",)");
  at += strspn(at, "(, ");
  aot_text_append(text, "%.*s", (int)strcspn(at, ",)"), at);
}

/* The next step after a call that no variant takes. */
static void append_hint(aot_text_t* text, const aot_function_t* function, const aot_outcome_t* outcome) {
  for (uint32_t i = 0; i < function->argument_count && i < 64; ++i) {
    if ((outcome->only_none >> i & 1) == 0) continue;
    aot_text_append(text, "\nhint: every variant that was built takes None for `");
    append_name(text, function, i);
    aot_text_append(text, "`: leave it out, or rebuild with `--tilings all` or another `--arch`, if the kernel is declared "
                          "with variants that take it there");
    return;
  }
  if (outcome->nearest == NULL) return;
  aot_text_append(text, "\nhint: pass what %s asks for, or declare and build a variant of `%s` that takes these arguments",
                  outcome->nearest->name, function->kernel->name);
}

static int raise_overlap(const aot_function_t* function, const aot_outcome_t* outcome, const aot_arguments_t* arguments) {
  aot_text_t text = AOT_TEXT_EMPTY;
  aot_text_append(&text, "%s: ", function->name);
  append_reason(&text, outcome->overlapping, outcome->overlap, arguments);
  append_call(&text, function, arguments);
  aot_text_append(&text, "\nhint: give each output memory of its own");
  return aot_raise_text("AotArgumentError", &text);
}

/* Raises unless a variant takes the arguments and `may_take` allows that. */
static int refuse(const aot_function_t* function, const aot_device_t* device, const aot_arguments_t* arguments,
                  int may_take) {
  aot_text_t text = AOT_TEXT_EMPTY, lines = AOT_TEXT_EMPTY;
  aot_arguments_t again = *arguments;
  aot_outcome_t outcome = AOT_OUTCOME_EMPTY;
  int status = explain(function, device, &again, &outcome, &lines);
  if (status == 0 && lines.failed) {
    status = aot_raise_out_of_memory();
  } else if (status == 0 && outcome.eligible && may_take) {
    status = 0;
  } else if (status == 0 && outcome.overlap != NULL) {
    status = raise_overlap(function, &outcome, &again);
  } else if (status == 0) {
    aot_text_append(&text, "%s: no variant in bundle `%s` takes these arguments on compute capability %d.%d",
                    function->name, aot_this_bundle.name, device->capability.major, device->capability.minor);
    append_call(&text, function, arguments);
    append_nearest(&text, &outcome, &again);
    append_candidates(&text, &lines);
    append_hint(&text, function, &outcome);
    status = aot_raise_text("AotArgumentError", &text);
  }
  aot_text_free(&lines);
  return status;
}

int aot_raise_no_variant(const aot_function_t* function, const aot_device_t* device,
                         const aot_arguments_t* arguments) {
  return refuse(function, device, arguments, 0);
}

int aot_check_arguments(const aot_function_t* function, const aot_device_t* device, const aot_arguments_t* arguments) {
  return refuse(function, device, arguments, 1);
}
