// Opening bundles at run time with aot.hpp: what works, and every refusal. Usage: test_open BUNDLE LIBTVM_FFI SCRATCH
#include <aot/aot.hpp>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "harness.hpp"

namespace fs = std::filesystem;

static aot::Options options;

static fs::path copy_of(const fs::path& bundle, const fs::path& scratch, const char* name) {
  const fs::path copy = scratch / name;
  fs::remove_all(copy);
  fs::copy(bundle, copy, fs::copy_options::recursive);
  return copy;
}

static fs::path entry_of(const fs::path& bundle) {
  for (const auto& item : fs::directory_iterator(bundle / "lib" / AOT_HOST)) {
    const std::string name = item.path().filename().string();
    if (item.path().extension() == ".so" && name.find("_cuda") == std::string::npos) return item.path();
  }
  return {};
}

static void test_calls(const fs::path& path) {
  play({h100, a100});
  aot::Bundle bundle(path.string(), options);
  auto out = aot::tensor(static_cast<float*>(fake_memory), {1000});
  auto fill = bundle["fill"];
  fill(out, 2.0);
  CHECK(standin_launch_count() == 1);
  CHECK(last_launch().grid[0] == 8 && last_launch().block[0] == 128 && last_launch().stream == 0);
  fill.on(reinterpret_cast<void*>(0x77))(out, 1);
  CHECK(last_launch().stream == 0x77);
  fill(out, 2.0);
  CHECK(last_launch().stream == 0);
  {
    aot::StreamScope scope(bundle, reinterpret_cast<void*>(0x88));
    fill(out, 2.0);
    CHECK(last_launch().stream == 0x88);
    aot::StreamScope inner(bundle, reinterpret_cast<void*>(0x99));
    fill(out, 2.0);
    CHECK(last_launch().stream == 0x99);
  }
  fill(out, 2.0);
  CHECK(last_launch().stream == 0);

  fill(aot::tensor(static_cast<float*>(fake_memory), {1000}, 1), 2.0);
  CHECK(last_launch().device == 1);
  aot::Tuple pair(out, out), weights(1.5, 3);
  bundle["fill_pair"](pair.value(), weights.value());
  CHECK(last_launch().grid[0] == 3);
  bundle["fill_pointer"](static_cast<const void*>(fake_memory), 64, reinterpret_cast<void*>(0x55));
  CHECK(last_launch().stream == 0x55 && last_launch().grid[0] == 2);
  CHECK(bundle["fill_parts"].workspace_size(out, 4, nullptr) == 16);
  CHECK(bundle["fill"].workspace_size(out, 1.0) == 0);
  bundle["fill_optional"](out, nullptr);
  CHECK(last_launch().block[0] == 32);
  bundle["fill_optional"](out, aot::tensor(static_cast<float*>(other_memory), {4, 1000}));
  CHECK(last_launch().block[0] == 64);
  bundle["fill_epilogue__relu"](out);
  CHECK(last_launch().block[0] == 160);
  bundle["fill_everywhere"](out);
  CHECK(last_launch().grid[0] == 132);

  CHECK(bundle.name() == "bundle" || !bundle.name().empty());
  CHECK(bundle.functions().size() >= 7);
  CHECK(std::string(fill.signature()) == "fill(out, value)");
  CHECK(std::string(fill.doc()) == "Fill a vector with a value.");
  CHECK(std::string(fill.archs()).find("sm_90a") != std::string::npos);
  bundle.preload(0);
  bundle.preload("fill", 1);
  bundle.preload("fill_epilogue");  // all of its choices
  const std::string lines = bundle.explain("fill", 9, 0, out, 1.0);
  CHECK(lines.find("*sm_90a\tfill__f32__aligned\t\n") != std::string::npos);
  CHECK(lines.find("sm_80\tfill\truns from compute capability 8.0") != std::string::npos);
}

