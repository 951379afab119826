"""A bundle's kernels as operators of torch.

import aot_runtime, aot_runtime.torch
kernels = aot_runtime.load("dist/kernels")
ops = aot_runtime.torch.register(kernels)
y = ops.rmsnorm(x, weight)              # allocates
ops.rmsnorm.out(x, weight, out=y)       # writes

Each kernel becomes ``torch.ops.<bundle>.<kernel>``, which allocates its outputs, and ``.out``, which writes into
tensors of the caller. Schemas, defaults and the shapes that tracing needs come from the bundle. ``torch.compile``,
``torch.export`` and CUDA graphs see ordinary operators.

An eager call with plain tensors goes straight to the kernel and not through torch's dispatcher, which costs
microseconds. It does so only if every tensor is exactly a ``Tensor`` or a ``Parameter`` with memory of its own, no mode
is active, and no gradient is wanted. All other calls take the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

try:
    import torch
    from torch.autograd import forward_ad
except ModuleNotFoundError as missing:
    message = f"operators of torch need torch, and `{missing.name}` is not installed"
    raise ModuleNotFoundError(f"{message}\n\nhint: `pip install torch`", name=missing.name) from None

from ..core.bundle import Bundle
from ..core.functions import ByChoice, call_plainly, documentation, function_symbol
from ..description.kernel_records import KernelRecord, Parameter
from ..errors import AotError, ArgumentError
from .exposed import Exposed, ExposeError, expose
from .fakes import UNKNOWN
from .outputs import SHAPE_FUNCTIONS, dtype_source, framework_dtype, shape_source
from .schemas import functional_schema, is_optional, operator_parameters, out_schema
from .torch_autocast import is_autocast, register_autocast
from .torch_fakes import make_traced_check
from .torch_gradients import GradientError, Gradients, gradients_of, is_transformed, refusal, register_refusal
from .torch_internals import IS_KNOWN, IS_QUIET, dispatch_modes
from .torch_native import check_opened, is_defined, load_library

__all__ = ["GradientError", "Operators", "load_library", "register"]


_PUBLIC = __name__.replace(".frameworks.", ".")  # where callers import all of this from
_registered: dict[str, Operators] = {}


class Operators(Exposed):
    """The operators of one bundle, as attributes."""

    __module__ = _PUBLIC

    def __init__(self, bundle: Bundle, namespace: str) -> None:
        if not namespace.isidentifier():
            raise ExposeError(f"{namespace!r} cannot be a name in torch.ops", hint='pass another: name="my_kernels"')
        self._declared: dict[str, Callable[..., Any]] = {}  # in the kernels' own order of parameters
        self._prepared: list[_Prepared] = []
        super().__init__(bundle, namespace)
        # Torch is told when nothing can be refused any more: half of the operators would be worse than none.
        self._library = torch.library.Library(namespace, "FRAGMENT")
        for prepared in self._prepared:
            _define(prepared, self._library, namespace)
        self._prepared.clear()

    def _make(self, record: KernelRecord) -> Any:
        prepared = _prepare(_Signature(record), self._bundle, self)
        self._prepared.append(prepared)
        return prepared.names[record.name]


def register(bundle: Bundle, *, name: str | None = None) -> Operators:
    """Define the operators of a bundle in ``torch.ops.<name>``, once; the name is by default the bundle's.

    The bundle's own functions then refuse gradients that they cannot compute, as the operators do. If
    :func:`load_library` has registered the operators from C, these stay, and get what tracing and gradients need.
    """
    check_opened(bundle)
    operators = expose(_registered, bundle, name or bundle.name, Operators)
    # kernels.rmsnorm(x, weight, out) then heeds gradients and tracing too; arrays of other libraries pass as before.
    bundle._replace(operators._declared)
    return operators


class _Signature:
    """The parameters of an operator: inputs in the kernel's order, then choices and outputs by keyword."""

    def __init__(self, record: KernelRecord) -> None:
        self.record = record
        self.inputs, self.outputs = operator_parameters(record)
        self.tensors = [parameter.name for parameter in self.inputs if parameter.type in ("tensor", "tensor?")]
        self.required = [parameter.name for parameter in self.inputs if parameter.type == "tensor"]
        self.optional = {parameter.name for parameter in self.inputs if parameter.type == "tensor?"}
        self.optional |= {parameter.name for parameter in self.outputs if is_optional(parameter)}

    @property
    def all_tensors(self) -> list[str]:
        return [*self.tensors, *(parameter.name for parameter in self.outputs)]

    def python_parameters(self, *, outputs: bool) -> list[str]:
        """What a generated Python function takes; its defaults are in :meth:`defaults`."""
        positional = [_with_default(p.name, f"_default_{p.name}" if p.has_default else None) for p in self.inputs]
        keywords = [_with_default(c.name, f"_default_{c.name}" if c.default else None) for c in self.record.choices]
        if outputs:
            keywords += [_with_default(p.name, "None" if p.name in self.optional else None) for p in self.outputs]
        return [*positional, *(["*", *keywords] if keywords else [])]

    def declared_parameters(self) -> list[str]:
        """The parameters in the kernel's own order, as the bundle's functions take them."""
        positional = [
            _with_default(p.name, f"_default_{p.name}" if p.has_default else None) for p in self.record.parameters
        ]
        keywords = [_with_default(c.name, f"_default_{c.name}" if c.default else None) for c in self.record.choices]
        return [*positional, *(["*", *keywords] if keywords else [])]

    def defaults(self) -> dict[str, Any]:
        found = {f"_default_{p.name}": p.default for p in self.record.parameters if p.has_default}
        return {**found, **{f"_default_{c.name}": c.default for c in self.record.choices if c.default}}

    def passed(self, *, outputs: bool) -> str:
        """The arguments of a call of the operator from inside a generated function."""
        keywords = [choice.name for choice in self.record.choices]
        keywords += [parameter.name for parameter in self.outputs] if outputs else []
        return ", ".join([*(p.name for p in self.inputs), *(f"{name}={name}" for name in keywords)])

    def written(self) -> str:
        """The outputs of a call as a tuple, without those that the caller left out; a single one as itself.

        torch takes longer to see that a tuple is no tensor than for all the rest of `increment_version`.
        """
        names = [parameter.name for parameter in self.outputs]
        if len(names) == 1 and names[0] not in self.optional:
            return names[0]
        return _tuple([f"*(() if {name} is None else ({name},))" if name in self.optional else name for name in names])

    def are_inference(self) -> str:
        """Whether all outputs of a call are inference tensors, as an expression.

        Asking takes a fifth of the time of `increment_version`.
        """
        names = [parameter.name for parameter in self.outputs]
        return " and ".join(
            f"({name} is None or {name}.is_inference())" if name in self.optional else f"{name}.is_inference()"
            for name in names
        )

    def target(self, *, declared: bool = False) -> str:
        """The call of the compiled function, in the kernel's own order of parameters."""
        return f"{self.function}({self.arguments(declared=declared)})"

    @property
    def function(self) -> str:
        """The compiled function. If the caller's choices were not built, this raises."""
        keys = ", ".join(choice.name for choice in self.record.choices)
        return f"_targets[{keys}]" if keys else "_target"

    @property
    def symbol(self) -> str:
        """The name of the compiled function, as an expression."""
        keys = ", ".join(choice.name for choice in self.record.choices)
        return f"_symbol_of({self.record.name!r}, ({keys},))" if keys else repr(self.record.name)

    def inputs_alone(self) -> str:
        """The arguments of a check if no output could be made."""
        return ", ".join(
            "None" if p.workspace is not None else "_UNKNOWN" if p.output else p.name for p in self.record.parameters
        )

    def arguments(self, *, declared: bool) -> str:
        """``declared``: with the workspace that a caller may pass. Otherwise dispatch takes one from torch."""
        return ", ".join(p.name if declared or p.workspace is None else "None" for p in self.record.parameters)


