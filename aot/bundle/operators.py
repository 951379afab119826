"""A bundle's kernels as ``lib<name>_torch.so`` registers them: what its tables say, derived from the kernels alone.

The schemas are those of :mod:`aot_runtime.frameworks.schemas`. The shape of an output becomes steps for a small stack machine in C,
``runtime/src/torch/aot_torch_shape.c``, which also states what each step does.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from aot_runtime.core.functions import function_symbol
from aot_runtime.description.kernel_records import KernelRecord, Parameter
from aot_runtime.dtypes import ALLOCATED, find_dtype
from aot_runtime.frameworks.exposed import ExposeError
from aot_runtime.frameworks.outputs import dtype_source, shape_source
from aot_runtime.frameworks.schemas import functional_schema, is_optional, operator_parameters, out_schema

__all__ = ["Operator", "Output", "Step", "operators", "operators_digest", "shape_steps"]

MOST = 64  # inputs, outputs or choices of one operator: AOT_TORCH_MAX_ARGUMENTS
DEEPEST = 32  # numbers on the stack of a shape: AOT_TORCH_MAX_DEPTH
WORKSPACE = -(2**31) + 1  # AOT_TORCH_WORKSPACE
_INTEGERS = ("int", "bool")
_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "ADD", ast.Sub: "SUBTRACT", ast.Mult: "MULTIPLY", ast.FloorDiv: "DIVIDE", ast.Mod: "REMAINDER",
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One step of computing a shape; ``input`` is the number of an input, -1 if the step needs none."""

    operation: str  # ADD for AOT_TORCH_ADD
    input: int = -1
    number: int = 0


@dataclass(frozen=True)
class Output:
    """An output of an operator: how to allocate it."""

    name: str
    shape: tuple[Step, ...]
    dtype_of: int  # the input whose dtype it has, or -1
    dtype: str  # or else its own: "f32"
    optional: bool = False  # whether a caller of the form that writes may leave it out


@dataclass(frozen=True)
class Operator:
    """A kernel as an operator of torch."""

    name: str
    schema: str
    out_schema: str
    functions: tuple[str, ...]
    parameters: tuple[str, ...]  # of these functions, in their order
    inputs: tuple[tuple[str, str], ...]  # name and type
    choices: tuple[str, ...]
    outputs: tuple[Output, ...]

    @property
    def order(self) -> list[int]:
        """Per parameter: the number of its input, or -1 minus the number of its output; WORKSPACE if it is neither."""
        places = {name: number for number, (name, _) in enumerate(self.inputs)}
        places |= {output.name: -1 - number for number, output in enumerate(self.outputs)}
        return [places.get(name, WORKSPACE) for name in self.parameters]

    @property
    def device_of(self) -> int:
        """The input on whose device outputs are allocated: the first that is always a tensor."""
        return next(number for number, (_, type) in enumerate(self.inputs) if type == "tensor")


def operators(kernels: Mapping[str, KernelRecord]) -> tuple[Operator, ...]:
    """The operators of a bundle, without the kernels that torch cannot have."""
    found = []
    for record in kernels.values():
        try:
            found.append(_operator(record))
        except ExposeError:  # `aot_runtime.torch` tells the caller who asks for such a kernel
            continue
    return tuple(found)


def operators_digest(found: Sequence[Operator]) -> str:
    """What a library carries to say which operators it was built for: 64 hexadecimal digits."""
    described = [asdict(operator) for operator in found]
    for output in (output for operator in described for output in operator["outputs"]):
        del output["optional"]  # the schema says so too, and older libraries know no such field
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def _operator(record: KernelRecord) -> Operator:
    inputs, outputs = operator_parameters(record)
    if max(len(inputs), len(outputs), len(record.choices)) > MOST:
        raise ExposeError(f"it has more than {MOST} parameters")
    functions = tuple(_functions(record))
    if not functions:
        raise ExposeError("no choice leads to one of its functions")
    return Operator(
        name=record.name,
        schema=functional_schema(record),
        out_schema=out_schema(record),
        functions=functions,
        parameters=tuple(parameter.name for parameter in record.parameters),
        inputs=tuple((parameter.name, parameter.type) for parameter in inputs),
        choices=tuple(choice.name for choice in record.choices),
        outputs=tuple(_output(parameter, inputs) for parameter in outputs),
    )