// Each is refused, with a sentence of its own.
static void test_null_pointers(const fs::path& path) {
  aot::Bundle bundle(path.string(), options);
  const aot_bundle open = bundle.get();
  const aot_function fill = bundle["fill"].get();
  aot_function nothing = fill, found;
  nothing.info = nullptr;
  aot_bundle handle;
  aot_tensor tensor;
  std::int64_t shape[1] = {4};
  const aot_interface* library = nullptr;
  const aot_value args[1] = {aot_none()};
  const auto refused = [](int code, const char* part) {
    const std::string text = aot_error_text();
    if (code != AOT_ERROR_USAGE || text.find(part) == std::string::npos) std::printf("%d: %s\n", code, text.c_str());
    return code == AOT_ERROR_USAGE && text.find(part) != std::string::npos;
  };
  CHECK(refused(aot_open(nullptr, nullptr, &handle), "aot_open: a null pointer"));
  CHECK(refused(aot_open(path.c_str(), nullptr, nullptr), "aot_open: a null pointer"));
  CHECK(refused(aot_attach(nullptr, &handle), "aot_attach: a null pointer"));
  CHECK(refused(aot_describe(open, nullptr), "aot_describe: a null pointer"));
  CHECK(refused(aot_find(open, nullptr, &found), "aot_find: a null pointer"));
  CHECK(refused(aot_find(open, "fill", nullptr), "aot_find: a null pointer"));
  CHECK(refused(aot_function_at(open, 0, nullptr), "aot_function_at: a null pointer"));
  CHECK(refused(aot_call(fill, nullptr, 1), "aot_call: a null pointer"));
  CHECK(refused(aot_call(nothing, args, 1), "aot_call: a null pointer"));
  CHECK(refused(aot_call_on(fill, nullptr, nullptr, 1), "aot_call_on: a null pointer"));
  CHECK(refused(aot_call_on(nothing, nullptr, args, 1), "aot_call_on: a null pointer"));
  CHECK(refused(aot_explain(open, nullptr, 9, 0, args, 1, nullptr, 0, nullptr), "aot_explain: a null pointer"));
  CHECK(refused(aot_explain(open, "fill", 9, 0, nullptr, 1, nullptr, 0, nullptr), "aot_explain: a null pointer"));
  CHECK(refused(aot_make_tensor(nullptr, fake_memory, 0, aot::float32, 1, shape, shape, nullptr), "aot_make_tensor: a null"));
  CHECK(refused(aot_make_tensor(&tensor, fake_memory, 0, aot::float32, 1, nullptr, shape, nullptr), "aot_make_tensor: a null"));
  CHECK(refused(aot_set_stream(open, -1, nullptr, nullptr), "not one of 0 to 63"));
  CHECK(refused(aot_set_stream(open, 64, nullptr, nullptr), "not one of 0 to 63"));
  const aot_function never{};
  const aot_bundle none{};
  CHECK(refused(aot_call(never, args, 1), "never opened"));
  CHECK(refused(aot_call_on(never, nullptr, args, 1), "never opened"));
  CHECK(refused(aot_describe(none, &library), "never opened"));
  CHECK(refused(aot_find(none, "fill", &found), "never opened"));
  CHECK(refused(aot_function_at(none, 0, &found), "never opened"));
  CHECK(refused(aot_preload(none, "fill", 0), "never opened"));
  CHECK(refused(aot_set_stream(none, 0, nullptr, nullptr), "never opened"));
  CHECK(refused(aot_explain(none, "fill", 9, 0, args, 1, nullptr, 0, nullptr), "never opened"));
}

