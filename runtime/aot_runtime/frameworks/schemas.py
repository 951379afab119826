"""The schemas of a kernel as operators of torch, as text: for operators registered from Python and for those from C.

Torch is not needed here. The builder writes the same text into ``lib<name>_torch.so``.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..description.kernel_records import Choice, KernelRecord, Parameter
from ..errors import ManifestError
from .exposed import ExposeError, split_parameters
from .outputs import dtype_source, shape_source

__all__ = ["functional_schema", "is_optional", "operator_parameters", "out_schema"]

_SCHEMA_TYPES = {"tensor": "Tensor", "tensor?": "Tensor?", "float": "float", "int": "int", "bool": "bool"}


def operator_parameters(record: KernelRecord) -> tuple[list[Parameter], list[Parameter]]:
    """Inputs and outputs of an operator; :class:`ExposeError` says why the kernel cannot be one."""
    inputs, outputs = split_parameters(record, tuple(_SCHEMA_TYPES))
    names = [parameter.name for parameter in inputs]
    for parameter in outputs:
        try:
            shape_source(str(parameter.shape), names)
            dtype_source(str(parameter.dtype), names)
        except ManifestError as error:
            raise ExposeError(f"`{parameter.name}` cannot be allocated: {error.message}") from None
    return inputs, outputs


def is_optional(output: Parameter) -> bool:
    """Whether variants exist that do not write this output."""
    return output.type == "tensor?" and output.has_default and output.default is None


def functional_schema(record: KernelRecord) -> str:
    """The form that allocates its outputs."""
    _, outputs = operator_parameters(record)
    returns = ", ".join("Tensor" for _ in outputs)
    returns = returns if len(outputs) == 1 else f"({returns})"
    return f"{record.name}({_arguments(record, ())}) -> {returns}"


def out_schema(record: KernelRecord) -> str:
    """The form that writes into tensors of the caller, who may leave an optional one out."""
    _, outputs = operator_parameters(record)
    written = [
        f"Tensor(a{i}!)? {parameter.name}=None" if is_optional(parameter) else f"Tensor(a{i}!) {parameter.name}"
        for i, parameter in enumerate(outputs)
    ]
    return f"{record.name}.out({_arguments(record, written)}) -> ()"


def _arguments(record: KernelRecord, outputs: Sequence[str]) -> str:
    inputs, _ = operator_parameters(record)
    keywords = [*(_choice(choice) for choice in record.choices), *outputs]
    return ", ".join([*(_argument(parameter) for parameter in inputs), *(["*", *keywords] if keywords else [])])


def _argument(parameter: Parameter) -> str:
    text = f"{_SCHEMA_TYPES[parameter.type]} {parameter.name}"
    return f"{text}={parameter.default}" if parameter.has_default else text


def _choice(choice: Choice) -> str:
    return f"str {choice.name}" + (f'="{choice.default}"' if choice.default else "")
