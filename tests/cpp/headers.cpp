// The C++ headers beside a C unit that includes the C ones: errors are the same in both.
#include <bundle.hpp>

#include <dlpack/dlpack.h>
#include <tvm/ffi/c_api.h>

#include "harness.hpp"

extern "C" int error_from_c(void);
extern "C" const char* text_from_c(void);

// The layouts that abi.h states are those of DLPack and TVM-FFI.
static_assert(sizeof(aot_tensor) == sizeof(DLTensor) && offsetof(aot_tensor, device_type) == offsetof(DLTensor, device));
static_assert(offsetof(aot_tensor, ndim) == offsetof(DLTensor, ndim) && offsetof(aot_tensor, dtype) == offsetof(DLTensor, dtype));
static_assert(offsetof(aot_tensor, shape) == offsetof(DLTensor, shape));
static_assert(offsetof(aot_tensor, strides) == offsetof(DLTensor, strides));
static_assert(offsetof(aot_tensor, byte_offset) == offsetof(DLTensor, byte_offset));
static_assert(sizeof(aot_dtype) == sizeof(DLDataType) && sizeof(aot_value) == sizeof(TVMFFIAny));
static_assert(offsetof(aot_value, as) == offsetof(TVMFFIAny, v_int64));
static_assert(int{AOT_INT} == int{kTVMFFIInt} && int{AOT_BOOL} == int{kTVMFFIBool} && int{AOT_FLOAT} == int{kTVMFFIFloat} && int{AOT_NONE} == int{kTVMFFINone});
static_assert(int{AOT_POINTER} == int{kTVMFFIOpaquePtr} && int{AOT_TENSOR} == int{kTVMFFIDLTensorPtr} && int{AOT_TUPLE} == int{kTVMFFIArray});
static_assert(int{AOT_DEVICE_CUDA} == int{kDLCUDA} && int{AOT_DTYPE_BFLOAT} == int{kDLBfloat} && int{AOT_DTYPE_BOOL} == int{kDLBool});
static_assert(int{AOT_DTYPE_FLOAT8_E4M3FN} == int{kDLFloat8_e4m3fn} && int{AOT_DTYPE_FLOAT8_E5M2} == int{kDLFloat8_e5m2});
static_assert(int{AOT_DTYPE_FLOAT8_E8M0FNU} == int{kDLFloat8_e8m0fnu});
static_assert(offsetof(aot_tuple_header, values) == sizeof(TVMFFIObject) + offsetof(TVMFFISeqCell, data));
static_assert(offsetof(aot_tuple_header, size) == sizeof(TVMFFIObject) + offsetof(TVMFFISeqCell, size));
static_assert(sizeof(aot_tuple_header) == sizeof(TVMFFIObject) + sizeof(TVMFFISeqCell));
static_assert(std::is_trivially_copyable_v<aot::Bundle> && std::is_trivially_copyable_v<aot::Function>);
static_assert(aot::dtype_of<float>.bits == 32 && aot::dtype_of<unsigned char>.code == AOT_DTYPE_UINT);
static_assert(aot::dtype_of<bool>.code == AOT_DTYPE_BOOL && aot::dtype_of<double>.code == AOT_DTYPE_FLOAT);

int main() {
  CHECK(error_from_c() == AOT_ERROR_BUNDLE);
  CHECK(std::string(aot_error_text()) == text_from_c());
  std::uint32_t major = 0, minor = 9;
  CHECK(aot_get_version(&major, &minor) == AOT_OK && major == AOT_PROTOCOL_MAJOR && minor == AOT_PROTOCOL_MINOR);

  std::int64_t shape[] = {3, 5}, strides[] = {8, 1};
  DLTensor from_framework{fake_memory, {kDLCUDA, 1}, 2, {kDLFloat, 16, 1}, shape, strides, 64};
  const auto view = aot::TensorView::from_dlpack(from_framework);
  CHECK(view.data() == static_cast<char*>(fake_memory) + 64 && view.stride(0) == 8 && view.device() == 1);
  const aot::TensorView copy = view;
  CHECK(copy.get()->shape != view.get()->shape && copy.extent(1) == 5 && copy.get()->shape[0] == 3);
  from_framework.device.device_type = kDLCPU;
  CHECK_THROWS(aot::ArgumentError, "CUDA", aot::TensorView::from_dlpack(from_framework));
  CHECK(aot::tensor(static_cast<float*>(fake_memory), {}).rank() == 0);
  CHECK(aot::tensor(static_cast<float*>(nullptr), {4, 0}).extent(1) == 0);
  CHECK_THROWS(aot::ArgumentError, "0 to 8", aot::TensorView(fake_memory, {1, 1, 1, 1, 1, 1, 1, 1, 1}, aot::int8));
  return finish("headers");
}