static void test_bad_arguments(const fs::path& path) {
  play({h100, a100});
  aot::Bundle bundle(path.string(), options);
  auto fill = bundle["fill"];
  auto out = aot::tensor(static_cast<float*>(fake_memory), {1000});
  CHECK_THROWS(aot::ArgumentError, "out.dtype", fill(aot::tensor(static_cast<int*>(fake_memory), {10}), 1.0));
  CHECK_THROWS(aot::ArgumentError, "out.ndim", fill(aot::tensor(static_cast<float*>(fake_memory), {10, 10}), 1.0));
  CHECK_THROWS(aot::ArgumentError, "stride", fill(aot::TensorView(fake_memory, {10}, {2}, aot::float32), 1.0));
  CHECK_THROWS(aot::ArgumentError, "takes 2 arguments, got 1", fill(out));
  CHECK_THROWS(aot::ArgumentError, "value is", fill(out, nullptr));
  CHECK_THROWS(aot::ArgumentError, "out", fill(nullptr, 1.0));
  CHECK_THROWS(aot::ArgumentError, "address is null", aot::tensor(static_cast<float*>(nullptr), {10}));
  CHECK_THROWS(aot::ArgumentError, "out starts 0 bytes after bias and shares memory with it",
               bundle["fill_optional"](out, aot::tensor(static_cast<float*>(fake_memory), {4, 1000})));
  CHECK_THROWS(aot::ArgumentError, "negative", aot::tensor(static_cast<float*>(fake_memory), {-1}));
  CHECK_THROWS(aot::ArgumentError, "2^63", aot::tensor(static_cast<float*>(fake_memory), {INT64_MAX, 2}));
  CHECK_THROWS(aot::ArgumentError, "strides", aot::TensorView(fake_memory, {10}, {2, 1}, aot::float32));
  CHECK_THROWS(aot::ArgumentError, "no tensor says", bundle["fill_pointer"].on(nullptr)(fake_memory, 1, nullptr));
  CHECK_THROWS(aot::NotFoundError, "has no kernel `nothing`; it has fill, ", bundle["nothing"]);
  CHECK_THROWS(aot::DriverError, "device 7", fill(aot::tensor(static_cast<float*>(fake_memory), {8}, 7), 1.0));
  CHECK_THROWS(aot::ArgumentError, "device 99", bundle.preload("fill", 99));
  CHECK_THROWS(aot::NotFoundError, "nope", bundle["nope"]);
  CHECK_THROWS(aot::NotFoundError, "has no kernel `nope`", bundle.preload("nope", 0));
  CHECK_THROWS(aot::NotFoundError, "has no kernel `fill_epilog`", bundle.preload("fill_epilog"));

  // A tensor without strides, as a C caller may leave them.
  aot_tensor bare = *out.get();
  bare.strides = nullptr;
  CHECK_THROWS(aot::ArgumentError, "fill", fill(aot_from_tensor(&bare), 1.0));
  aot_value null_tensor = aot_none();
  null_tensor.type = AOT_TENSOR;
  CHECK_THROWS(aot::ArgumentError, "fill", fill(null_tensor, 1.0));

  // Tensors that no entry may see, among others that are sound, once the code is loaded and nothing but the call is left.
  aot::Tuple both(out, out), half(out, aot_from_tensor(&bare)), weights(1.5, 3);
  auto pair = bundle["fill_pair"];
  pair(both.value(), weights.value());
  CHECK_THROWS(aot::ArgumentError, "pair[1] is a tensor without strides", pair(half.value(), weights.value()));
  aot_tensor nowhere = *out.get();
  nowhere.data = nullptr;
  aot::Tuple unallocated(out, aot_from_tensor(&nowhere));
  CHECK_THROWS(aot::ArgumentError, "whose address is null", fill(aot_from_tensor(&nowhere), 1.0));
  CHECK_THROWS(aot::ArgumentError, "pair[1] is a tensor whose address is null", pair(unallocated.value(), weights.value()));
  std::int64_t no_elements[1] = {0};
  nowhere.shape = no_elements;
  aot::Tuple empty(aot_from_tensor(&nowhere), aot_from_tensor(&nowhere));
  pair(empty.value(), weights.value());
  aot_tensor negative = *out.get();
  negative.ndim = -1;
  CHECK_THROWS(aot::ArgumentError, "out.ndim is -1", fill(aot_from_tensor(&negative), 1.0));
  aot_tuple_header header;
  CHECK_THROWS(aot::ArgumentError, "pair", pair(aot_from_tuple(nullptr, nullptr, 2), weights.value()));
  CHECK_THROWS(aot::ArgumentError, "pair", pair(aot_from_tuple(&header, nullptr, 2), weights.value()));
  CHECK_THROWS(aot::ArgumentError, "no tensor", pair.on(nullptr)(aot_from_tuple(&header, nullptr, 2), weights.value()));
  aot_value unknown = aot_none();
  unknown.type = 12345;
  CHECK_THROWS(aot::ArgumentError, "value is something else", fill(out, unknown));

  // A stream of another device.
  standin_add_stream(0xABC0, 1);
  fill(out, 1.0);
  CHECK_THROWS(aot::CudaError, "400", fill.on(reinterpret_cast<void*>(0xABC0))(out, 1.0));

  int code = 0;
  const char* text = nullptr;
  CHECK(aot_last_error(&code, &text) == AOT_OK && code == AOT_ERROR_CUDA && std::string(text).size() > 10);
}

