// Using a bundle from C++17: aot.h with types, and exceptions.
//
//     aot::Bundle bundle("dist/kernels");
//     auto fill = bundle["fill"];
//     fill(aot::tensor(pointer, {1024}, aot::float32), 1.0);
//     fill.on(stream)(aot::tensor(pointer, {1024}, aot::float32), 1.0);
//
// Header-only; a call allocates nothing. Threads: as in aot.h, everything but assigning to an object that another
// thread uses. A StreamScope is for the thread that made it.
#ifndef AOT_AOT_HPP_
#define AOT_AOT_HPP_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "aot.h"

namespace aot {

// ---- errors: one class per code, all under Error ----

// What every function throws if it fails. The text is a sentence that says what was seen, and often what to do.
class Error : public std::runtime_error {
 public:
  Error(int code, const std::string& text) : std::runtime_error(text), code_(code) {}
  int code() const noexcept { return code_; }  // AOT_ERROR_*

 private:
  int code_;
};

/* errors: written by tools/errors.py */
class UsageError : public Error { using Error::Error; };
class ArgumentError : public Error { using Error::Error; };
class BundleError : public Error { using Error::Error; };
class DeviceError : public Error { using Error::Error; };
class DriverError : public Error { using Error::Error; };
class CudaError : public Error { using Error::Error; };
class TvmFfiError : public Error { using Error::Error; };
class NotFoundError : public Error { using Error::Error; };
class HostError : public BundleError { using BundleError::BundleError; };
class VersionError : public BundleError { using BundleError::BundleError; };
class DigestError : public BundleError { using BundleError::BundleError; };
class CaptureError : public CudaError { using CudaError::CudaError; };
class SignatureError : public BundleError { using BundleError::BundleError; };
/* end of errors */

namespace detail {

[[noreturn]] inline void raise(int code) {
  const std::string text = aot_error_text();
  switch (code) {
    /* codes: written by tools/errors.py */
    case AOT_ERROR_USAGE: throw UsageError(code, text);
    case AOT_ERROR_ARGUMENT: throw ArgumentError(code, text);
    case AOT_ERROR_BUNDLE: throw BundleError(code, text);
    case AOT_ERROR_DEVICE: throw DeviceError(code, text);
    case AOT_ERROR_DRIVER: throw DriverError(code, text);
    case AOT_ERROR_CUDA: throw CudaError(code, text);
    case AOT_ERROR_TVM_FFI: throw TvmFfiError(code, text);
    case AOT_ERROR_NOT_FOUND: throw NotFoundError(code, text);
    case AOT_ERROR_HOST: throw HostError(code, text);
    case AOT_ERROR_VERSION: throw VersionError(code, text);
    case AOT_ERROR_DIGEST: throw DigestError(code, text);
    case AOT_ERROR_CAPTURE: throw CaptureError(code, text);
    case AOT_ERROR_SIGNATURE: throw SignatureError(code, text);
    /* end of codes */
    default: throw Error(code, text);
  }
}

inline void check(int code) {
  if (__builtin_expect(code != AOT_OK, 0)) raise(code);
}

}  // namespace detail

// ---- data types ----

// The data type of the elements of a tensor.
using DType = aot_dtype;

/* dtypes: written by tools/dtypes.py */
inline constexpr DType boolean{AOT_DTYPE_BOOL, 8, 1},
    int4{AOT_DTYPE_INT, 4, 1},
    int8{AOT_DTYPE_INT, 8, 1},
    uint8{AOT_DTYPE_UINT, 8, 1},
    int16{AOT_DTYPE_INT, 16, 1},
    uint16{AOT_DTYPE_UINT, 16, 1},
    int32{AOT_DTYPE_INT, 32, 1},
    uint32{AOT_DTYPE_UINT, 32, 1},
    int64{AOT_DTYPE_INT, 64, 1},
    uint64{AOT_DTYPE_UINT, 64, 1},
    float16{AOT_DTYPE_FLOAT, 16, 1},
    bfloat16{AOT_DTYPE_BFLOAT, 16, 1},
    float32{AOT_DTYPE_FLOAT, 32, 1},
    float64{AOT_DTYPE_FLOAT, 64, 1},
    float8_e4m3fn{AOT_DTYPE_FLOAT8_E4M3FN, 8, 1},
    float8_e5m2{AOT_DTYPE_FLOAT8_E5M2, 8, 1},
    float8_e8m0fnu{AOT_DTYPE_FLOAT8_E8M0FNU, 8, 1},
    float6_e2m3fn{AOT_DTYPE_FLOAT6_E2M3FN, 6, 1},
    float6_e3m2fn{AOT_DTYPE_FLOAT6_E3M2FN, 6, 1},
    float4_e2m1fn_x2{AOT_DTYPE_FLOAT4_E2M1FN, 4, 2};
/* end of dtypes */

// The data type of a C++ type. Specialise it for other types:
// `template <> inline constexpr aot::DType aot::dtype_of<__half> = aot::float16;`
template <typename T>
inline constexpr DType dtype_of = std::is_same_v<T, bool>
                                      ? boolean
                                      : DType{std::is_floating_point_v<T> ? std::uint8_t{AOT_DTYPE_FLOAT}
                                              : std::is_signed_v<T>       ? std::uint8_t{AOT_DTYPE_INT}
                                                                          : std::uint8_t{AOT_DTYPE_UINT},
                                              static_cast<std::uint8_t>(8 * sizeof(T)), 1};

// ---- tensors ----

// Memory on a GPU, seen as a tensor. Holds shape and strides itself, owns no memory, allocates none.
class TensorView {
 public:
  static constexpr int max_rank = 8;