def _functions(record: KernelRecord) -> Iterator[str]:
    """The functions that choices lead to: a name that is no combination of choices cannot be asked for."""
    for name in record.functions:
        values = tuple(name.removeprefix(record.name + "__").split("__")) if record.choices else ()
        if len(values) == len(record.choices) and function_symbol(record.name, values) == name:
            yield name


def _output(parameter: Parameter, inputs: Sequence[Parameter]) -> Output:
    names = [one.name for one in inputs]
    dtype = dtype_source(str(parameter.dtype), names)
    own = find_dtype(str(parameter.dtype)) if dtype is None else None
    if dtype is None and (own is None or own.name not in ALLOCATED):
        raise ExposeError(f"torch has no dtype {parameter.dtype}")
    return Output(
        name=parameter.name,
        shape=shape_steps(str(parameter.shape), inputs),
        dtype_of=-1 if dtype is None else names.index(dtype.removesuffix(".dtype")),
        dtype=own.name if own is not None else "",
        optional=is_optional(parameter),
    )


# Shapes.


def shape_steps(text: str, inputs: Sequence[Parameter]) -> tuple[Step, ...]:
    """The steps that compute a shape; :class:`ExposeError` if torch could not compute it either."""
    source = shape_source(text, [parameter.name for parameter in inputs])  # refuses everything but a few forms
    tree = ast.parse(source, mode="eval").body
    assert isinstance(tree, ast.Tuple)
    compiler = _Compiler(inputs)
    steps: list[Step] = []
    for element in tree.elts:
        if isinstance(element, ast.Starred):
            steps.append(compiler.spread(element.value))
        else:
            steps += [*compiler.extent(element, 1), Step("APPEND")]
    return tuple(steps)


class _Compiler:
    """Makes steps of the expressions that ``shape_source`` lets pass."""

    def __init__(self, inputs: Sequence[Parameter]) -> None:
        self.inputs = {parameter.name: (number, parameter.type) for number, parameter in enumerate(inputs)}

    def spread(self, node: ast.expr) -> Step:
        """``x.shape``, ``x.shape[:-1]`` or ``x.shape[1:]``."""
        if isinstance(node, ast.Subscript):
            assert isinstance(node.slice, ast.Slice)
            tensor, lower = self._tensor(node.value), node.slice.lower
            if lower is not None:
                return Step("SPREAD_FROM", tensor, _number(lower))
            return Step("SPREAD_TO", tensor, _number(node.slice.upper))
        return Step("SPREAD", self._tensor(node))

    def extent(self, node: ast.expr, depth: int) -> list[Step]:
        if depth > DEEPEST:
            raise ExposeError("the shape of an output is nested too deeply")
        if isinstance(node, ast.BinOp):
            return self._pair(node.left, node.right, _BINARY[type(node.op)], depth)
        if isinstance(node, ast.Call):
            assert isinstance(node.func, ast.Name)
            left, right = node.args
            return self._pair(left, right, node.func.id.removeprefix("_").upper(), depth)
        if isinstance(node, ast.Subscript):
            return [Step("EXTENT", self._tensor(node.value), _number(node.slice))]
        if isinstance(node, ast.Name):
            return [Step("SCALAR", self._input(node.id, _INTEGERS))]
        return [Step("NUMBER", number=_number(node))]

    def _pair(self, left: ast.expr, right: ast.expr, operation: str, depth: int) -> list[Step]:
        return [*self.extent(left, depth), *self.extent(right, depth + 1), Step(operation)]

    def _tensor(self, node: ast.expr) -> int:
        assert isinstance(node, ast.Attribute)
        if not isinstance(node.value, ast.Name):
            raise ExposeError("the shape of an output uses an element of a tuple")
        return self._input(node.value.id, ("tensor", "tensor?"))

    def _input(self, name: str, types: tuple[str, ...]) -> int:
        number, type = self.inputs[name]
        if type not in types:
            raise ExposeError(f"the shape of an output uses `{name}`, which is of type {type}")
        return number


def _number(node: ast.expr | None) -> int:
    assert node is not None
    number = ast.literal_eval(node)
    if not -(2**63) <= number < 2**63:
        raise ExposeError(f"the shape of an output has a number beyond 64 bits: {number}")
    return int(number)