// Nothing a caller writes into a tensor overflows anything, whatever becomes of the call: for the sanitizers.
static void test_absurd_tensors(const fs::path& path) {
  play({h100});
  aot::Bundle bundle(path.string(), options);
  const std::int64_t numbers[] = {INT64_MIN, INT64_MIN + 1, -3, 0, 1, 2, INT64_MAX - 1, INT64_MAX};
  const std::int32_t ranks[] = {INT32_MIN, -1, 0, 1, 2, 3};
  const auto sound = aot::tensor(static_cast<float*>(fake_memory), {1000});
  int refused = 0;
  for (const std::int64_t extent : numbers) {
    for (const std::int64_t stride : numbers) {
      for (const std::int32_t rank : ranks) {
        std::int64_t shape[3] = {extent, 2, extent}, strides[3] = {stride, stride, 1};
        aot_tensor tensor = *sound.get();
        tensor.ndim = rank;
        tensor.shape = shape;
        tensor.strides = strides;
        for (const char* name : {"fill", "fill_optional"}) {
          for (const bool as_output : {true, false}) {
            const aot_value first = aot_from_tensor(as_output ? &tensor : sound.get());
            const aot_value second = name[4] == 0 ? aot_from_float(1.0) : aot_from_tensor(&tensor);
            try {
              bundle[name](first, second);
            } catch (const aot::Error&) {
              ++refused;
            }
          }
        }
      }
    }
  }
  CHECK(refused > 1000);
}

static void test_devices(const fs::path& path) {
  aot::Bundle bundle(path.string(), options);
  play({h100});
  auto out = aot::tensor(static_cast<float*>(fake_memory), {1000}, 15);
  CHECK_THROWS(aot::DriverError, "device 15", bundle["fill"](out, 1.0));
}

static void test_capture(const fs::path& path) {
  play({h100});
  aot::Bundle bundle(path.string(), options);
  auto out = aot::tensor(static_cast<float*>(fake_memory), {1000});
  standin_begin_capture(0x66, 0);
  CHECK_THROWS(aot::CaptureError, "preload", bundle["fill"].on(reinterpret_cast<void*>(0x66))(out, 1.0));
  standin_end_capture(0x66);
  bundle.preload(0);
  standin_begin_capture(0x66, 0);
  bundle["fill"].on(reinterpret_cast<void*>(0x66))(out, 1.0);
  standin_end_capture(0x66);
  CHECK(last_launch().captured == 1);
}