def _with_default(name: str, default: str | None) -> str:
    return name if default is None else f"{name}={default}"


# Defining operators.


@dataclass(frozen=True)
class _Prepared:
    """One operator before torch knows it. ``names`` are the globals of its generated functions."""

    record: KernelRecord
    schemas: dict[str, str]  # by the operator's name; only of those that the bundle's library for torch has not defined
    inputs: list[Parameter]
    names: dict[str, Any]
    gradients: Gradients | None


def _prepare(signature: _Signature, bundle: Bundle, operators: Operators) -> _Prepared:
    """Generate what an operator consists of, and refuse what cannot be one."""
    record, namespace = signature.record, operators._name
    schemas = {record.name: functional_schema(record), f"{record.name}.out": out_schema(record)}
    schemas = {name: schema for name, schema in schemas.items() if not is_defined(namespace, name, bundle)}
    names = {**_names(signature, bundle), "_goes_to_operator": _fallback(f"{namespace}::{record.name}")}
    gradients = gradients_of(record, bundle, operators)
    source = _source(signature, names)
    exec(compile(source, f"<aot operator {namespace}::{record.name}>", "exec"), names)
    names[record.name].out = names["_out_form"]
    operators._declared.update(_declared(record, names["_as_declared"], names.get("_targets", {})))
    for called, shown in (
        (names[record.name], record.name),
        (names["_out_form"], f"{record.name}.out"),
        (names["_as_declared"], record.name),
    ):
        called.__name__, called.__qualname__, called.__module__ = record.name, shown, _PUBLIC
        called.__doc__ = _documentation(signature, namespace)
    return _Prepared(record, schemas, signature.inputs, names, gradients)


