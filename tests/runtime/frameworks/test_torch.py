"""A bundle's kernels as operators of torch. Kernels are played by Python functions here, so that CPU tensors will do."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aot_runtime
import aot_runtime.native
import pytest
from aot_runtime import ArgumentError
from aot_runtime.description.kernel_records import Choice, KernelRecord, Parameter
from aot_runtime.frameworks.exposed import ExposeError

pytestmark = [
    pytest.mark.torch,
    # Torch warns about parts of itself that it calls.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning"),
]
torch: Any = None
operators: Any = None
with suppress(ImportError):
    import torch
    from aot_runtime import torch as operators


@pytest.fixture(autouse=True)
def _needs_torch() -> None:
    if torch is None:
        pytest.skip("operators of torch need torch")


def tensor(name: str, **fields: Any) -> Parameter:
    return Parameter(name, type=fields.pop("type", "tensor"), **fields)


def output(name: str, shape: str = "x.shape", dtype: str = "x.dtype", **fields: Any) -> Parameter:
    return Parameter(name, output=True, shape=shape, dtype=dtype, type="tensor", **fields)


def kernel(name: str, *parameters: Parameter, choices: tuple[Choice, ...] = ()) -> KernelRecord:
    values = choices[0].values if choices else ()
    functions = tuple(f"{name}__{value}" for value in values) or (name,)
    return KernelRecord(name, f"What {name} computes.", parameters, choices, functions, (), 1)


EPS = Parameter("eps", has_default=True, default=1e-6, type="float")
KERNELS = {
    "rmsnorm": kernel("rmsnorm", tensor("x"), tensor("weight", doc="one per column"), output("out"), EPS),
    "activation": kernel("activation", tensor("x"), output("out"), choices=(Choice("op", ("relu", "sigmoid")),)),
    "quantize": kernel(
        "quantize", tensor("x"), output("out", dtype="f8e4m3"), output("scale", "(x.shape[0],)", "f32")
    ),
    "gemm": kernel(
        "gemm", tensor("a"), tensor("b"), output("out", "(*a.shape[:-1], b.shape[-2])", "a.dtype"),
        Parameter("bias", has_default=True, default=None, type="tensor?"),
    ),
    "twice": kernel(
        "twice", tensor("x"), output("out"),
        Parameter("scratch", has_default=True, default=None, type="tensor?", workspace="4 * x.shape[0]"),
    ),
    # The caller picks the dtype of `out`, and may leave `total` out.
    "peaks": kernel(
        "peaks", tensor("x"), output("out", dtype="out.dtype", accepts=("float64[:, :]", "float32[:, :]")),
        output("total", "(x.shape[0],)", "f32").replace(type="tensor?", has_default=True),
    ),
    # Names that mean something in Python, or that a generated function could have.
    "out_form": kernel(
        "out_form", tensor("type"), tensor("isinstance"), tensor("functional_kernel"),
        output("Exception", "(max(type.shape[0], min), max)", "type.dtype"),
        Parameter("min", type="int"), Parameter("max", type="int"),
    ),
    "pointers": kernel("pointers", tensor("x"), output("out"), Parameter("p", type="pointer")),
    "nothing_in": kernel("nothing_in", output("out", "(4,)", "f32")),
}  # fmt: skip


class Played:
    """A bundle whose compiled functions are Python's; counts how often each was reached."""

    def __init__(self, name: str, path: str = "here") -> None:
        self.name, self.path = name, Path(path)
        self.kernels = tuple(KERNELS)
        self.calls: list[str] = []
        self.manifest = SimpleNamespace(hosts={})

    def _replace(self, functions: dict[str, Any]) -> None:
        self.__dict__.update(functions)

    def _record(self, name: str) -> KernelRecord:
        return KERNELS[name]

    def _call(self, name: str) -> int:
        return 1005  # the protocol of a bundle that cannot be asked about calls without memory

    def _symbol(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> None:
            refuse_without_memory(arguments)
            self.calls.append(name)
            with torch.no_grad():
                _PLAYED[name](*arguments)

        return call


def refuse_without_memory(arguments: tuple[Any, ...]) -> None:
    """As dispatch does; for tensors inside of vmap, torch raises an error itself if it is asked for their memory."""
    for tensor in arguments:
        if isinstance(tensor, torch.Tensor) and tensor.is_cpu and tensor.numel() and tensor.data_ptr() == 0:
            raise ArgumentError("a tensor whose address is null")


def _peaks(x: Any, out: Any, total: Any) -> None:
    out.copy_(x.clamp(min=1))
    if total is not None:
        total.copy_(x.sum(-1))


def _quantize(x: Any, out: Any, scale: Any) -> None:
    scale.copy_(x.abs().amax(-1) / 448)
    out.copy_((x / scale[:, None]).to(out.dtype))


_PLAYED: dict[str, Callable[..., Any]] = {
    "rmsnorm": lambda x, weight, out, eps: out.copy_(torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)),
    "activation__relu": lambda x, out: out.copy_(torch.relu(x)),
    "activation__sigmoid": lambda x, out: out.copy_(torch.sigmoid(x)),
    "quantize": _quantize,
    "peaks": _peaks,
    "out_form": lambda type, isinstance, functional_kernel, out, min, max: out.copy_(type + isinstance),
    "twice": lambda x, out, scratch: out.copy_(2 * x if scratch is None else scratch),
    "gemm": lambda a, b, out, bias: out.copy_(a @ b.mT + (0 if bias is None else bias)),
}


