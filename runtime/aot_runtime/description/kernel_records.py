"""``kernels.json``: what callers see of a bundle's kernels. A loader imports this when a kernel is first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from keyword import iskeyword
from typing import Any

from ..arch import Arch
from ..errors import AotError, ManifestError
from ..values import Value
from .records import MAX_COUNT, Reader, parse_json, read_name, shown

__all__ = ["Backward", "Choice", "KernelRecord", "KernelTable", "Parameter", "captured_call", "read_arch"]


class Parameter(Value):
    """A parameter of a public function. ``default`` counts only if ``has_default``."""

    __slots__ = (
        "accepts",
        "default",
        "doc",
        "dtype",
        "has_default",
        "may_be",
        "name",
        "output",
        "shape",
        "type",
        "workspace",
        "zeroed",
    )

    name: str  # what callers write
    doc: str  # what it is
    has_default: bool  # whether it may be left out
    default: Any  # a number or None; counts only if `has_default`
    output: bool  # whether the kernel writes it
    shape: str | None  # of an output, as an expression of the inputs: "x.shape"
    dtype: str | None  # of an output, as an expression of the inputs: "x.dtype"
    may_be: tuple[str, ...]  # of an output: inputs whose very tensor may be passed here
    workspace: str | None  # of scratch memory: its size in bytes, as an expression of the inputs
    zeroed: bool  # whether a call clears it first
    type: str  # what variants take: "tensor", "tensor?", "float", "int", "pointer", "tuple" or "any"; "": not known
    accepts: tuple[str, ...]  # what tensors variants take: "float16[:, 128]"; a colon is an extent that is not fixed

    def __init__(
        self,
        name: str,
        doc: str = "",
        has_default: bool = False,
        default: Any = None,
        output: bool = False,
        shape: str | None = None,
        dtype: str | None = None,
        may_be: tuple[str, ...] = (),
        type: str = "",
        workspace: str | None = None,
        zeroed: bool = False,
        accepts: tuple[str, ...] = (),
    ) -> None:
        self._set(
            name=name,
            doc=doc,
            has_default=has_default,
            default=default,
            output=output,
            shape=shape,
            dtype=dtype,
            may_be=may_be,
            type=type,
            workspace=workspace,
            zeroed=zeroed,
            accepts=accepts,
        )


class Choice(Value):
    """A compile-time choice that the caller names: ``op="relu"``."""

    __slots__ = ("default", "doc", "name", "values")

    name: str  # what callers write
    values: tuple[str, ...]  # what it may be
    default: str | None  # None: it must be given
    doc: str  # what it is

    def __init__(self, name: str, values: tuple[str, ...], default: str | None = None, doc: str = "") -> None:
        self._set(name=name, values=values, default=default, doc=doc)


class Backward(Value):
    """What computes the gradients of a kernel: another kernel, or calls of several.

    A kernel takes ``grad_<output>`` for outputs of this one, and what was saved under its own name. It writes
    ``grad_<input>`` for each input in ``gradients``. All other outputs of it are scratch memory.

    Calls are expressions of the inputs and outputs of this kernel, of ``grad_<output>`` and of its choices: see ``composed``.
    A call that wants gradients is replaced by ``split``, if there is one, whose kernels have gradients of their own; not so
    if its choices are those of ``whole``.
    ``adds`` has expressions that add a gradient to ``main_grad``, a tensor of the caller, instead of computing it alone.
    """

    __slots__ = ("adds", "calls", "gradients", "kernel", "saves", "split", "whole")

    kernel: str  # the kernel that computes the gradients; "": calls do
    saves: tuple[str, ...]  # inputs and outputs of the other kernel that it takes
    gradients: tuple[str, ...]  # inputs of the other kernel that have a gradient
    calls: tuple[str, ...]  # an expression for each of them
    split: str  # an expression; "": a call is not replaced
    whole: tuple[str, ...]  # choices, as "epilogue=identity"
    adds: tuple[str, ...]  # calls that add to `main_grad`, as "b=gemm_accumulate(grad_out.mT, a.mT, main_grad)"

    def __init__(
        self,
        kernel: str,
        saves: tuple[str, ...],
        gradients: tuple[str, ...],
        calls: tuple[str, ...] = (),
        split: str = "",
        whole: tuple[str, ...] = (),
        adds: tuple[str, ...] = (),
    ) -> None:
        self._set(kernel=kernel, saves=saves, gradients=gradients, calls=calls, split=split, whole=whole, adds=adds)

    def is_split(self, choices: Mapping[str, Any]) -> bool:
        """Whether a call with these choices is replaced if it wants gradients."""
        kept = (choice.partition("=") for choice in self.whole)
        return bool(self.split) and not (self.whole and all(choices.get(name) == value for name, _, value in kept))


class KernelRecord(Value):
    """What callers see of a kernel."""

    __slots__ = ("archs", "backward", "captured", "choices", "doc", "functions", "name", "parameters", "variants")

    name: str
    doc: str
    parameters: tuple[Parameter, ...]
    choices: tuple[Choice, ...]
    functions: tuple[str, ...]  # symbols, one per combination of choices: "activation__relu"
    archs: tuple[Arch, ...]
    variants: int
    backward: Backward | None  # the kernels that it names may be missing in a bundle
    captured: dict[str, Any] | None  # the call of another library that this answers: see ``serving``

    def __init__(
        self,
        name: str,
        doc: str,
        parameters: tuple[Parameter, ...],
        choices: tuple[Choice, ...],
        functions: tuple[str, ...],
        archs: tuple[Arch, ...],
        variants: int,
        backward: Backward | None = None,
        captured: dict[str, Any] | None = None,
    ) -> None:
        self._set(
            name=name,
            doc=doc,
            parameters=parameters,
            choices=choices,
            functions=functions,
            archs=archs,
            variants=variants,
            backward=backward,
            captured=captured,
        )


class KernelTable:
    """``kernels.json``: parsed when a kernel is first asked for, and each record checked when it is."""

    __slots__ = ("_content", "_read", "_table", "_where")

    def __init__(self, content: bytes, where: str) -> None:
        self._content, self._where = content, where
        self._table: dict[str, Reader] | None = None
        self._read: dict[str, Reader] = {}  # what tracing of captured calls read, by digest

    def _parsed(self) -> dict[str, Reader]:
        if self._table is None:
            reader = Reader(parse_json(self._content, self._where), self._where)
            self._table = reader.table("kernels")
            self._read = reader.table("read") if "read" in reader.data else {}
        return self._table

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._parsed())

    def __contains__(self, name: object) -> bool:
        return name in self._parsed()

    def record(self, name: str) -> KernelRecord:
        record = self._parsed()[name]
        return _kernel(name, record, self._read)

    def captured(self, name: str) -> dict[str, Any] | None:
        """That part of a record alone."""
        record = self._parsed()[name]
        return captured_call(record, self._read.get)


def _kernel(name: str, record: Reader, read: Mapping[str, Reader]) -> KernelRecord:
    parameters = tuple(_parameter(item) for item in record.each("parameters"))
    choices = tuple(_choice(item) for item in record.each("choices"))
    _check_signature(parameters, choices, record)
    return KernelRecord(
        name=read_name(name, record),
        doc=record.get("doc", str, ""),
        parameters=parameters,
        choices=choices,
        functions=tuple(read_name(function, record) for function in record.texts("functions")),
        archs=tuple(read_arch(text, record) for text in record.texts("archs")),
        variants=record.number("variants", most=MAX_COUNT),
        backward=_backward(record, parameters) if "backward" in record.data else None,
        captured=captured_call(record, read.get),
    )


def _backward(record: Reader, parameters: tuple[Parameter, ...]) -> Backward:
    inner = record.inner("backward")
    composed = "calls" in inner.data
    backward = Backward(
        kernel="" if composed else read_name(inner.get("kernel", str), inner),
        saves=inner.texts("saves"),
        gradients=inner.texts("gradients"),
        calls=inner.texts("calls"),
        split=inner.get("split", str, ""),
        whole=inner.texts("whole"),
        adds=inner.texts("adds"),
    )
    if composed and len(backward.calls) != len(backward.gradients):
        raise ManifestError(f"{inner.where}: {len(backward.calls)} calls for {len(backward.gradients)} gradients")
    inputs = [parameter.name for parameter in parameters if not parameter.output]
    for name in (*backward.saves, *backward.gradients):
        if name not in (parameter.name for parameter in parameters):
            raise ManifestError(f"{inner.where}: {shown(name)} is not a parameter of the kernel")
    for name in backward.gradients:
        if name not in inputs:
            raise ManifestError(f"{inner.where}: {shown(name)} is not an input of the kernel")
    return backward


def captured_call(record: Reader, read: Callable[[str], Reader | None]) -> dict[str, Any] | None:
    """The call that a kernel answers: its key, its parts, and what tracing read for each architecture.

    ``read`` gives what functions of a module read, by the digest that calls name.
    """
    if "captured" not in record.data:
        return None
    inner = record.inner("captured")
    inner.get("key", str)
    inner.get("call", dict)
    return {**inner.data, "reads": {arch: _reads(one, read) for arch, one in inner.table("reads").items()}}


def _reads(reads: Reader, read: Callable[[str], Reader | None]) -> dict[str, Any]:
    """As ``serving/reading/reads.py`` takes them."""
    modules: dict[str, Any] = {}
    for name in reads.texts("modules"):
        module = read(name)
        if module is None:
            raise ManifestError(f"{reads.where}: {shown(name)} is not in the table `read`")
        if module.data.get("source") is not None:  # a script has none
            module.get("source", str)
        _check_texts(module, "values")
        modules[module.get("module", str)] = {"source": module.data.get("source"), "values": module.data["values"]}
    _check_texts(reads, "environment")
    for item in reads.get("device", list):
        if not (isinstance(item, list) and len(item) == 3 and isinstance(item[0], str) and isinstance(item[1], list)):
            raise ManifestError(f"{reads.where}: {shown(item)} is not a question to a device")
    found = {"modules": modules, "environment": reads.data["environment"], "device": reads.data["device"]}
    return {**found, "stored": reads.get("stored", dict)} if "stored" in reads.data else found


def _check_texts(reader: Reader, name: str) -> None:
    if not all(isinstance(text, (str, type(None))) for text in reader.get(name, dict).values()):
        raise ManifestError(f"{reader.where}: {name} are not texts")


def _check_signature(parameters: tuple[Parameter, ...], choices: tuple[Choice, ...], record: Reader) -> None:
    """What Python asks of a function's parameters, since a loader makes a function of them."""
    names = [*(parameter.name for parameter in parameters), *(choice.name for choice in choices)]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ManifestError(f"{record.where}: two parameters or choices are called {twice!r}")
    for earlier, later in pairwise(parameters):
        if earlier.has_default and not later.has_default:
            raise ManifestError(f"{record.where}: {later.name} has no default but follows one that has")


