"""What a call would run, asked with text: ``x=f16[4,8,64]`` stands for a tensor, and no GPU is needed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aot_runtime.arch import Arch, Capability, parse_capability
from aot_runtime.core.explain import Candidate, Device, TensorInfo
from aot_runtime.description.kernel_records import KernelRecord

from ..bundle.details import RequirementDetails, VariantDetails, read_details
from ..bundle.layout import details_name
from ..declare.expressions import check_dtype, check_shape, shape_of
from ..errors import UsageError
from ..kinds import BOOL, DTYPES, FLOAT, INT, NONE, TENSOR, TUPLE, dtype_of

if TYPE_CHECKING:
    from aot_runtime import Bundle

__all__ = ["Answer", "ask", "parse_arguments"]

_TENSOR = re.compile(r"(\w+)\[([\d\s,]*)\](?::\(([\d\s,]*)\))?(?:@(\d+))?", re.ASCII)
_LABEL = re.compile(r"(\w+)((?:\[\d+\])*)(?:\.(dtype|ndim|shape|strides)(?:\[(\d+)\])?)?")
_EXAMPLE = "write it like x=f16[4,8,64], x=f16[4,8]:(16,1)@16, n=3, scale=0.5, flag=true, bias=none, pair=(f32[8],2.0)"
_MOST_ALIGNMENT = 1 << 30  # bytes
_WORDS: dict[str, Any] = {"none": None, "true": True, "false": False}


@dataclass(frozen=True)
class Answer:
    """What a call would run; the refused variants with their reasons, the nearest first."""

    arguments: Mapping[str, Any]
    chosen: Candidate | None
    eligible: tuple[Candidate, ...]  # but of lower priority
    refused: tuple[Candidate, ...]
    written_for: str = ""  # the architecture that the chosen code was written for; "": not known


def parse_arguments(texts: Sequence[str], record: KernelRecord) -> dict[str, Any]:
    """``["x=f16[4,8]", "op=relu"]`` -> arguments of a call, outputs of declared shapes included."""
    choices = {choice.name for choice in record.choices}
    parameters = {parameter.name for parameter in record.parameters}
    arguments: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"not an argument: {text!r}", hint=_EXAMPLE)
        if name not in parameters | choices:
            raise UsageError(f"{record.name} has no parameter {name!r}", hint=f"it takes: {_parameters(record)}")
        if name in arguments:
            raise UsageError(f"{name!r} is given twice, the second time as {text!r}", hint="leave out one of them")
        arguments[name] = value if name in choices else _parse_value(value.strip(), text)
    _add_outputs(arguments, record)
    missing = [p.name for p in record.parameters if p.name not in arguments and not p.has_default]
    if missing:
        raise UsageError(
            f"{record.name} needs {', '.join(missing)} too", hint=f"it takes: {_parameters(record)}; {_EXAMPLE}"
        )
    return arguments


def _parameters(record: KernelRecord) -> str:
    words = [f"{p.name} ({p.type})" if p.type else p.name for p in record.parameters]
    return ", ".join([*words, *(f"{choice.name} ({'|'.join(choice.values)})" for choice in record.choices)])


def _parse_value(value: str, text: str) -> Any:
    if value.startswith("(") and value.endswith(")"):
        return tuple(_parse_value(part, text) for part in _elements(value[1:-1]))
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    tensor = _TENSOR.fullmatch(value)
    if tensor is not None:
        return _parse_tensor(tensor, text)
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    raise UsageError(f"not an argument: {text!r}", hint=_EXAMPLE)


def _elements(text: str) -> list[str]:
    """``f32[8,2],(1,2)`` -> the parts between the outer commas."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _parse_tensor(match: re.Match[str], text: str) -> TensorInfo:
    dtype, shape, strides, align = match.groups()
    known = dtype_of(dtype)
    if known is None:
        raise UsageError(f"{text!r}: there is no dtype {dtype!r}", hint=f"known: {', '.join(DTYPES)}")
    steps = _numbers(strides) if strides is not None else None
    if steps is not None and len(steps) != len(_numbers(shape)):
        raise UsageError(f"{text!r} has {len(_numbers(shape))} extents and {len(steps)} strides")
    if align is not None and not 0 < int(align) <= _MOST_ALIGNMENT:
        raise UsageError(
            f"{text!r}: no address is a multiple of {align} bytes",
            hint=f"what follows `@` is the alignment of the tensor, from 1 to {_MOST_ALIGNMENT} bytes",
        )
    return TensorInfo(known.torch, _numbers(shape), steps, int(align) if align is not None else 256)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))


