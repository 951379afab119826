// The selection of runtime/src for pytest: tables and arguments made from Python data at run time.

#include <aot/aot.h>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <deque>
#include <string>
#include <tuple>
#include <vector>

extern "C" {
#include "aot_arch.h"
#include "aot_explain.h"
#include "aot_overlap.h"
#include "aot_select.h"
#include "aot_tuning.h"

// What a bundle's generated tables define.
const aot_bundle_t aot_this_bundle = {"tested", {nullptr, 0, {0}}, nullptr};
const char aot_identity[65] = "";
aot_function_t* const aot_functions[] = {nullptr};
const uint32_t aot_function_count = 0;
}

namespace py = pybind11;

namespace {

// Arguments of a call, from None, bool, int, float, {"address": n}, {"tensor": ...} and tuples of these.
class Arguments {
 public:
  explicit Arguments(const py::sequence& values) {
    for (const auto& value : values) values_.push_back(convert(py::reinterpret_borrow<py::object>(value)));
  }
  const TVMFFIAny* data() const { return reinterpret_cast<const TVMFFIAny*>(values_.data()); }
  uint32_t size() const { return static_cast<uint32_t>(values_.size()); }

 private:
  aot_value convert(const py::object& value) {
    if (value.is_none()) return aot_none();
    if (py::isinstance<py::bool_>(value)) return aot_from_bool(value.cast<bool>());
    if (py::isinstance<py::int_>(value)) return aot_from_int(value.cast<int64_t>());
    if (py::isinstance<py::float_>(value)) return aot_from_float(value.cast<double>());
    if (py::isinstance<py::tuple>(value)) return tuple(value);
    const auto fields = value.cast<py::dict>();
    if (fields.contains("address")) return aot_from_pointer(reinterpret_cast<void*>(fields["address"].cast<uintptr_t>()));
    return tensor(fields);
  }

  aot_value tuple(const py::sequence& elements) {
    std::vector<aot_value> converted;
    for (const auto& element : elements) converted.push_back(convert(py::reinterpret_borrow<py::object>(element)));
    sequences_.push_back(std::move(converted));
    headers_.emplace_back();
    return aot_from_tuple(&headers_.back(), sequences_.back().data(), static_cast<int64_t>(sequences_.back().size()));
  }

  aot_value tensor(const py::dict& fields) {
    extents_.push_back(fields["shape"].cast<std::vector<int64_t>>());
    int64_t* shape = extents_.back().data();
    extents_.push_back(fields["strides"].cast<std::vector<int64_t>>());
    const auto [code, bits, lanes] = fields["dtype"].cast<std::tuple<int, int, int>>();
    tensors_.push_back(aot_tensor{
        reinterpret_cast<void*>(fields["data"].cast<uintptr_t>()), fields["device_type"].cast<int32_t>(),
        fields["device"].cast<int32_t>(), static_cast<int32_t>(extents_.back().size()),
        aot_dtype{static_cast<uint8_t>(code), static_cast<uint8_t>(bits), static_cast<uint16_t>(lanes)}, shape,
        extents_.back().data(), fields["byte_offset"].cast<uint64_t>()});
    return aot_from_tensor(&tensors_.back());
  }