def _define(operator: _Prepared, library: Any, namespace: str) -> None:
    """Register both forms. What the bundle's library for torch has defined keeps its kernels for CUDA."""
    name, names, gradients = operator.record.name, operator.names, operator.gradients
    for schema in operator.schemas.values():
        library.define(schema)
    packet = getattr(getattr(torch.ops, namespace), name)
    names.update(_functional=packet.default, _out=packet.out)
    if gradients is not None:
        names["_functional"] = gradients.calling(packet.default, lambda: names[name])
    for overload, form in ((name, "functional"), (f"{name}.out", "out")):
        if overload in operator.schemas:
            library.impl(overload, names[f"_{form}_kernel"], "CUDA")
        torch.library.register_fake(f"{namespace}::{overload}", names[f"_{form}_fake"], lib=library)
    library.impl(f"{name}.out", names["_out_autograd"], "Autograd")
    if gradients is not None:
        gradients.register(library, namespace)
    else:
        register_refusal(library, f"{namespace}::{name}", names["_functional_autograd"])
    register_autocast(library, name, packet.default, operator.inputs)


def _source(signature: _Signature, names: dict[str, Any]) -> str:
    """The functions of an operator as Python. Dtypes of torch that they name are added to ``names``."""
    allocations = list(_allocations(signature, names))
    quick_allocations = [_quick_allocation(statement) for statement in allocations]
    returned = ", ".join(parameter.name for parameter in signature.outputs)
    functional = ", ".join(signature.python_parameters(outputs=False))
    out = ", ".join(signature.python_parameters(outputs=True))
    return _SOURCE.format(
        name=signature.record.name, declared=", ".join(signature.declared_parameters()),
        functional=functional, out=out, returned=returned,
        target=signature.target(), declared_target=signature.target(declared=True),
        plain_functional=_plain(signature.tensors, signature.optional),
        plain_out=_plain(signature.all_tensors, signature.optional),
        allocate="\n        ".join(allocations), quick_allocate="\n            ".join(quick_allocations),
        declared_arguments=signature.arguments(declared=True),
        symbol=signature.symbol, arguments=signature.arguments(declared=False), arguments_in=signature.inputs_alone(),
        foreign=" or ".join(f"not ({name} is None or _isinstance({name}, _Tensor))" for name in signature.all_tensors),
        function=signature.function,
        inputs=_tuple(signature.tensors),
        inputs_by_name=_by_name(signature.tensors), written_by_name=_by_name(signature.all_tensors),
        device_of=signature.required[0],
        outputs=signature.written(), are_inference=signature.are_inference(),
        written=_tuple(signature.all_tensors),
        pass_functional=signature.passed(outputs=False), pass_out=signature.passed(outputs=True),
    )  # fmt: skip