  // Row-major.
  TensorView(void* data, std::initializer_list<std::int64_t> shape, DType dtype, int device = 0)
      : TensorView(data, shape.begin(), static_cast<int>(shape.size()), nullptr, dtype, device) {}

  // Strides count elements.
  TensorView(void* data, std::initializer_list<std::int64_t> shape, std::initializer_list<std::int64_t> strides,
             DType dtype, int device = 0)
      : TensorView(data, shape.begin(), same_rank(shape.size(), strides.size()), strides.begin(), dtype, device) {}

  // `strides` null: row-major.
  TensorView(void* data, const std::int64_t* shape, int rank, const std::int64_t* strides, DType dtype, int device = 0) {
    if (rank < 0 || rank > max_rank) {
      throw ArgumentError(AOT_ERROR_ARGUMENT, "a TensorView has 0 to 8 dimensions, not " + std::to_string(rank));
    }
    for (int i = 0; i < rank; ++i) shape_[i] = shape[i];
    for (int i = 0; strides != nullptr && i < rank; ++i) strides_[i] = strides[i];
    detail::check(aot_make_tensor(&tensor_, data, device, dtype, rank, shape_, strides == nullptr ? nullptr : strides_,
                                  strides_));
  }

  // A copy of what C described.
  explicit TensorView(const aot_tensor& tensor)
      : TensorView(static_cast<char*>(tensor.data) + tensor.byte_offset, tensor.shape, tensor.ndim, tensor.strides,
                   tensor.dtype, tensor.device_id) {
    tensor_.device_type = tensor.device_type;
  }

  // A view of what a framework exported: anything with the fields of DLPack's DLTensor.
  template <typename DLTensorLike, typename = decltype(std::declval<DLTensorLike>().byte_offset)>
  static TensorView from_dlpack(const DLTensorLike& other) {
    static_assert(sizeof(DLTensorLike) == sizeof(aot_tensor), "not a DLTensor");
    if (static_cast<int>(other.device.device_type) != AOT_DEVICE_CUDA) {
      throw ArgumentError(AOT_ERROR_ARGUMENT, "the tensor does not lie on a CUDA device");
    }
    const DType dtype{other.dtype.code, other.dtype.bits, other.dtype.lanes};
    void* data = static_cast<char*>(other.data) + other.byte_offset;
    return TensorView(data, other.shape, other.ndim, other.strides, dtype, other.device.device_id);
  }

  TensorView(const TensorView& other) noexcept { *this = other; }
  TensorView& operator=(const TensorView& other) noexcept {
    tensor_ = other.tensor_;
    for (int i = 0; i < tensor_.ndim; ++i) {
      shape_[i] = other.shape_[i];
      strides_[i] = other.strides_[i];
    }
    tensor_.shape = shape_;
    tensor_.strides = strides_;
    return *this;
  }

  // The same for functions of C; valid as long as this view.
  const aot_tensor* get() const noexcept { return &tensor_; }
  void* data() const noexcept { return tensor_.data; }
  int rank() const noexcept { return tensor_.ndim; }
  std::int64_t extent(int dim) const noexcept { return shape_[dim]; }
  std::int64_t stride(int dim) const noexcept { return strides_[dim]; }
  DType dtype() const noexcept { return tensor_.dtype; }
  int device() const noexcept { return tensor_.device_id; }

 private:
  static int same_rank(std::size_t extents, std::size_t strides) {
    if (extents == strides) return static_cast<int>(extents);
    throw ArgumentError(AOT_ERROR_ARGUMENT, "a tensor of rank " + std::to_string(extents) + " was given " +
                                                std::to_string(strides) + " strides");
  }