  std::vector<aot_value> values_;
  std::deque<std::vector<aot_value>> sequences_;
  std::deque<aot_tuple_header> headers_;
  std::deque<std::vector<int64_t>> extents_;
  std::deque<aot_tensor> tensors_;
};

using SubjectRow = std::tuple<int, int, int, int, int, int, int, int64_t, std::string, std::string>;
using StepRow = std::tuple<int, int, int, int64_t>;
using RegionRow = std::tuple<int, int, uint64_t, std::string>;

// One kernel library: the tables of aot_tables.h.
class Library {
 public:
  Library(const std::string& arch, const py::dict& tables) : arch_(arch) {
    for (auto [operation, slot, dim, is_stride, other, other_dim, optional, parameter, label, other_label] :
         tables["subjects"].cast<std::vector<SubjectRow>>()) {
      texts_.push_back(label);
      const char* text = texts_.back().c_str();
      texts_.push_back(other_label);
      subjects_.push_back({byte(operation), byte(slot), byte(dim), byte(is_stride), byte(other), byte(other_dim),
                           byte(optional), 0, parameter, text, texts_.back().c_str()});
    }
    for (auto [subject, low, high] : tables["requirements"].cast<std::vector<std::tuple<uint32_t, int64_t, int64_t>>>()) {
      requirements_.push_back({subject, 0, low, high});
    }
    for (auto [subject, count, first, shift, multiplier, otherwise] :
         tables["nodes"].cast<std::vector<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint64_t, int32_t>>>()) {
      nodes_.push_back({subject, count, first, shift, multiplier, otherwise, 0});
    }
    for (auto [value, child] : tables["branches"].cast<std::vector<std::tuple<int64_t, int32_t>>>()) {
      branches_.push_back({value, child, 0});
    }
    for (auto [operation, slot, dim, value] : tables["steps"].cast<std::vector<StepRow>>()) {
      steps_.push_back({byte(operation), byte(slot), byte(dim), {0}, value});
    }
    for (auto [slot, is_output, may_be, label] : tables["regions"].cast<std::vector<RegionRow>>()) {
      texts_.push_back(label);
      regions_.push_back({byte(slot), byte(is_output), {0}, may_be, texts_.back().c_str()});
    }
    for (auto [parent, index] : tables["slots"].cast<std::vector<std::tuple<int16_t, uint16_t>>>()) {
      slots_.push_back({parent, index});
    }
    for (auto [name, indices] : tables["variants"].cast<std::vector<std::tuple<std::string, std::vector<uint32_t>>>>()) {
      texts_.push_back(name);
      indices_.push_back(indices);
      aot_variant_t variant{};
      variant.name = texts_.back().c_str();
      variant.requirements = indices_.back().data();
      variant.requirement_count = static_cast<uint32_t>(indices_.back().size());
      variants_.push_back(variant);
    }
    group_ = {"tested", tables["root"].cast<int32_t>(), static_cast<uint32_t>(variants_.size()), variants_.data(),
              slots_.data(), static_cast<uint32_t>(slots_.size()), tables["argument_count"].cast<uint32_t>()};
    plain_root_ = tables["plain_root"].cast<int32_t>();
    tuned_by_ = tables["tuned_by"].cast<std::vector<uint32_t>>();
    tunable_ = {tuned_by_.data(), static_cast<uint32_t>(tuned_by_.size() / variants_.size())};
    library_ = {AOT_TABLES_MAJOR, tables["minor"].cast<uint32_t>(), "tested", arch_.c_str(), &group_, 1, 0, nullptr, subjects_.data(),
                requirements_.data(), nodes_.data(), branches_.data(), steps_.data(), regions_.data(), nullptr, &tunable_,
                &plain_root_};
  }
  Library(const Library&) = delete;

  // The variant that the tree finds, or -1; and whether it meets all of its requirements.
  std::pair<int, bool> choose(const py::sequence& values, int device) const {
    const Arguments given(values);
    aot_arguments_t arguments{};
    aot_arguments_decode(&arguments, given.data(), given.size());
    arguments.device = device;
    aot_arguments_open_tuples(&arguments, &group_);
    const aot_variant_t* variant = aot_group_choose(&library_, &group_, &arguments);
    if (variant == nullptr) return {-1, false};
    return {static_cast<int>(variant - variants_.data()), aot_variant_unmet(&library_, variant, &arguments) == nullptr};
  }

  // The same with a measured table; -2 if the table does not fit.
  int choose_tuned(const py::sequence& values, int device, const py::dict& table) const {
    const auto names = table["variants"].cast<std::vector<std::string>>();
    const auto counts = table["counts"].cast<std::vector<uint32_t>>();
    const auto bounds = table["bounds"].cast<std::vector<int64_t>>();
    const auto cells = table["cells"].cast<std::vector<uint8_t>>();
    std::vector<const char*> texts;
    for (const std::string& name : names) texts.push_back(name.c_str());
    const auto rows = table["rows"].cast<std::vector<uint8_t>>();
    const aot_tuned_set_t set = {texts.data(), static_cast<uint32_t>(texts.size()), static_cast<uint32_t>(counts.size()),
                                 counts.data(), bounds.data(), rows.data(), static_cast<uint32_t>(rows.size() / 2),
                                 cells.data(), static_cast<uint32_t>(cells.size())};
    const aot_tuning_t tuning = {"a device", 1, 0, {9, 0}, nullptr, arch_.c_str(), &set, 1};
    aot_tuned_t* tuned = aot_tuning_resolve(&tuning, &library_, &group_);
    if (tuned == nullptr) return -2;
    const Arguments given(values);
    aot_arguments_t arguments{};
    aot_arguments_decode(&arguments, given.data(), given.size());
    arguments.device = device;
    aot_arguments_open_tuples(&arguments, &group_);
    const aot_variant_t* variant = aot_tuned_choose(tuned, &library_, &group_, &arguments);
    if (variant == nullptr) variant = aot_group_choose(&library_, &group_, &arguments);
    const int chosen = variant == nullptr ? -1 : static_cast<int>(variant - variants_.data());
    aot_tuning_free(tuned);
    return chosen;
  }