def _declared(record: KernelRecord, function: Any, targets: Collection[Any]) -> dict[str, Callable[..., Any]]:
    """The functions of a bundle that stand for a kernel: ``activation``, and ``activation__relu`` for each choice."""
    chosen: dict[Any, Any] = {}
    text = documentation(record)
    for key in targets:
        values = key if isinstance(key, tuple) else (key,)
        named = dict(zip((choice.name for choice in record.choices), values, strict=True))
        chosen[key] = partial(function, **named)
        chosen[key].__name__ = chosen[key].__qualname__ = function_symbol(record.name, values)
        chosen[key].__doc__ = text
    if len(record.choices) == 1:
        function.__dict__.update(chosen)  # activation.relu(x, out)
    return {record.name: function, **{one.__name__: one for one in chosen.values()}}


# One operator as Python source. In the first three functions dynamo sees `_is_traced()` as true and traces the operator
# alone; eager calls with plain tensors reach the compiled kernel. Each call into torch costs a tenth of a microsecond
# there, so these functions ask nothing twice, and ask about devices only after a kernel refused its tensors. Compiled
# graphs call the operator, also with plain tensors: these need not go through the dispatcher a second time below autograd.
# Every name but those of the kernel and its parameters starts with `_`, as theirs cannot: a parameter may be called `type`.
_SOURCE = """\
def {name}({functional}):
    if not _is_traced() and {plain_functional}:
        try:
            {quick_allocate}
            {target}
        except _Exception as _error:
            if not _goes_to_operator({inputs}):
                if not _isinstance(_error, _AotError):
                    _check_call({symbol}, {arguments_in})
                raise
        else:
            return {returned}
    return _functional({pass_functional})

def _out_form({out}):
    if not _is_traced() and {plain_out}:
        try:
            {target}
        except _Exception:
            if not _goes_to_operator({written}):
                raise
        else:
            if _recording or not ({are_inference}):
                _bump({outputs})
            return
    _out({pass_out})

def _as_declared({declared}):
    if not _is_traced() and {plain_out}:
        try:
            {declared_target}
        except _Exception:
            if not _goes_to_operator({written}):
                raise
        else:
            if _recording or not ({are_inference}):
                _bump({outputs})
            return
    if {foreign}:
        _refuse_gradients("{name}", _plain_among({written}))
        _call_plainly({function}, {declared_arguments})
        return
    _out({pass_out})

def _allocated({functional}):
    try:
        {allocate}
    except _Exception:  # the shape of an input has no such dimension
        _check_call({symbol}, {arguments_in})
        raise
    return {returned}

def _functional_kernel({functional}):
    {returned} = _allocated({pass_functional})
    {target}
    return {returned}

def _out_kernel({out}):
    {target}
    _bump({outputs})

def _functional_fake({functional}):
    {function}
    _check_fakes({inputs_by_name})
    {returned} = _allocated({pass_functional})
    _check_call({symbol}, {arguments})
    return {returned}

def _out_fake({out}):
    {function}
    _check_fakes({written_by_name})
    _check_call({symbol}, {arguments})

def _functional_autograd(_below, _keyset, {functional}):
    if {device_of} is not None and {device_of}.is_cuda and {plain_functional}:
        try:
            return _functional_kernel({pass_functional})
        except _Exception:
            if not _goes_to_operator({inputs}):
                raise
    _check_present({inputs_by_name})
    _refuse_gradients("{name}", {inputs})
    return _below(_keyset, {pass_functional})

def _out_autograd({out}):
    if {device_of} is not None and {device_of}.is_cuda and {plain_out}:
        try:
            _out_kernel({pass_out})
            return
        except _Exception:
            if not _goes_to_operator({written}):
                raise
    _check_present({written_by_name})
    _refuse_gradients("{name}", {written})
    with _inference_mode():  # in which torch calls no kernels of autograd, so not this function again
        _out({pass_out})
    _bump({outputs})  # also if another library implements it for this device
"""