  aot_tensor tensor_;
  std::int64_t shape_[max_rank];
  std::int64_t strides_[max_rank];
};

// A row-major tensor; the data type of a typed pointer is that of its type.
inline TensorView tensor(void* data, std::initializer_list<std::int64_t> shape, DType dtype, int device = 0) {
  return TensorView(data, shape, dtype, device);
}

template <typename T>
TensorView tensor(T* data, std::initializer_list<std::int64_t> shape, int device = 0) {
  return TensorView(data, shape, dtype_of<T>, device);
}

// A tensor or nothing, for parameters that may be left out. Refers to the view, which must outlive the call.
class OptionalTensor {
 public:
  OptionalTensor(std::nullptr_t = nullptr) noexcept {}
  OptionalTensor(const TensorView& view) noexcept : view_(&view) {}
  const aot_tensor* get() const noexcept { return view_ == nullptr ? nullptr : view_->get(); }

 private:
  const TensorView* view_ = nullptr;
};

// ---- streams ----

// A stream for one call; without one, the call goes to the stream that is set in this thread.
class Stream {
 public:
  Stream() noexcept = default;
  explicit Stream(void* handle) noexcept : handle_(handle), given_(true) {}
  void* handle() const noexcept { return handle_; }
  bool given() const noexcept { return given_; }

 private:
  void* handle_ = nullptr;
  bool given_ = false;
};

// ---- values ----

namespace detail {

template <typename T>
aot_value to_value(const T& argument) {
  using Plain = std::decay_t<T>;
  if constexpr (std::is_same_v<Plain, aot_value>) return argument;
  else if constexpr (std::is_same_v<Plain, TensorView>) return aot_from_tensor(argument.get());
  else if constexpr (std::is_same_v<Plain, OptionalTensor>) return aot_from_tensor(argument.get());
  else if constexpr (std::is_same_v<Plain, std::nullptr_t>) return aot_none();
  else if constexpr (std::is_same_v<Plain, bool>) return aot_from_bool(argument);
  else if constexpr (std::is_integral_v<Plain>) return aot_from_int(static_cast<std::int64_t>(argument));
  else if constexpr (std::is_floating_point_v<Plain>) return aot_from_float(static_cast<double>(argument));
  else if constexpr (std::is_pointer_v<Plain>) return aot_from_pointer(static_cast<const void*>(argument));
  else static_assert(!sizeof(T), "pass a TensorView, a number, a bool, nullptr, a pointer, or an aot_value");
}

// What a generated function does.
inline void call(const aot_core& core, aot_entry entry, const aot_value* args, int count, Stream stream) {
  aot_value result = {AOT_NONE, 0, {0}};
  if (__builtin_expect(stream.given(), 0)) {
    check(aot_call_entry_on_(&core, entry, stream.handle(), args, count));
  } else if (__builtin_expect(entry(nullptr, args, count, &result) != 0, 0)) {
    raise(aot_raised_(&core));
  }
}

inline std::size_t workspace_size(const aot_core& core, aot_entry entry, const aot_value* args, int count) {
  std::size_t bytes = 0;
  check(aot_entry_workspace_size_(&core, entry, args, count, &bytes));
  return bytes;
}

}  // namespace detail

// Values as one tuple argument; holds them itself.
template <std::size_t N>
class Tuple {
 public:
  template <typename... Values, typename = std::enable_if_t<sizeof...(Values) == N>>
  explicit Tuple(const Values&... values) : values_{detail::to_value(values)...} {}
  aot_value value() noexcept { return aot_from_tuple(&header_, values_, static_cast<std::int64_t>(N)); }

 private:
  aot_tuple_header header_;
  aot_value values_[N == 0 ? 1 : N];
};
template <typename... Values>
Tuple(const Values&...) -> Tuple<sizeof...(Values)>;

// ---- functions ----

// A function of a bundle: a plain value, good for ever.
class Function {
 public:
  explicit Function(aot_function function) noexcept : function_(function) {}

  // Calls it. Pass tensors, numbers, bools, pointers, nullptr for what may be left out, and Tuple::value().
  template <typename... Arguments>
  void operator()(const Arguments&... arguments) const {
    const aot_value args[] = {detail::to_value(arguments)..., aot_none()};
    const int count = static_cast<int>(sizeof...(arguments));
    detail::check(stream_.given() ? aot_call_on(function_, stream_.handle(), args, count)
                                  : aot_call(function_, args, count));
  }

  // How many bytes of scratch memory that call needs. Nothing is launched; pass nullptr for the memory itself.
  template <typename... Arguments>
  std::size_t workspace_size(const Arguments&... arguments) const {
    const aot_value args[] = {detail::to_value(arguments)..., aot_none()};
    std::size_t bytes = 0;
    detail::check(aot_workspace_size(function_, args, static_cast<int>(sizeof...(arguments)), &bytes));
    return bytes;
  }

  // The same function, on a stream of the device its tensors lie on.
  Function on(void* stream) const noexcept {
    Function bound(*this);
    bound.stream_ = Stream(stream);
    return bound;
  }