def test_a_workspace_is_no_argument_of_an_operator_but_may_be_passed_to_the_kernel(ops: Any, bundle: Played) -> None:
    assert str(torch.ops.played.twice.default._schema) == "played::twice(Tensor x) -> Tensor"
    x, out = torch.ones(3), torch.zeros(3)
    assert torch.equal(ops.twice(x), 2 * x)
    assert torch.equal(torch.ops.played.twice(x), 2 * x)
    bundle.__dict__["twice"](x, out)
    assert torch.equal(out, 2 * x)
    bundle.__dict__["twice"](x, out, scratch=torch.full((3,), 7.0))
    assert torch.equal(out, torch.full((3,), 7.0))


def test_a_caller_may_leave_an_optional_output_out_and_pick_a_dtype(ops: Any, bundle: Played, x: Any) -> None:
    assert str(torch.ops.played.peaks.default._schema) == "played::peaks(Tensor x) -> (Tensor, Tensor)"
    written = "played::peaks.out(Tensor x, *, Tensor(a0!) out, Tensor(a1!)? total=None) -> ()"
    assert str(torch.ops.played.peaks.out._schema) == written
    for form in (ops.peaks, torch.ops.played.peaks):
        out, total = form(x)
        assert torch.equal(out, x.clamp(min=1).double())  # the dtype that the bundle lists first
        assert torch.equal(total, x.sum(-1))
    declared = bundle.__dict__["peaks"]
    for call in (ops.peaks.out, torch.ops.played.peaks.out, declared):
        out, total = torch.zeros(3, 8), torch.zeros(3)
        call(x, out=out)
        assert out._version > 0 and total._version == 0
        call(x, out=out, total=total)
        assert total._version > 0
        assert torch.equal(out, x.clamp(min=1)) and torch.equal(total, x.sum(-1))


def test_the_outputs_of_a_call_are_those_that_the_caller_passed() -> None:
    from aot_runtime.frameworks.torch import _Signature

    total = output("total").replace(type="tensor?", has_default=True)

    def written(*outputs: Parameter, **passed: Any) -> Any:
        return eval(_Signature(kernel("sums", tensor("x"), *outputs)).written(), passed)

    assert written(output("out"), out=1) == 1  # a tuple would take torch longer
    assert (written(total, total=None), written(total, total=2)) == ((), (2,))
    assert (written(output("out"), total, out=1, total=None), written(output("out"), total, out=1, total=2)) == (
        (1,),
        (1, 2),
    )


def test_an_optional_output_may_be_left_out_of_a_compiled_graph(ops: Any, x: Any) -> None:
    def program(x: Any) -> Any:
        out = torch.zeros_like(x)
        ops.peaks.out(x, out=out)
        return out + 1

    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), x.clamp(min=1) + 1)


@pytest.fixture(scope="module")
def bundle() -> Played:
    pytest.importorskip("torch", reason="operators of torch need torch")
    return Played("played")


@pytest.fixture(scope="module")
def ops(bundle: Played) -> Iterator[Any]:
    registered = operators.register(bundle)
    library = for_cpu_tensors(registered, "played")
    yield registered
    del library