def _plain(tensors: list[str], optional: Collection[str]) -> str:
    """Whether a call may bypass the dispatcher, as an expression."""
    if not IS_KNOWN:
        return "False"
    exact = [f"(_type({name}) is _Tensor or _type({name}) is _Parameter{_or_none(name, optional)})" for name in tensors]
    # Nobody asks for transforms, which would take a tenth of the time: tensors of `torch.func` have no memory, so that
    # kernels refuse them.
    quiet = f"not (_is_recorded() or _function_modes(({tensors[0]},)))"
    wanted = [
        f"{name} is not None and {name}.requires_grad" if name in optional else f"{name}.requires_grad"
        for name in tensors
    ]
    unwanted = f"not ((_recording := _grad_enabled()) and ({' or '.join(wanted)}))"
    return " and ".join([IS_QUIET, *exact, quiet, unwanted])


def _fallback(operator: str) -> Callable[[tuple[Any, ...]], bool]:
    """A function that decides whether a call goes to the operator after the kernel refused its tensors.

    It does for meta tensors and sparse tensors, inside transforms of `torch.func`, and for tensors that autocast may
    cast. For tensors on the CPU the kernel's own error says more, unless somebody implemented the operator for them.
    """

    def goes_to_operator(tensors: tuple[Any, ...]) -> bool:
        given = [tensor for tensor in tensors if tensor is not None]
        if not all(isinstance(tensor, torch.Tensor) for tensor in given):
            return False
        if (
            is_autocast()
            or is_transformed()
            or any(t.layout is not torch.strided or t.device.type not in ("cuda", "cpu") for t in given)
        ):
            return True
        return all(t.is_cpu for t in given) and _has_kernel(operator, "CPU")

    return goes_to_operator


def _has_kernel(operator: str, key: str) -> bool:
    try:
        torch.library.get_kernel(operator, key)
    except RuntimeError:
        return False
    return True


def _checks(signature: _Signature) -> dict[str, Callable[..., None]]:
    """Functions of tensors by name, which refuse what torch's dispatcher lets pass and no kernel takes."""
    kernel, optional = signature.record.name, signature.optional

    def check_present(**tensors: Any) -> None:
        for name, tensor in tensors.items():
            if tensor is None and name not in optional:
                raise ArgumentError(f"{kernel}: `{name}` is None, must be a tensor")

    def check_fakes(**tensors: Any) -> None:
        check_present(**tensors)
        devices = {name: tensor.device for name, tensor in tensors.items() if tensor is not None}
        kinds = {device.type for device in devices.values()}
        if "meta" in kinds and len(kinds) > 1:  # torch takes this for a call with meta tensors alone
            listed = ", ".join(f"`{name}` on {device}" for name, device in devices.items())
            raise ArgumentError(
                f"{kernel}: all tensors must be on the same device: {listed}", hint="move all of them to one GPU"
            )

    return {"_check_present": check_present, "_check_fakes": check_fakes}


def _plain_among(arguments: tuple[Any, ...]) -> list[Any]:
    """The tensors of torch in a call that also has arrays of other libraries. The kernel gets both without torch."""
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    for tensor in tensors:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise ArgumentError(f"a {type(tensor).__name__} cannot be passed beside arrays of other libraries")
    return tensors


def _or_none(name: str, optional: Collection[str]) -> str:
    return f" or {name} is None" if name in optional else ""