def _add_outputs(arguments: dict[str, Any], record: KernelRecord) -> None:
    """Outputs that were not given get the shapes and dtypes that the declaration states."""
    defaults = {parameter.name: parameter.default for parameter in record.parameters if parameter.has_default}
    for parameter in record.parameters:
        if not parameter.output or parameter.name in arguments or parameter.shape is None or parameter.dtype is None:
            continue
        known = {**defaults, **arguments}
        if (check_shape(parameter.shape) | check_dtype(parameter.dtype)) - known.keys():
            continue  # the caller picks it, or an input is missing
        name, dot, _ = parameter.dtype.partition(".")
        own = dtype_of(name) if not dot else None
        try:
            dtype = known[name].dtype if own is None else own.torch
            arguments[parameter.name] = TensorInfo(dtype, tuple(shape_of(parameter.shape, known)))
        except (AttributeError, IndexError, TypeError):  # a number, or a tensor of lower rank, where a tensor is meant
            raise UsageError(
                f"cannot tell the shape `{parameter.shape}` and the dtype `{parameter.dtype}` of {parameter.name} "
                "from this call",
                hint=f"it takes: {_parameters(record)}; {_EXAMPLE}",
            ) from None


def ask(bundle: Bundle, kernel: str, device: Device, arguments: Mapping[str, Any]) -> Answer:
    """What the call would run on a device, and why not the rest."""
    capability = parse_capability(device.capability)
    explanation = bundle.explain(kernel, device, **arguments)
    details = _details(bundle, kernel, [Arch.parse(text) for text in {c.arch for c in explanation.candidates}])
    refused = [candidate for candidate in explanation.candidates if candidate.reason]
    refused.sort(key=lambda one: _distance(one, capability, details, arguments))
    eligible = [one for one in explanation.candidates if not one.reason and one is not explanation.chosen]
    return Answer(
        arguments,
        explanation.chosen,
        tuple(eligible),
        tuple(refused),
        _written_for(explanation.chosen, details),
    )


def _written_for(chosen: Candidate | None, details: Mapping[tuple[str, str], VariantDetails]) -> str:
    known = details.get((chosen.arch, chosen.variant)) if chosen is not None else None
    return known.written_for if known is not None else ""


def _details(bundle: Bundle, kernel: str, archs: Sequence[Arch]) -> dict[tuple[str, str], VariantDetails]:
    files = {arch: details_name(arch) for arch in archs}
    return {
        (str(arch), variant.name): variant
        for arch, name in files.items()
        if (bundle.path / name).is_file()  # a part of a split bundle may be absent
        for variant in read_details(bundle.path / name, kernel, bundle.manifest.files.get(name))
    }


def _distance(
    candidate: Candidate,
    device: Capability,
    details: Mapping[tuple[str, str], VariantDetails],
    arguments: Mapping[str, Any],
) -> tuple[bool, int]:
    """How far the call is from a variant: the number of requirements that it does not meet."""
    variant = details.get((candidate.arch, candidate.variant))
    runs = Arch.parse(candidate.arch).runs_on(device)
    return not runs, sum(_is_unmet(item, arguments) for item in variant.requirements) if variant is not None else 0


def _is_unmet(requirement: RequirementDetails, arguments: Mapping[str, Any]) -> bool:
    """Whether a requirement is surely not met. What takes more than one argument to tell is left to C's own reason."""
    value = _read(requirement, arguments)
    return value is not None and not requirement.low <= value <= requirement.high


def _read(requirement: RequirementDetails, arguments: Mapping[str, Any]) -> int | None:
    match = _LABEL.fullmatch(requirement.label)
    if match is None or match[1] not in arguments:
        return None
    value = arguments[match[1]]
    for index in re.findall(r"\d+", match[2]):
        if not isinstance(value, tuple) or int(index) >= len(value):
            return None
        value = value[int(index)]
    dim = int(match[4] or 0)
    if requirement.operation == "kind":
        return _kind(value)
    if requirement.operation == "integer":
        return value if isinstance(value, int) else None
    if not isinstance(value, TensorInfo) or (match[4] is not None and dim >= len(value.shape)):
        return None
    read = _TENSOR_READERS.get(requirement.operation)
    return read(value, dim, requirement.parameter) if read is not None else None


_TENSOR_READERS: dict[str, Any] = {
    "dtype": lambda tensor, dim, parameter: _packed(tensor.dtype),
    "ndim": lambda tensor, dim, parameter: len(tensor.shape),
    "extent": lambda tensor, dim, parameter: tensor.shape[dim],
    "extent_modulo": lambda tensor, dim, parameter: tensor.shape[dim] % parameter,
    "stride": lambda tensor, dim, parameter: tensor.resolved_strides()[dim],
    "stride_modulo": lambda tensor, dim, parameter: tensor.resolved_strides()[dim] % parameter,
    "stride_off": lambda tensor, dim, parameter: tensor.resolved_strides()[dim] - parameter,
    "address_modulo": lambda tensor, dim, parameter: tensor.align % parameter,
}


def _kind(value: Any) -> int:
    if value is None:
        return NONE
    if isinstance(value, TensorInfo):
        return TENSOR
    if isinstance(value, tuple):
        return TUPLE
    return BOOL if isinstance(value, bool) else INT if isinstance(value, int) else FLOAT


def _packed(dtype: str) -> int | None:
    """A dtype as requirements count it: see ``aot_packed_dtype`` in C."""
    found = dtype_of(dtype)
    return None if found is None else found.packed