  // What the bundle says of it: `signature` is as callers write it, `archs` is like "sm_80 sm_90a".
  const char* name() const noexcept { return function_.info->name; }
  const char* signature() const noexcept { return function_.info->signature; }
  const char* doc() const noexcept { return function_.info->doc; }
  const char* archs() const noexcept { return function_.info->archs; }
  aot_function get() const noexcept { return function_; }

 private:
  aot_function function_;
  Stream stream_;
};

// How a bundle is opened.
struct Options {
  bool verify = true;   // compare digests before native code is opened
  std::string tvm_ffi;  // path of libtvm_ffi.so, if the process has to open it and does not find it
  // What is set is checked. An empty text refuses every bundle: a key that could not be read turns no check off.
  std::optional<std::string> manifest_sha256;  // refuse a bundle with another manifest.json; see aot_options
  std::optional<std::string> key;              // refuse a bundle that none of these keys has signed; see aot_options
  std::optional<std::string> name;             // refuse a bundle of another name
};

// An open bundle: a plain value, good for ever, since code that was opened stays mapped.
class Bundle {
 public:
  // Opens the directory that `python -m aot build` printed.
  explicit Bundle(const std::string& path, const Options& options = {}) {
    aot_options plain{};
    plain.skip_verification = !options.verify;
    plain.tvm_ffi = options.tvm_ffi.empty() ? nullptr : options.tvm_ffi.c_str();
    plain.manifest_sha256 = options.manifest_sha256 ? options.manifest_sha256->c_str() : nullptr;
    plain.key = options.key ? options.key->c_str() : nullptr;
    plain.name = options.name ? options.name->c_str() : nullptr;
    detail::check(aot_open(path.c_str(), &plain, &handle_));
  }

  // A bundle that was linked: give the interface that <name>.h declares.
  explicit Bundle(const aot_interface& linked) { detail::check(aot_attach(&linked, &handle_)); }

  // The kernel of that name, with its choices: "add", "activation__relu". NotFoundError if there is none.
  Function operator[](const char* kernel) const {
    aot_function found;
    detail::check(aot_find(handle_, kernel, &found));
    return Function(found);
  }
  Function operator[](const std::string& kernel) const { return (*this)[kernel.c_str()]; }

  // The name of the bundle, and a text that differs between two builds that differ in code.
  std::string name() const { return describe().name; }
  std::string build() const { return describe().build; }

  // All functions, sorted by name.
  std::vector<Function> functions() const {
    std::vector<Function> all;
    for (std::uint32_t i = 0; i < describe().function_count; ++i) {
      aot_function found;
      detail::check(aot_function_at(handle_, i, &found));
      all.emplace_back(found);
    }
    return all;
  }

  // Loads code now rather than at the first call, as a CUDA graph capture needs.
  void preload(int device = 0) const { detail::check(aot_preload(handle_, nullptr, device)); }
  void preload(const std::string& kernel, int device = 0) const {
    detail::check(aot_preload(handle_, kernel.c_str(), device));
  }

  // What a call would run on a device of compute capability major.minor, and why not the rest.
  template <typename... Arguments>
  std::string explain(const std::string& kernel, int major, int minor, const Arguments&... arguments) const {
    const aot_value args[] = {detail::to_value(arguments)..., aot_none()};
    const int count = static_cast<int>(sizeof...(arguments));
    std::size_t size = 0;
    detail::check(aot_explain(handle_, kernel.c_str(), major, minor, args, count, nullptr, 0, &size));
    std::string text(size + 1, '\0');
    detail::check(aot_explain(handle_, kernel.c_str(), major, minor, args, count, text.data(), text.size(), &size));
    text.resize(size);
    return text;
  }

  aot_bundle get() const noexcept { return handle_; }

 private:
  const aot_interface& describe() const {
    const aot_interface* library = nullptr;
    detail::check(aot_describe(handle_, &library));
    return *library;
  }

  aot_bundle handle_{nullptr};
};

// Until the end of the scope, calls of this thread go to that stream of that device, for all bundles.
class StreamScope {
 public:
  StreamScope(const Bundle& bundle, void* stream, int device = 0) : StreamScope(core_of(bundle), stream, device) {}
  // For a bundle that was linked: give aot_<name>_core.
  StreamScope(const aot_core& core, void* stream, int device = 0) : core_(core), device_(device) {
    if (core_.set_stream(device, stream, &previous_) != 0) detail::raise(aot_raised_(&core_));
  }
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;
  ~StreamScope() { core_.set_stream(device_, previous_, nullptr); }

 private:
  static const aot_core& core_of(const Bundle& bundle) {
    const aot_interface* library = nullptr;
    detail::check(aot_describe(bundle.get(), &library));
    return *library->core;
  }

  const aot_core& core_;
  int device_;
  void* previous_ = nullptr;
};

}  // namespace aot

#endif  // AOT_AOT_HPP_