def _names(signature: _Signature, bundle: Bundle) -> dict[str, Any]:
    """What the generated functions refer to."""
    record = signature.record
    names: dict[str, Any] = {
        "_is_recorded": torch.jit.is_tracing,
        "_dispatch_modes": dispatch_modes,
        "_function_modes": torch.overrides.has_torch_function,  # true for any tensor while a mode is active
        **SHAPE_FUNCTIONS,
        "_isinstance": isinstance,
        "_type": type,
        "_Exception": Exception,
        "_is_traced": torch.compiler.is_dynamo_compiling,
        "_forward": forward_ad,
        "_Tensor": torch.Tensor,
        "_call_plainly": call_plainly,
        "_plain_among": _plain_among,
        **_checks(signature),
        "_check_call": make_traced_check(bundle),
        "_symbol_of": function_symbol,
        "_UNKNOWN": UNKNOWN,
        "_AotError": AotError,
        "_Parameter": torch.nn.Parameter,
        "_grad_enabled": torch.is_grad_enabled,
        "_inference_mode": torch.inference_mode,
        # So that autograd notices if a saved tensor is overwritten. Inference tensors have no version, and stay as they are.
        "_bump": torch.autograd.graph.increment_version,
        "_empty_like": torch.empty_like,
        "_contiguous": torch.contiguous_format,
        "_refuse_gradients": refusal(record, bundle),
        "_empty": torch.empty,
        **signature.defaults(),
    }
    if not record.choices:
        return {**names, "_target": bundle._symbol(record.name)}
    targets = ByChoice(record)
    for symbol in record.functions:
        values = tuple(symbol.removeprefix(record.name + "__").split("__"))
        if function_symbol(record.name, values) == symbol:
            targets[values[0] if len(values) == 1 else values] = bundle._symbol(symbol)
    return {**names, "_targets": targets}


def _allocations(signature: _Signature, names: dict[str, Any]) -> Iterator[str]:
    """Statements that make the outputs, also of symbolic shapes."""
    inputs = [parameter.name for parameter in signature.inputs]
    required = signature.required
    for parameter in signature.outputs:
        shape = shape_source(str(parameter.shape), inputs)
        dtype = dtype_source(str(parameter.dtype), inputs)
        if dtype is None:
            names[f"_dtype_{parameter.name}"] = framework_dtype(torch, str(parameter.dtype))
            dtype = f"_dtype_{parameter.name}"
        like = str(parameter.shape).removesuffix(".shape")
        if like in required:  # torch.empty_like takes half the time of torch.empty
            other = "" if dtype == f"{like}.dtype" else f", dtype={dtype}"
            yield f"{parameter.name} = _empty_like({like}{other}{_CONTIGUOUS})"
        else:
            yield f"{parameter.name} = _empty({shape}, dtype={dtype}, device={required[0]}.device)"


_CONTIGUOUS = ", memory_format=_contiguous"


def _quick_allocation(statement: str) -> str:
    """The same for an eager call. Asking whether a tensor is contiguous takes less time than asking for a new one that is.

    Of symbolic shapes nobody must ask: the answer would be a guard, and each shape would be traced on its own.
    """
    if not statement.endswith(_CONTIGUOUS + ")"):
        return statement
    like = statement.partition("(")[2].partition(",")[0]
    return (
        f"{statement.removesuffix(_CONTIGUOUS + ')')}) if {like}.is_contiguous() else {statement.partition(' = ')[2]}"
    )


def _by_name(names: list[str]) -> str:
    return ", ".join(f"{name}={name}" for name in names)


def _tuple(names: list[str]) -> str:
    return f"({', '.join(names)},)"


def _documentation(signature: _Signature, namespace: str) -> str:
    record = signature.record
    lines = [record.doc.strip(), "", f"torch.ops.{namespace}.{functional_schema(record)}", out_schema(record), ""]
    lines += [f"{p.name}: {p.doc}" for p in record.parameters if p.doc]
    return "\n".join(lines).strip()