  // What dispatch asks of the regions of all variants, which must be the same, before it looks closely.
  bool plainly_apart(const py::sequence& values) const {
    const Arguments given(values);
    aot_arguments_t arguments{};
    aot_arguments_decode(&arguments, given.data(), given.size());
    aot_arguments_open_tuples(&arguments, &group_);
    return aot_plainly_apart(regions_.data(), static_cast<uint32_t>(regions_.size()), &arguments) != 0;
  }

  aot_build_t build() const {
    int major = 0, minor = 0;
    char suffix = 0;
    std::sscanf(arch_.c_str(), "sm_%d%c", &major, &suffix);
    minor = major % 10;
    return {arch_.c_str(), {major / 10, minor, suffix}, {nullptr, 0, {0}}, &library_, nullptr, "", 0};
  }

 private:
  static uint8_t byte(int number) { return static_cast<uint8_t>(number); }

  std::string arch_;
  std::deque<std::string> texts_;
  std::deque<std::vector<uint32_t>> indices_;
  std::vector<aot_subject_t> subjects_;
  std::vector<aot_requirement_t> requirements_;
  std::vector<aot_node_t> nodes_;
  std::vector<aot_branch_t> branches_;
  std::vector<aot_step_t> steps_;
  std::vector<aot_region_t> regions_;
  std::vector<aot_slot_t> slots_;
  std::vector<aot_variant_t> variants_;
  int32_t plain_root_;
  std::vector<uint32_t> tuned_by_;
  aot_tunable_t tunable_;
  aot_group_t group_;
  aot_kernel_library_t library_;
};

// Asks about a call on a device, with the kernel's code for several architectures.
template <typename Ask>
std::string asked(const std::vector<const Library*>& libraries, int major, int minor, const py::sequence& values, Ask ask) {
  std::vector<aot_build_t> builds;
  for (const Library* library : libraries) builds.push_back(library->build());
  aot_kernel_t kernel = {"tested", builds.data(), static_cast<uint32_t>(builds.size())};
  aot_function_t function{};
  const Arguments given(values);
  function.name = function.group = function.signature = "tested";
  function.kernel = &kernel;
  function.argument_count = given.size();
  aot_arguments_t arguments{};
  aot_arguments_decode(&arguments, given.data(), given.size());
  arguments.hypothetical = 1;
  aot_device_t device{};
  device.capability = {major, minor};
  return ask(&function, &device, &arguments);
}

// The lines of aot_explain_variants.
std::string explain(const std::vector<const Library*>& libraries, int major, int minor, const py::sequence& values) {
  return asked(libraries, major, minor, values, [](auto* function, auto* device, auto* arguments) {
    aot_text_t lines{};
    const int status = aot_explain_variants(function, device, arguments, &lines);
    std::string text = status == 0 ? aot_text_get(&lines) : "failed";
    aot_text_free(&lines);
    return text;
  });
}

// The message of the error that a call raises if no variant takes it.
std::string refusal(const std::vector<const Library*>& libraries, int major, int minor, const py::sequence& values) {
  return asked(libraries, major, minor, values, [](auto* function, auto* device, auto* arguments) {
    aot_raise_no_variant(function, device, arguments);
    TVMFFIObjectHandle error = nullptr;
    TVMFFIErrorMoveFromRaised(&error);
    const TVMFFIByteArray message = TVMFFIErrorGetCellPtr(error)->message;
    std::string text(message.data, message.size);
    TVMFFIObjectDecRef(error);
    return text;
  });
}

}  // namespace

PYBIND11_MODULE(selection_module, module) {
  py::class_<Library>(module, "Library").def(py::init<const std::string&, const py::dict&>())
      .def("choose", &Library::choose)
      .def("choose_tuned", &Library::choose_tuned)
      .def("plainly_apart", &Library::plainly_apart);
  module.def("explain", &explain);
  module.def("refusal", &refusal);
  module.def("rank", [](int major, int minor, const std::string& suffix, int device_major, int device_minor) {
    return aot_arch_rank({major, minor, suffix.empty() ? '\0' : suffix[0]}, {device_major, device_minor});
  });
}
