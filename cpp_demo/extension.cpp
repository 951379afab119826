// Demo 5: a Python extension that takes tensors of any framework by DLPack and calls the kernels that are linked in.
#include <pybind11/pybind11.h>

#include <demo.hpp>

namespace py = pybind11;

namespace {

// DLPack's DLManagedTensor: a tensor, laid out as an aot_tensor, and who frees it.
struct ManagedTensor {
  aot_tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

// Keeps the capsule while the view is used; the capsule frees the tensor that nobody took over.
class Imported {
 public:
  explicit Imported(const py::object& tensor) : capsule_(tensor.attr("__dlpack__")()) {
    void* managed = PyCapsule_GetPointer(capsule_.ptr(), "dltensor");
    if (managed == nullptr) throw py::error_already_set();
    view_ = &static_cast<const ManagedTensor*>(managed)->tensor;
  }
  aot::TensorView view() const { return aot::TensorView(*view_); }

 private:
  py::object capsule_;
  const aot_tensor* view_;
};

void axpy(const py::object& x, const py::object& y, const py::object& out, double alpha, std::uintptr_t stream) {
  const Imported given_x(x), given_y(y), given_out(out);
  demo::axpy(given_x.view(), given_y.view(), given_out.view(), alpha, aot::Stream(reinterpret_cast<void*>(stream)));
}

}  // namespace

PYBIND11_MODULE(demo_extension, module) {
  module.doc() = "Kernels of the bundle `demo`, for tensors that speak DLPack.";
  py::register_exception<aot::Error>(module, "Error", PyExc_RuntimeError);
  module.def("axpy", &axpy, "out = alpha * x + y", py::arg("x"), py::arg("y"), py::arg("out"), py::arg("alpha") = 1.0,
             py::arg("stream") = 0);
}