def for_cpu_tensors(registered: Any, namespace: str) -> Any:
    """Implementations for CPU tensors, so that what the dispatcher is given runs here; they live as long as the result."""
    library = torch.library.Library(namespace, "FRAGMENT")
    for name in registered:
        made = getattr(registered, name).__globals__
        library.impl(name, made["_functional_kernel"], "CPU")
        library.impl(f"{name}.out", made["_out_kernel"], "CPU")
    return library


@pytest.fixture
def x() -> Any:
    return torch.randn(3, 8)


WEIGHT = None if torch is None else torch.linspace(0.5, 2, 8)


def model(ops: Any, x: Any, weight: Any) -> tuple[Any, ...]:
    """Every form of operator once."""
    normed = ops.rmsnorm(x, weight)
    active = ops.activation(normed, op="relu")
    written = torch.empty_like(active)
    ops.rmsnorm.out(active, weight, eps=0.5, out=written)
    _, scale = ops.quantize(written)
    return written + 1, ops.gemm(written, written), scale


def test_schemas_say_what_the_declaration_says(ops: Any) -> None:
    schemas = torch.ops.played
    assert str(schemas.rmsnorm.out._schema).endswith("*, Tensor(a0!) out) -> ()")
    assert [argument.name for argument in schemas.rmsnorm.default._schema.arguments] == ["x", "weight", "eps"]
    assert schemas.rmsnorm.default._schema.arguments[2].default_value == 1e-6
    assert str(schemas.activation.default._schema) == "played::activation(Tensor x, *, str op) -> Tensor"
    assert str(schemas.quantize.default._schema) == "played::quantize(Tensor x) -> (Tensor, Tensor)"
    assert "Tensor? bias=None" in str(schemas.gemm.default._schema)


def test_the_functional_form_allocates_and_the_other_writes(ops: Any, x: Any) -> None:
    exact = torch.nn.functional.rms_norm(x, (8,), WEIGHT, 1e-6)
    assert torch.equal(ops.rmsnorm(x, WEIGHT), exact)
    out = torch.empty_like(x)
    assert ops.rmsnorm.out(x, WEIGHT, out=out) is None
    assert torch.equal(out, exact)
    values, scale = ops.quantize(x)
    assert (values.dtype, values.shape, scale.dtype, scale.shape) == (torch.float8_e4m3fn, (3, 8), torch.float32, (3,))
    assert torch.equal(ops.gemm(x, x, torch.ones(3)), x @ x.mT + 1)


def test_outputs_are_contiguous_whatever_the_input_is(ops: Any) -> None:
    transposed = torch.randn(8, 3).mT
    assert ops.rmsnorm(transposed, WEIGHT).is_contiguous()
    values, _ = ops.quantize(transposed)
    assert values.is_contiguous() and values.dtype == torch.float8_e4m3fn
    # Torch adds up a row in another order if its elements lie apart.
    torch.testing.assert_close(ops.rmsnorm(transposed, WEIGHT), ops.rmsnorm(transposed.contiguous(), WEIGHT))


def test_a_choice_that_was_not_built_is_refused_with_those_that_were(ops: Any, x: Any) -> None:
    with pytest.raises(aot_runtime.ArgumentError, match="op = 'tanh' was not built; known: 'relu', 'sigmoid'"):
        ops.activation(x, op="tanh")


def test_plain_tensors_bypass_the_dispatcher_and_all_others_do_not(ops: Any, bundle: Played, x: Any) -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Subclass(torch.Tensor):
        pass

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    class WatchFunctions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    out = torch.empty_like(x)
    for watch in (Watch, WatchFunctions):
        seen: list[str] = []
        with watch():
            ops.rmsnorm(x, WEIGHT)
            ops.rmsnorm.out(x, WEIGHT, out=out)
            bundle.rmsnorm(x, WEIGHT, out)  # type: ignore[attr-defined]
        assert [name for name in seen if name.startswith("played.")].count("played.rmsnorm.out") == 2
        assert "played.rmsnorm.default" in seen
    assert type(ops.rmsnorm(x.as_subclass(Subclass), WEIGHT)) is Subclass
    with torch.profiler.profile() as profile:
        ops.rmsnorm(x, torch.nn.Parameter(WEIGHT, requires_grad=False))
        ops.rmsnorm.out(x, WEIGHT, out=out)
        bundle.rmsnorm(x, WEIGHT, out)  # type: ignore[attr-defined]
    assert not [event.key for event in profile.key_averages() if event.key.startswith("played::")]