def _parameter(record: Reader) -> Parameter:
    return Parameter(
        name=_identifier(record.get("name", str), record),
        doc=record.get("doc", str, ""),
        has_default="default" in record.data,
        default=_scalar(record.data.get("default"), record),
        output=record.get("output", bool, False),
        shape=record.get("shape", str, None),
        dtype=record.get("dtype", str, None),
        may_be=record.texts("may_be"),
        type=record.get("type", str, ""),
        workspace=record.get("workspace", str, None),
        zeroed=record.get("zeroed", bool, False),
        accepts=record.texts("accepts"),
    )


def _scalar(value: Any, record: Reader) -> Any:
    if value is not None and not isinstance(value, (bool, int, float)):
        raise ManifestError(f"{record.where}: the default {shown(value)} is neither a number nor null")
    return value


def _identifier(name: str, record: Reader) -> str:
    # Loaders write these names into the source of a function.
    if not name.isidentifier() or iskeyword(name) or name.startswith("_") or not _is_normal(name):
        raise ManifestError(f"{record.where}: {name!a} cannot name a parameter")
    return name


def _is_normal(name: str) -> bool:
    """Whether Python keeps the name as it is written: it replaces some letters by others."""
    if name.isascii():
        return True
    from unicodedata import normalize

    return normalize("NFKC", name) == name


def _choice(record: Reader) -> Choice:
    return Choice(
        name=_identifier(record.get("name", str), record),
        values=record.texts("values"),
        default=record.get("default", str, None),
        doc=record.get("doc", str, ""),
    )


def read_arch(text: str, record: Reader) -> Arch:
    try:
        return Arch.parse(text)
    except AotError as error:
        raise ManifestError(f"{record.where}: {error.message}") from None