static void test_bad_bundles(const fs::path& path, const fs::path& scratch) {
  play({h100});
  CHECK_THROWS(aot::BundleError, "not a bundle", aot::Bundle("/nowhere/at/all", options));
  CHECK_THROWS(aot::BundleError, "not a bundle", aot::Bundle(scratch.string(), options));
  CHECK_THROWS(aot::BundleError, "not a bundle", aot::Bundle("", options));
  CHECK_THROWS(aot::BundleError, "too long", aot::Bundle(std::string(5000, 'x'), options));

  fs::path copy = copy_of(path, scratch, "other_host");
  std::ifstream stream(copy / "manifest.json");
  std::string manifest{std::istreambuf_iterator<char>(stream), {}};
  for (std::size_t at; (at = manifest.find(AOT_HOST)) != std::string::npos;) {
    manifest.replace(at, std::strlen(AOT_HOST), "riscv64-linux-gnu");
  }
  std::ofstream(copy / "manifest.json") << manifest;
  CHECK_THROWS(aot::HostError, "names no entry library for this host", aot::Bundle(copy.string(), options));

  copy = copy_of(path, scratch, "damaged");
  {
    std::fstream entry(entry_of(copy), std::ios::in | std::ios::out | std::ios::binary);
    const char other = (char)~entry.seekg(5000).get();
    entry.seekp(5000).write(&other, 1);
  }
  CHECK_THROWS(aot::DigestError, "sha256", aot::Bundle(copy.string(), options));

  copy = copy_of(path, scratch, "empty_entry");
  fs::resize_file(entry_of(copy), 0);
  aot::Options trusting = options;
  trusting.verify = false;
  CHECK_THROWS(aot::DigestError, "sha256", aot::Bundle(copy.string(), options));
  CHECK_THROWS(aot::BundleError, "cannot open", aot::Bundle(copy.string(), trusting));

  copy = copy_of(path, scratch, "no_entry");
  fs::remove(entry_of(copy));
  CHECK_THROWS(aot::BundleError, "cannot read", aot::Bundle(copy.string(), options));

  for (const char* text : {"", "garbage", "{}", "{\"hosts\": {\"entry\": {\"path\": \"../x\", \"sha256\": \"00\", \"size\": 1}}}"}) {
    copy = copy_of(path, scratch, "bad_manifest");
    std::ofstream(copy / "manifest.json") << text;
    CHECK_THROWS(aot::HostError, "names no entry library for this host", aot::Bundle(copy.string(), options));
  }

  copy = copy_of(path, scratch, "missing_kernel");
  for (const char* arch : {"sm_90a", "sm_80"}) fs::remove(copy / "lib" / AOT_HOST / arch / "fill.so");
  aot::Bundle missing(copy.string(), options);
  auto out = aot::tensor(static_cast<float*>(fake_memory), {1000});
  CHECK_THROWS(aot::BundleError, "is missing", missing["fill"](out, 1.0));
  missing["fill_optional"](out, nullptr);

  copy = copy_of(path, scratch, "damaged_kernel");
  { std::ofstream(copy / "lib" / AOT_HOST / "sm_90a" / "fill.so", std::ios::app) << "x"; }
  aot::Bundle damaged(copy.string(), options);
  CHECK_THROWS(aot::DigestError, "bytes, expected", damaged["fill"](out, 1.0));

  // Two copies of a bundle are two bundles, each with its own files and state.
  aot::Bundle first(path.string(), options), second(copy_of(path, scratch, "second").string(), options);
  standin_clear();
  first["fill"](out, 1.0);
  second["fill"](out, 1.0);
  CHECK(standin_launch_count() == 2);
}

// A function outlives the object it was found in, and opening a bundle again is no other bundle.
static void test_bundles_are_plain_values(const fs::path& path) {
  play({h100});
  auto out = aot::tensor(static_cast<float*>(fake_memory), {1000});
  const auto fill = [&] { return aot::Bundle(path.string(), options)["fill"]; }();
  fill(out, 1.0);
  CHECK(standin_launch_count() == 1);
  std::vector<aot::Bundle> many;
  for (int i = 0; i < 10; ++i) many.emplace_back(path.string(), options);
  CHECK(many.front().get().library == many.back().get().library);
  const auto working = fs::current_path();
  fs::current_path(path.parent_path());
  CHECK(aot::Bundle(path.filename().string(), options).get().library == many.front().get().library);
  fs::current_path(working);
}

int main(int count, char** arguments) {
  if (count != 4) return 2;
  const fs::path bundle = arguments[1], scratch = arguments[3];
  if (std::string(arguments[2]) != "linked") {
    aot::Options nowhere;
    nowhere.tvm_ffi = "/nowhere/libtvm_ffi.so";
    CHECK_THROWS(aot::TvmFfiError, "/nowhere/libtvm_ffi.so", aot::Bundle(bundle.string(), nowhere));
    options.tvm_ffi = arguments[2];
  }
  fs::create_directories(scratch);
  test_capture(bundle); /* first: code is loaded once per process */
  test_calls(bundle);
  test_bad_arguments(bundle);
  test_null_pointers(bundle);
  test_absurd_tensors(bundle);
  test_devices(bundle);
  test_bad_bundles(bundle, scratch);
  test_bundles_are_plain_values(bundle);
  return finish("test_open");
}