def test_without_the_shortcut_the_dispatcher_takes_every_call(
    x: Any, ops: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a torch that lacks one of the undocumented names."""
    from torch.autograd import forward_ad

    monkeypatch.setattr("aot_runtime.frameworks.torch.IS_KNOWN", False)
    bundle: Any = Played("long_way")
    registered = operators.register(bundle)
    library = for_cpu_tensors(registered, "long_way")
    for one, other in zip(model(registered, x, WEIGHT), model(ops, x, WEIGHT), strict=True):
        assert torch.equal(one, other)
    out = torch.empty_like(x)
    with torch.profiler.profile() as profile:
        registered.rmsnorm(x, WEIGHT)
        registered.rmsnorm.out(x, WEIGHT, out=out)
        bundle.rmsnorm(x, WEIGHT, out)
    assert sum(event.count for event in profile.key_averages() if event.key.startswith("long_way::rmsnorm")) >= 3
    assert out._version and torch.equal(out, ops.rmsnorm(x, WEIGHT))
    weight = torch.nn.Parameter(WEIGHT)
    for call in (lambda: registered.rmsnorm(x, weight), lambda: bundle.rmsnorm(x, weight, out)):
        with pytest.raises(operators.GradientError, match="rmsnorm has no backward"):
            call()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)
        with pytest.raises(operators.GradientError, match="forward mode"):
            registered.rmsnorm.out(dual, WEIGHT, out=out)
    del library


def test_parameters_and_kernels_may_have_any_name(ops: Any, bundle: Played, x: Any) -> None:
    """In the generated source they must hide nothing: `type`, and the names of its own functions."""
    exact = x + x
    assert torch.equal(ops.out_form(x, x, x, 2, 8), exact)
    assert torch.equal(getattr(torch.ops, bundle.name).out_form(x, x, x, 2, 8), exact)
    for write in (ops.out_form.out, bundle.__dict__["out_form"]):
        out = torch.zeros(3, 8)
        write(x, x, x, Exception=out, min=2, max=8)
        assert torch.equal(out, exact)
    with pytest.raises(aot_runtime.ArgumentError, match="beside arrays of other libraries"):
        bundle.__dict__["out_form"](x.as_subclass(type("Subclass", (torch.Tensor,), {})), object(), x, out, 2, 8)
    with pytest.raises(operators.GradientError):
        ops.out_form(x.clone().requires_grad_(), x, x, 2, 8)
    assert ops.out_form(*3 * [x.to("meta")], 5, 8).shape == (5, 8)
    assert torch.equal(torch.compile(ops.out_form, fullgraph=True, backend="aot_eager")(x, x, x, 2, 8), exact)


def test_the_out_form_takes_arguments_by_position_and_name_and_counts_versions(ops: Any, x: Any) -> None:
    form, out = ops.rmsnorm.out, torch.empty_like(x)
    for eps, arguments, named in (
        (1e-6, (x, WEIGHT), {}),
        (0.5, (x, WEIGHT, 0.5), {}),
        (0.5, (x,), {"eps": 0.5, "weight": WEIGHT}),
        (1e-6, (), {"weight": WEIGHT, "x": x}),
    ):
        version = out.zero_()._version
        form(*arguments, **named, out=out)
        assert torch.equal(out, torch.nn.functional.rms_norm(x, (8,), WEIGHT, eps))
        assert out._version == version + 2  # `copy_` of the played kernel counts too
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'out'"):
        form(x, WEIGHT)


@pytest.mark.parametrize("inference", ["neither", "out", "total", "both"])
def test_versions_of_tensors_beside_inference_tensors_are_counted(
    ops: Any, bundle: Played, x: Any, inference: str
) -> None:
    """Inference tensors have no version, and need not be counted; a tensor beside them may be one that autograd saved."""
    made = {"out": torch.zeros(3, 8), "total": torch.zeros(3)}
    counted = [name for name in made if inference not in (name, "both")]
    with torch.inference_mode():
        made.update({name: torch.zeros_like(made[name]) for name in made if name not in counted})
        for call in (ops.peaks.out, bundle.__dict__["peaks"]):
            before = {name: made[name]._version for name in counted}
            call(x, **made)
            # `copy_` of the played kernel counts too
            assert {name: made[name]._version for name in counted} == {name: before[name] + 2 for name in counted}
            assert torch.equal(made["out"], x.clamp(min=1)) and torch.equal(made["total"], x.sum(-1))


@pytest.mark.parametrize("kind", ["CudaError", "CaptureError", "KeyboardInterrupt"])
def test_a_call_that_failed_on_the_gpu_is_not_made_again(x: Any, kind: str) -> None:
    """A part of its work may have been launched, and the next attempt may succeed."""
    ops = operators.register(Played(f"failed_{kind}"))  # no CPU implementation, as of a bundle
    error = KeyboardInterrupt if kind == "KeyboardInterrupt" else getattr(aot_runtime, kind)
    calls: list[Any] = []

    def fail(*arguments: Any) -> None:
        calls.append(arguments)
        raise error("too late")

    _PLAYED["rmsnorm"], played = fail, _PLAYED["rmsnorm"]
    try:
        with pytest.raises(error, match="too late"):
            ops.rmsnorm.out(x, WEIGHT, out=torch.empty_like(x))
    finally:
        _PLAYED["rmsnorm"] = played
    assert len(calls) == 1


def test_torch_compile_sees_the_out_form_if_it_compiles_nothing_else(ops: Any, x: Any) -> None:
    graphs, out = [], torch.empty_like(x)
    compiled = torch.compile(
        ops.rmsnorm.out, fullgraph=True, backend=lambda graph, _: graphs.append(graph.code) or graph
    )
    compiled(x, WEIGHT, out=out)
    assert len(graphs) == 1 and "played.rmsnorm.out" in graphs[0]
    assert torch.equal(out, torch.nn.functional.rms_norm(x, (8,), WEIGHT, 1e-6))


def test_functions_with_a_choice_in_their_name_stay_and_heed_gradients(ops: Any, bundle: Any, x: Any) -> None:
    out, wanted = torch.empty_like(x), x.clone().requires_grad_()
    for function in (bundle.activation.relu, bundle.activation__relu):
        function(x, out)
        assert torch.equal(out, torch.relu(x))
        with pytest.raises(operators.GradientError, match="activation has no backward"):
            function(wanted, out)
        assert function.__name__ == "activation__relu" and "What activation computes." in function.__doc__


def test_a_gradient_that_nobody_can_compute_is_refused(ops: Any, bundle: Any, x: Any) -> None:
    weight = torch.nn.Parameter(WEIGHT)
    for call in (
        lambda: ops.rmsnorm(x, weight),
        lambda: ops.rmsnorm.out(x, weight, out=torch.empty_like(x)),
        lambda: torch.ops.played.rmsnorm(x, weight),
        lambda: bundle.rmsnorm(x, weight, torch.empty_like(x)),
    ):
        with pytest.raises(operators.GradientError, match="rmsnorm has no backward"):
            call()
    with torch.no_grad():
        ops.rmsnorm(x, weight)
    with torch.inference_mode():
        ops.rmsnorm.out(x, weight, out=torch.empty_like(x))


def test_a_derivative_in_forward_mode_is_refused(ops: Any, bundle: Any, x: Any) -> None:
    from torch.autograd import forward_ad

    out = torch.empty_like(x)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        for call in (ops.rmsnorm, torch.ops.played.rmsnorm):
            with pytest.raises(operators.GradientError, match="rmsnorm has no derivative in forward mode"):
                call(dual, WEIGHT)
        for call in (ops.rmsnorm.out, bundle.rmsnorm):
            with pytest.raises(operators.GradientError, match="forward mode"):
                call(dual, WEIGHT, out=out)
        assert torch.equal(ops.rmsnorm(x, WEIGHT), ops.rmsnorm(dual.detach(), WEIGHT))
    with pytest.raises(operators.GradientError, match="forward mode"):
        torch.func.jvp(lambda x: ops.rmsnorm(x, WEIGHT), (x,), (x,))


def test_a_gradient_of_an_optional_tensor_is_refused_too(ops: Any, x: Any) -> None:
    bias = torch.ones(3, requires_grad=True)
    with pytest.raises(operators.GradientError, match="gemm has no backward"):
        ops.gemm(x, x, bias)
    assert torch.equal(ops.gemm(x, x, bias.detach()), x @ x.mT + 1)


def test_arrays_of_other_libraries_still_pass_through_the_bundles_own_functions(ops: Any, bundle: Any) -> None:
    import numpy

    seen: list[Any] = []
    _PLAYED["activation__relu"], played = lambda *arguments: seen.append(arguments), _PLAYED["activation__relu"]
    try:
        x, out = numpy.ones(3), numpy.ones(3)
        bundle.activation(x, out, op="relu")
    finally:
        _PLAYED["activation__relu"] = played
    assert seen[0][0] is x and seen[0][1] is out


def test_arrays_of_other_libraries_may_stand_beside_plain_tensors(ops: Any, bundle: Any, x: Any) -> None:
    array = torch.zeros(3, 8).numpy()
    seen: list[Any] = []
    _PLAYED["activation__relu"], played = lambda *arguments: seen.append(arguments), _PLAYED["activation__relu"]
    try:
        bundle.activation(x, array, op="relu")
        with pytest.raises(operators.GradientError, match="activation has no backward"):
            bundle.activation(x.clone().requires_grad_(), array, op="relu")
        with pytest.raises(aot_runtime.ArgumentError, match="a Sub cannot be passed beside arrays of other libraries"):
            bundle.activation(x.as_subclass(type("Sub", (torch.Tensor,), {})), array, op="relu")
    finally:
        _PLAYED["activation__relu"] = played
    assert [arguments[1] is array for arguments in seen] == [True]


@pytest.mark.parametrize("mode", ["enable_grad", "no_grad", "inference_mode"])
def test_autograd_notices_that_a_saved_tensor_was_overwritten(ops: Any, x: Any, mode: str) -> None:
    saved = torch.ones(3, 8, requires_grad=True)
    loss = (saved * x).sum()
    with getattr(torch, mode)():
        ops.activation.out(torch.randn(3, 8), op="relu", out=x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_fake_tensors_get_shapes_and_dtypes_without_a_gpu(ops: Any) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(5, 8, device="cuda")
        values, scale = ops.quantize(x)
        assert (values.shape, values.dtype, str(values.device)) == ((5, 8), torch.float8_e4m3fn, "cuda:0")
        assert scale.shape == (5,)
        assert ops.rmsnorm.out(x, torch.empty(8, device="cuda"), out=torch.empty_like(x)) is None


def test_torch_compile_takes_it_whole_and_once_for_all_sizes(ops: Any) -> None:
    import torch._dynamo

    torch._dynamo.reset()
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = torch.compile(lambda x: model(ops, x, WEIGHT), fullgraph=True, dynamic=True, backend=backend)
    for rows in (3, 5, 7):
        x = torch.randn(rows, 8)
        for got, expected in zip(compiled(x), model(ops, x, WEIGHT), strict=True):
            assert torch.equal(got, expected)
    assert len(graphs) == 1


def test_torch_export_keeps_the_operators_and_dynamic_sizes(ops: Any, x: Any) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return model(ops, x, WEIGHT)

    rows = torch.export.Dim("rows", min=2)
    exported = torch.export.export(Model(), (x,), dynamic_shapes={"x": {0: rows}})
    targets = {str(node.target) for node in exported.graph.nodes}
    assert {"played.rmsnorm.default", "played.rmsnorm.out", "played.quantize.default"} <= targets
    other = torch.randn(6, 8)
    for got, expected in zip(exported.module()(other), model(ops, other, WEIGHT), strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("name", ["rmsnorm", "activation", "gemm", "peaks"])
def test_torchs_own_check_of_operators_passes(ops: Any, name: str, x: Any) -> None:
    arguments = {"rmsnorm": (x, WEIGHT), "activation": (x,), "gemm": (x, x), "peaks": (x,)}[name]
    choices = {"op": "relu"} if name == "activation" else {}
    packet = getattr(torch.ops.played, name)
    out = packet(*arguments, **choices)
    out = out[0] if name == "peaks" else out  # its second output may be left out
    for overload, extra in ((packet.default, {}), (packet.out, {"out": torch.empty_like(out)})):
        verdicts = torch.library.opcheck(overload, arguments, {**choices, **extra})
        assert set(verdicts.values()) == {"SUCCESS"}


def test_vmap_runs_row_by_row(ops: Any) -> None:
    x = torch.randn(2, 3, 8)
    assert torch.equal(torch.vmap(lambda one: ops.rmsnorm(one, WEIGHT))(x), ops.rmsnorm(x, WEIGHT))
    with pytest.raises(RuntimeError, match="Batching rule not implemented"):
        torch.vmap(lambda one: ops.rmsnorm.out(one, WEIGHT, out=torch.empty_like(one)))(x)


def test_transforms_see_the_operator_and_kernels_see_only_tensors_with_memory(ops: Any, bundle: Played, x: Any) -> None:
    expected = ops.rmsnorm(x, WEIGHT)
    bundle.calls.clear()
    assert torch.equal(torch.func.functionalize(lambda x: ops.rmsnorm(x, WEIGHT))(x), expected)
    assert bundle.calls == ["rmsnorm"]
    with pytest.raises(RuntimeError, match="functionalizing operators"):  # what torch says about every out form
        torch.func.functionalize(lambda x: ops.rmsnorm.out(x, WEIGHT, out=torch.empty_like(x)))(x)
    with pytest.raises(operators.GradientError):
        torch.func.grad(lambda x: ops.rmsnorm(x, WEIGHT).sum())(x)


def test_autocast_converts_no_arguments(ops: Any, x: Any) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.mm(x, x.mT).dtype == torch.bfloat16  # as it does with torch's own
        for form in (ops.gemm, torch.ops.played.gemm):
            assert form(x, x).dtype == torch.float32


def test_meta_tensors_get_shapes_though_no_kernel_takes_them(
    ops: Any, bundle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tvm_ffi

    # As a compiled kernel: TVM-FFI refuses the tensors before any kernel sees them.
    monkeypatch.setitem(_PLAYED, "rmsnorm", tvm_ffi.get_global_func("testing.nop"))
    x, weight = torch.empty(3, 8, device="meta"), torch.empty(8, device="meta")
    result = ops.rmsnorm(x, weight)
    assert (result.shape, result.device.type) == ((3, 8), "meta")
    version = result._version
    ops.rmsnorm.out(x, weight, out=result)
    bundle.rmsnorm(x, weight, result)
    assert result._version == version + 2


def test_meta_tensors_beside_others_are_refused_and_give_no_undefined_tensor(x: Any, bundle: Any, ops: Any) -> None:
    import tvm_ffi

    meta = torch.empty(3, 8, device="meta")
    _PLAYED["rmsnorm"], played = tvm_ffi.get_global_func("testing.nop"), _PLAYED["rmsnorm"]
    try:
        for call in (
            lambda: ops.rmsnorm(x, meta[0]),
            lambda: ops.rmsnorm(meta, WEIGHT),
            lambda: torch.ops.played.rmsnorm(x, meta[0]),
            lambda: ops.rmsnorm.out(x, WEIGHT, out=meta),
        ):
            with pytest.raises(
                aot_runtime.ArgumentError, match=r"rmsnorm: all tensors must be on the same device: `x` on"
            ):
                call()
    finally:
        _PLAYED["rmsnorm"] = played


def test_a_choice_that_was_not_built_is_refused_without_a_gpu_too(ops: Any) -> None:
    meta = torch.empty(3, 8, device="meta")
    for call in (
        lambda: torch.ops.played.activation(meta, op="tanh"),
        lambda: torch.ops.played.activation.out(meta, op="tanh", out=meta),
    ):
        with pytest.raises(aot_runtime.ArgumentError, match="op = 'tanh' was not built; known: 'relu', 'sigmoid'"):
            call()


def test_a_missing_tensor_is_named(ops: Any, x: Any) -> None:
    meta = torch.empty(3, 8, device="meta")
    for name, call in (
        ("x", lambda: ops.rmsnorm(None, WEIGHT)),
        ("weight", lambda: ops.rmsnorm(x, None)),
        ("weight", lambda: ops.rmsnorm(meta, None)),
        ("out", lambda: ops.rmsnorm.out(x, WEIGHT, out=None)),
        ("x", lambda: torch.ops.played.rmsnorm.out(None, WEIGHT, out=x)),
    ):
        with pytest.raises(aot_runtime.ArgumentError, match=f"rmsnorm: `{name}` is None, must be a tensor"):
            call()


def test_what_a_kernel_refuses_is_not_tried_again_as_an_operator(x: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        calls.append(arguments)
        raise ValueError("this dtype was not built")

    calls: list[Any] = []
    monkeypatch.setitem(_PLAYED, "rmsnorm", refuse)
    unimplemented: Any = Played("played_for_cuda")  # no CPU implementation, as of a bundle
    ops, out = operators.register(unimplemented), torch.empty_like(x)
    for call in (
        lambda: ops.rmsnorm(x, WEIGHT),
        lambda: ops.rmsnorm.out(x, WEIGHT, out=out),
        lambda: unimplemented.rmsnorm(x, WEIGHT, out),
    ):
        with pytest.raises(ValueError, match="was not built"):
            call()
    assert len(calls) == 3


def test_tensors_on_the_cpu_reach_an_implementation_for_them(ops: Any, x: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        if not calls:
            calls.append(arguments)
            raise ValueError("none of the tensors lies on a CUDA device")
        played(*arguments)

    calls: list[Any] = []
    played = _PLAYED["rmsnorm"]
    monkeypatch.setitem(_PLAYED, "rmsnorm", refuse)
    assert torch.equal(ops.rmsnorm(x, WEIGHT), torch.nn.functional.rms_norm(x, (8,), WEIGHT, 1e-6)) and calls


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit
def test_torch_jit_records_the_operator_and_not_an_empty_tensor(ops: Any, x: Any) -> None:
    traced = torch.jit.trace(lambda x: ops.rmsnorm(x, WEIGHT), (x,), check_trace=False)
    other = torch.randn(3, 8)
    assert torch.equal(traced(other), ops.rmsnorm(other, WEIGHT))


def test_models_that_keep_operators_can_be_copied_but_not_pickled(ops: Any) -> None:
    model = torch.nn.Linear(2, 2)
    model.ops = ops
    assert copy.deepcopy(model).ops is copy.copy(ops) is ops
    with pytest.raises(TypeError, match="cannot be pickled: register the bundle"):
        pickle.dumps(ops)


def test_devices_without_an_implementation_are_refused_as_torch_does(ops: Any, x: Any) -> None:
    for form in (ops.rmsnorm, torch.ops.played.rmsnorm):
        with pytest.raises(NotImplementedError):
            form(x.to_sparse(), WEIGHT)


def test_kernels_that_cannot_be_operators_say_why(ops: Any) -> None:
    offered = ["rmsnorm", "activation", "quantize", "gemm", "twice", "peaks", "out_form"]
    assert list(ops) == offered == [n for n in KERNELS if n in dir(ops)]
    with pytest.raises(ExposeError, match="pointers cannot be offered here: `p` is of type pointer"):
        _ = ops.pointers
    with pytest.raises(ExposeError, match="no input is a tensor"):
        _ = ops.nothing_in
    with pytest.raises(AttributeError, match="has no kernel 'softmax'"):
        _ = ops.softmax


def test_registering_twice_is_registering_once(ops: Any, bundle: Played) -> None:
    assert operators.register(bundle) is ops
    with pytest.raises(ExposeError, match="the name 'played' belongs to `here`") as raised:
        operators.register(Played("played", "elsewhere"))
    assert "name=" in (raised.value.hint or "")
    other = operators.register(Played("played", "elsewhere"), name="played_2")
    assert other.rmsnorm is not ops.rmsnorm
    with pytest.raises(ExposeError, match="'my-kernels' cannot be a name"):
        operators.register(bundle, name="my-kernels")


def test_a_bundle_that_was_rebuilt_does_not_get_the_kernels_of_before(ops: Any) -> None:
    rebuilt: Any = Played("played", "here")
    rebuilt.manifest = SimpleNamespace(hosts={"host": "another digest"})
    with pytest.raises(ExposeError, match="the name 'played' belongs to `here` as it was before it was rebuilt"):
        operators.register(rebuilt)
    assert operators.register(rebuilt, name="played_rebuilt") is not ops


def test_functions_of_a_bundle_that_was_loaded_twice_heed_gradients_too(ops: Any, x: Any) -> None:
    again: Any = Played("played", "here")
    assert operators.register(again) is ops
    with pytest.raises(operators.GradientError):
        again.rmsnorm(x, torch.nn.Parameter(WEIGHT), torch.empty_like(x))


def test_help_names_the_operator_and_its_parameters(ops: Any) -> None:
    text = ops.rmsnorm.__doc__ or ""
    assert (ops.rmsnorm.out.__qualname__, ops.rmsnorm.__module__) == ("rmsnorm.out", "aot_runtime.torch")
    assert "What rmsnorm computes." in text and "torch.ops.played.rmsnorm(Tensor x" in text and "one per column" in text
