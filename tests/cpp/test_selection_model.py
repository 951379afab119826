"""Selection in C against a plain model of it in Python, on random tables, arguments and devices."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from aot_runtime.arch import Arch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from aot.bundle.tables.cells import packed
from aot.selection.branching import branch_by_range, branch_by_value
from aot.selection.decision import Node, Tree, decide, decide_plainly
from aot.selection.subjects import Region, Requirement, Step, Subject, TunedExtent, VariantTable
from aot.targets import accepted_archs

MISSING = -(2**63)
LOW, HIGH = -(2**63) + 1, 2**63 - 1
KINDS = {
    1: "a float", 2: "a bool", 3: "an int", 4: "None", 5: "a pointer", 6: "a tensor", 7: "a tuple", 8: "something else",
    10: "a tensor whose address is null",
}  # fmt: skip
TEGRA = ((8, 7), (11, 0))
OPERATIONS = (
    "kind", "dtype", "ndim", "device_type", "device_index", "extent", "extent_modulo", "stride_off", "stride_modulo",
    "extent_off", "stride_off_by", "address_modulo", "integer", "integer_modulo", "float", "length", "stride",
    "program", "condition", "overlap",
)  # fmt: skip
WITHOUT_PARAMETER = OPERATIONS[:6]
STEPS = (
    "end", "constant", "extent", "stride", "integer", "add", "subtract", "multiply", "floor_divide", "modulo",
    "minimum", "maximum", "less", "less_equal", "equal", "not_equal", "and", "or", "not",
)  # fmt: skip


# The model: arguments are Python values, tensors are dictionaries.


@dataclass(frozen=True)
class Call:
    values: tuple[Any, ...]
    device: int = 0
    hypothetical: bool = True

    def at(self, path: Sequence[int]) -> Any:
        value: Any = self.values[path[0]]
        for index in path[1:]:
            if not isinstance(value, tuple) or index >= len(value):
                return ...
            value = value[index]
        return value


def kind(value: Any) -> int:
    if value is ...:
        return 8
    if value is None:
        return 4
    if isinstance(value, dict) and "shape" in value:
        return 10 if value["data"] == 0 and all(extent > 0 for extent in value["shape"]) else 6
    if isinstance(value, dict):
        return 5
    return {bool: 2, int: 3, float: 1, tuple: 7}[type(value)]


def is_tensor(value: Any) -> bool:
    return kind(value) == 6


def extent(value: Any, dim: int, key: str = "shape") -> int:
    return value[key][dim] if is_tensor(value) and dim < len(value[key]) else MISSING


def integer(value: Any) -> int:
    return int(value) if kind(value) in (2, 3) else MISSING


def modulo(value: int, divisor: int) -> int:
    return MISSING if value == MISSING or divisor <= 0 else value % divisor


def checked(value: int) -> int:
    """A result as 64 bits hold it: what does not fit is missing, and so is the number that stands for it."""
    return value if LOW <= value <= HIGH else MISSING


def difference(left: int, right: int) -> int:
    return MISSING if MISSING in (left, right) else checked(left - right)


def ordered(value: Any) -> int:
    if kind(value) not in (1, 2, 3) or math.isnan(value):
        return MISSING
    number = float(value)
    if number == 0:
        return 0
    bits: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return bits if bits >= 0 else -(bits & HIGH)


BINARY = {
    "add": lambda a, b: checked(a + b),
    "subtract": lambda a, b: checked(a - b),
    "multiply": lambda a, b: checked(a * b),
    "floor_divide": lambda a, b: a // b if b > 0 else MISSING,
    "modulo": lambda a, b: a % b if b > 0 else MISSING,
    "minimum": min,
    "maximum": max,
    "less": lambda a, b: int(a < b),
    "less_equal": lambda a, b: int(a <= b),
    "equal": lambda a, b: int(a == b),
    "not_equal": lambda a, b: int(a != b),
    "and": lambda a, b: int(bool(a) and bool(b)),
    "or": lambda a, b: int(bool(a) or bool(b)),
}


def run_program(steps: Sequence[Step], call: Call) -> int:
    stack: list[int] = []
    for step in steps:
        if step.operation == "constant":
            stack.append(step.value)
        elif step.operation in ("extent", "stride"):
            stack.append(extent(call.at(step.path), step.dim, {"extent": "shape", "stride": "strides"}[step.operation]))
        elif step.operation == "integer":
            stack.append(integer(call.at(step.path)))
        elif step.operation == "not":
            stack.append(MISSING if (top := stack.pop()) == MISSING else int(not top))
        else:
            right, left = stack.pop(), stack.pop()
            stack.append(MISSING if MISSING in (left, right) else BINARY[step.operation](left, right))
    return stack[0]


def span(tensor: dict[str, Any]) -> tuple[int, int]:
    """The first byte, and the one past the last."""
    reaches = [(n - 1) * stride for n, stride in zip(tensor["shape"], tensor["strides"], strict=True)]
    start, size = tensor["data"] + tensor["byte_offset"], element_bytes(tensor)
    return start + size * sum(r for r in reaches if r < 0), start + size * (1 + sum(r for r in reaches if r > 0))


def element_bytes(tensor: dict[str, Any]) -> int:
    _, bits, lanes = tensor["dtype"]
    return (bits * lanes + 7) // 8


def touched(tensor: dict[str, Any]) -> set[int]:
    """Every byte, one after the other."""
    starts = {tensor["data"] + tensor["byte_offset"]}
    size = element_bytes(tensor)
    for extent_, stride in zip(tensor["shape"], tensor["strides"], strict=True):
        starts = {start + i * stride * size for start in starts for i in range(extent_)}
    return {start + i for start in starts for i in range(size)}


def identity(tensor: dict[str, Any]) -> tuple[Any, ...]:
    """What makes two tensors the same: the stride of an extent of 1 means nothing."""
    pairs = zip(tensor["shape"], tensor["strides"], strict=True)
    layout = [(n, stride if n != 1 else 0) for n, stride in pairs]
    return tensor["data"] + tensor["byte_offset"], element_bytes(tensor), layout


def has_memory(value: Any) -> bool:
    return is_tensor(value) and value["data"] != 0 and value["device"] >= 0 and all(n > 0 for n in value["shape"])


def overlaps_itself(tensor: dict[str, Any]) -> bool:
    """Whether two elements are the same memory; each is looked at."""
    offsets = [0]
    for extent_, stride in zip(tensor["shape"], tensor["strides"], strict=True):
        offsets = [offset + i * stride for offset in offsets for i in range(extent_)]
    return len(set(offsets)) < len(offsets)


def overlap(regions: Sequence[Region], call: Call) -> int:
    outputs: list[Any] = []
    for number, region in enumerate(regions):
        value = call.at(region.path)
        here = has_memory(value)
        for output, other in enumerate(outputs):
            if (
                not here
                or not has_memory(other)
                or (region.may_be >> output & 1 and identity(value) == identity(other))
            ):
                continue
            apart = span(value)[0] >= span(other)[1] or span(other)[0] >= span(value)[1]
            if not apart and touched(value) & touched(other):
                return 1 + 64 * number + output
        if region.is_output:
            if here and overlaps_itself(value):
                return 1 + 64 * number + number
            outputs.append(value)
    return 0


def value_of(subject: Subject, call: Call) -> int:
    value, dim, parameter = call.at(subject.path or (0,)), subject.dim, subject.parameter
    tensor = is_tensor(value)
    if subject.none is not None and not tensor:
        if subject.operation == "kind":
            return 8 if kind(value) == 5 else kind(value)
        return MISSING if value is not None else subject.none if subject.operation in WITHOUT_PARAMETER else 0
    single = extent(value, dim) == 1
    other = (
        extent(call.at(subject.other), subject.other_dim, "strides" if subject.other_is_stride else "shape")
        if subject.other
        else 0
    )
    return {
        "kind": lambda: kind(value),
        "dtype": lambda: value["dtype"][1] << 32 | value["dtype"][2] << 8 | value["dtype"][0] if tensor else MISSING,
        "ndim": lambda: len(value["shape"]) if tensor else MISSING,
        "device_type": lambda: MISSING if not tensor else 2 if call.hypothetical else value["device_type"],
        "device_index": lambda: MISSING if not tensor else 0 if call.hypothetical else value["device"] - call.device,
        "extent": lambda: extent(value, dim),
        "extent_modulo": lambda: modulo(extent(value, dim), parameter),
        "stride": lambda: extent(value, dim, "strides"),
        "stride_off": lambda: 0 if single else difference(extent(value, dim, "strides"), parameter),
        "stride_modulo": lambda: 0 if single else modulo(extent(value, dim, "strides"), parameter),
        "extent_off": lambda: difference(extent(value, dim), other),
        "stride_off_by": lambda: 0 if single else difference(extent(value, dim, "strides"), other),
        "address_modulo": lambda: (value["data"] + value["byte_offset"]) % 2**64 % parameter if tensor else MISSING,
        "integer": lambda: integer(value),
        "integer_modulo": lambda: modulo(integer(value), parameter),
        "float": lambda: ordered(value),
        "length": lambda: len(value) if isinstance(value, tuple) else MISSING,
        "program": lambda: run_program(subject.steps, call),
        "condition": lambda: run_program(subject.steps, call),
        "overlap": lambda: overlap(subject.regions, call),
    }[subject.operation]()


def first_unmet(variant: VariantTable, call: Call) -> Requirement | None:
    for requirement in variant.requirements:
        if not requirement.low <= value_of(requirement.subject, call) <= requirement.high:
            return requirement
    return None


def rank(arch: Arch, device: tuple[int, int]) -> int:
    """How good code is on a device: NVIDIA's rules, said once more."""
    same = arch.capability == device
    if arch.suffix == "a":
        return 3000 if same else 0
    family = arch.major == device[0] and arch.minor <= device[1]
    runs = same if arch.capability in TEGRA or device in TEGRA else family
    return (2000 if arch.suffix == "f" else 1000) + arch.minor if runs else 0


# Reasons, in the model's words.


def dtype_text(packed: int) -> str:
    if packed == MISSING:
        return "not that of a tensor"
    code, lanes, bits = packed & 0xFF, packed >> 8 & 0xFFFF, packed >> 32
    name = {0: f"int{bits}", 1: f"uint{bits}", 2: f"float{bits}", 4: f"bfloat{bits}", 6: "bool"}[code]
    return name if lanes == 1 else f"{name}x{lanes}"


def number_text(subject: Subject, value: int) -> str:
    if subject.operation == "dtype":
        return dtype_text(value)
    if value == MISSING:
        return "NaN" if subject.operation == "float" else "not there"
    if subject.operation == "float":
        bits = value if value >= 0 else -value | -(2**63)
        return f"{struct.unpack('<d', struct.pack('<q', bits))[0]:.17g}"
    return str(value)


def plain(subject: Subject, operation: str, call: Call) -> str:
    return f"{subject.label} is {number_text(subject, value_of(Subject(operation, subject.path, subject.dim), call))}"


def reason(requirement: Requirement, call: Call) -> str:
    subject, low, high = requirement.subject, requirement.low, requirement.high
    value = value_of(subject, call)
    derived = {"extent_modulo": "extent", "stride_modulo": "stride", "integer_modulo": "integer"}
    if subject.operation == "kind":
        wanted = "a float" if low == 1 else "a tensor or None" if (low, high) == (4, 6) else KINDS[high]
        return f"{subject.label} is {KINDS[kind(call.at(subject.path))]}, must be {wanted}"
    if value == MISSING and subject.operation in ("device_type", "device_index", "address_modulo"):
        return f"{subject.label} is not a tensor"
    if subject.operation in derived:
        return f"{plain(subject, derived[subject.operation], call)}, must be divisible by {subject.parameter}"
    if subject.operation == "stride_off":
        return f"{plain(subject, 'stride', call)}, must be {subject.parameter}"
    if subject.operation == "address_modulo":
        return f"{subject.label} starts {value} bytes past a multiple of {subject.parameter}, must be aligned"
    if subject.operation in ("extent_off", "stride_off_by"):
        other = Subject("stride" if subject.other_is_stride else "extent", subject.other, subject.other_dim)
        seen = number_text(subject, value_of(other, call))
        return f"{plain(subject, subject.operation.split('_')[0], call)}, must equal {subject.other_label}, which is {seen}"
    if subject.operation == "condition":
        return f"`{subject.label}` does not hold"
    if subject.operation == "overlap":
        return overlap_reason(subject.regions, value, call)
    shown = number_text(subject, low)
    if low != high:
        upper = number_text(subject, high)
        least = "> 0" if (subject.operation, low) == ("float", 1) else f">= {shown}"
        shown = least if high == HIGH else f"<= {upper}" if low == LOW else f"{shown} to {upper}"
    return f"{subject.label} is {number_text(subject, value)}, must be {shown}"


def overlap_reason(regions: Sequence[Region], value: int, call: Call) -> str:
    other, output = divmod(value - 1, 64)
    name = regions[output].label
    if other == output:
        return f"elements of {name} share memory with each other, must lie apart"
    tensors = call.at(regions[output].path), call.at(regions[other].path)
    after = identity(tensors[0])[0] - identity(tensors[1])[0]
    where = f"{abs(after)} bytes {'before' if after < 0 else 'after'} {regions[other].label}"
    same = " or be the same tensor, of equal shape and strides" if regions[other].may_be >> output & 1 else ""
    return f"{name} starts {where} and shares memory with it, must lie apart{same}"


# From the model's tables to the ones of C.


MINOR = 4  # AOT_TABLES_MINOR; earlier tables have one tree only


def flatten(variants: Sequence[VariantTable], argument_count: int, minor: int = MINOR) -> dict[str, Any]:
    slots: dict[tuple[int, ...], int] = {(i,): i for i in range(argument_count)}
    for path in (path for variant in variants for path in variant.paths):
        slots.setdefault(path, len(slots))
    subjects: dict[Subject, int] = {}
    rows: list[tuple[Any, ...]] = []
    steps: list[tuple[int, int, int, int]] = []
    regions: list[tuple[int, int, int, str]] = []
    asked = [item.subject for variant in variants for item in (*variant.requirements, *variant.preferences)]
    for subject in (*asked, *(extent_.subject for variant in variants for extent_ in variant.tuned_by)):
        if subject in subjects:
            continue
        subjects[subject] = len(rows)
        parameter = subject.parameter
        if subject.steps:
            parameter = len(steps)
            steps += [(STEPS.index(s.operation), slots.get(s.path, 0), s.dim, s.value) for s in subject.steps]
            steps.append((0, 0, 0, 0))
        if subject.regions:
            parameter = len(regions)
            regions += [(slots[r.path], int(r.is_output), r.may_be, r.label) for r in subject.regions]
        if subject.none is not None and subject.operation in WITHOUT_PARAMETER:
            parameter = subject.none
        rows.append((OPERATIONS.index(subject.operation) + 1, slots.get(subject.path, 0), len(subject.regions) or subject.dim,
                     int(subject.other_is_stride), slots.get(subject.other, 0), subject.other_dim,
                     int(subject.none is not None), parameter, subject.label, subject.other_label))  # fmt: skip
    requirements: dict[Requirement, int] = {}
    for item in (item for variant in variants for item in variant.requirements):
        requirements.setdefault(item, len(requirements))
    nodes: list[tuple[int, int, int, int, int, int]] = []
    branches: list[tuple[int, int]] = []
    placed: dict[int, int] = {}  # a node by its identity: trees share nodes

    def place(node: Tree) -> int:
        if node is None:
            return -(2**31)
        if not isinstance(node, Node):
            return ~node
        if id(node) not in placed:
            below = [place(child) for child in node.children]
            made = branch_by_value(node.cuts, below) or branch_by_range(node.cuts, below)
            row = (len(made.branches), len(branches), made.shift, made.multiplier, made.otherwise)
            nodes.append((subjects[node.subject], *row))
            branches.extend(made.branches)
            placed[id(node)] = len(nodes) - 1
        return placed[id(node)]

    tree, plain_tree = decide(variants), decide_plainly(variants)  # both are held: an identity may be used again
    root, plain_root = place(tree), place(plain_tree)
    return {
        "minor": minor,
        "subjects": rows,
        "requirements": [(subjects[item.subject], item.low, item.high) for item in requirements],
        "nodes": nodes,
        "branches": branches or [(0, 0)],
        "steps": steps or [(0, 0, 0, 0)],
        "regions": regions,
        "slots": [(slots[path[:-1]] if len(path) > 1 else -1, path[-1]) for path in slots],
        "variants": [(v.name, [requirements[item] for item in v.requirements]) for v in variants],
        "root": root,
        "plain_root": plain_root,
        "argument_count": argument_count,
        "tuned_by": [subjects[extent_.subject] for variant in variants for extent_ in variant.tuned_by],
    }


# Random tables and arguments. Small numbers, so that requirements are often met; a few huge ones.

ARGUMENTS = 3
PATHS: tuple[tuple[int, ...], ...] = ((0,), (1,), (2,), (2, 0), (2, 1))
numbers = st.one_of(st.integers(-3, 9), st.sampled_from([0, 1, 2, 4, 8, 16, 100, 2**31, 2**62, 2**63 - 1, -(2**62)]))
dtypes = st.sampled_from([(2, 16, 1), (2, 32, 1), (4, 16, 1), (0, 32, 1), (6, 8, 1), (2, 32, 4)])
packed_dtypes = dtypes.map(lambda dtype: dtype[1] << 32 | dtype[2] << 8 | dtype[0])


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, Any]:
    rank_ = draw(st.integers(0, 3))
    extents = st.lists(numbers, min_size=rank_, max_size=rank_)
    return {
        "shape": draw(extents),
        "strides": draw(extents),
        "dtype": draw(dtypes),
        "data": draw(st.sampled_from([0, 64, 72, 4096, 2**40 + 4])),
        "byte_offset": draw(st.sampled_from([0, 4, 16])),
        "device_type": draw(st.sampled_from([1, 2])),
        "device": draw(st.integers(0, 2)),
    }


floats = st.one_of(st.sampled_from([0.0, -0.0, 0.5, -0.5, 1.0, math.inf, -math.inf, math.nan]), st.floats())
scalars = st.one_of(st.none(), st.booleans(), numbers, floats, st.just({"address": 4096}))
leaves = st.one_of(tensors(), tensors(), scalars)
arguments = st.tuples(leaves, leaves, st.one_of(leaves, st.lists(leaves, max_size=3).map(tuple)))


@st.composite
def programs(draw: st.DrawFn, depth: int = 2) -> tuple[Step, ...]:
    if depth == 0 or draw(st.booleans()):
        path = draw(st.sampled_from(PATHS))
        return (draw(st.sampled_from([
            Step("constant", value=draw(numbers)), Step("extent", path, draw(st.integers(0, 2))),
            Step("stride", path, draw(st.integers(0, 2))), Step("integer", path),
        ])),)  # fmt: skip
    operation = draw(st.sampled_from(STEPS[5:]))
    left = draw(programs(depth - 1))
    if operation == "not":
        return (*left, Step("not"))
    return (*left, *draw(programs(depth - 1)), Step(operation))


@st.composite
def subjects(draw: st.DrawFn) -> Subject:
    operation = draw(st.sampled_from(OPERATIONS[:-1]))  # where tensors lie: below, with small ones
    path = draw(st.sampled_from(PATHS))
    dim = draw(st.integers(0, 2))
    if operation in ("program", "condition"):
        return Subject(operation, (), steps=draw(programs()), label="some expression")
    relation = operation in ("extent_off", "stride_off_by")
    parametric = operation.endswith("modulo") or operation == "stride_off"
    with_dim = operation.startswith(("extent", "stride"))
    of_tensor = with_dim or operation in (*WITHOUT_PARAMETER, "address_modulo")
    return Subject(
        operation,
        path,
        dim if with_dim else 0,
        parameter=draw(st.sampled_from([1, 2, 4, 8, 16])) if parametric else 0,
        other=draw(st.sampled_from(PATHS)) if relation else (),
        other_dim=draw(st.integers(0, 2)) if relation else 0,
        other_is_stride=draw(st.booleans()) if relation else False,
        none=draw(st.none() | NONES.get(operation, st.integers(0, 6))) if of_tensor else None,
        label=f"argument {path}{'.' + str(dim) if with_dim else ''}",
        other_label="the other" if relation else "",
    )


# What None counts as, if a variant takes only one value.
NONES = {"dtype": packed_dtypes, "device_type": st.just(2), "device_index": st.just(0)}
KIND_INTERVALS = st.sampled_from([(1, 3), (2, 3), (3, 5), (4, 4), (4, 6), (6, 6), (7, 7)])


@st.composite
def requirements(draw: st.DrawFn, among: st.SearchStrategy[Subject]) -> Requirement:
    subject = draw(among)
    if subject.operation == "kind":
        low, high = draw(KIND_INTERVALS)
    elif subject.operation == "dtype":
        low = high = draw(packed_dtypes)
    elif subject.operation in ("device_type", "device_index"):
        low = high = 2 if subject.operation == "device_type" else 0
    elif subject.operation.endswith("_off") or subject.operation.endswith(("modulo", "off_by")):
        low = high = 0
    elif subject.operation == "condition":
        low = high = 1
    elif subject.operation == "float":
        low, high = sorted(ordered(draw(st.floats(allow_nan=False))) for _ in range(2))
    else:
        low, high = draw(st.one_of(numbers.map(lambda n: (max(n, LOW), max(n, LOW))), st.tuples(numbers, numbers).map(lambda p: (min(p), max(p))),
                                   numbers.map(lambda n: (LOW, n)), numbers.map(lambda n: (n, HIGH))))  # fmt: skip
    return Requirement(subject, low, high, draw(st.booleans()))


@st.composite
def tables(draw: st.DrawFn) -> list[VariantTable]:
    """Variants over a common handful of subjects, so that they differ in a few things, as real ones do."""
    common = st.sampled_from(draw(st.lists(subjects(), min_size=1, max_size=5)))
    found = []
    for number in range(draw(st.integers(1, 6))):
        drawn = draw(st.lists(requirements(common), max_size=5))
        unique = {requirement.subject: requirement for requirement in drawn}
        found.append(
            VariantTable(
                f"variant{number}", "tested", tuple(unique.values()), ((2, 0), (2, 1)), None, -1, ARGUMENTS, True,
                preferences=tuple(draw(st.lists(requirements(common), max_size=2))),
            )
        )  # fmt: skip
    return found


def first_choice(variants: Sequence[VariantTable], call: Call) -> int | None:
    """The first variant that takes the call and prefers it, else the first that takes it."""
    fitting = [i for i, variant in enumerate(variants) if first_unmet(variant, call) is None]
    preferring = [i for i in fitting if all(is_met(item, call) for item in variants[i].preferences)]
    return next(iter([*preferring, *fitting]), None)


def is_met(requirement: Requirement, call: Call) -> bool:
    return requirement.low <= value_of(requirement.subject, call) <= requirement.high


@settings(max_examples=100, deadline=None)
@given(tables(), arguments, st.integers(0, 2))
def test_tree_finds_the_first_variant_that_fits(
    selection: Any, variants: list[VariantTable], values: Any, device: int
) -> None:
    library = selection.Library("sm_80", flatten(variants, ARGUMENTS))
    call = Call(values, device, hypothetical=False)
    chosen, meets_all = library.choose(values, device)
    expected = first_choice(variants, call)
    if expected is not None:
        assert (chosen, meets_all) == (expected, True)
    else:
        # What every variant asks is left to the compiled entry, which refuses then.
        assert chosen == -1 or not meets_all


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.sampled_from(accepted_archs()), tables(), min_size=1, max_size=3),
    st.sampled_from([(8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)]),
    arguments,
)
def test_explanations_agree_word_for_word(
    selection: Any, builds: dict[Arch, list[VariantTable]], device: tuple[int, int], values: Any
) -> None:
    libraries = {arch: selection.Library(str(arch), flatten(variants, ARGUMENTS)) for arch, variants in builds.items()}
    said = selection.explain(list(libraries.values()), *device, values).splitlines()
    assert said == model_lines(builds, device, Call(values))


# Measured tables: bins of some integers of the call, and a variant for each combination of them.


@st.composite
def measured(draw: st.DrawFn, extents: int, variants: int) -> dict[str, Any]:
    bins = [sorted(draw(st.sets(numbers, max_size=4))) for _ in range(extents)]
    names = draw(st.permutations([f"variant{i}" for i in range(variants)]))[: draw(st.integers(1, variants))]
    count = math.prod(len(own) + 1 for own in bins)
    cells = draw(st.lists(st.integers(0, len(names) - 1), min_size=count, max_size=count))
    return {"variants": names, "bins": bins, "cells": cells}


def as_c(table: dict[str, Any]) -> dict[str, Any]:
    bins = table["bins"]
    bounds = [bound for own in bins for bound in own] or [0]
    rows, cells = map(list, packed(bins, table["cells"]))
    return {**table, "counts": [len(own) for own in bins], "bounds": bounds, "rows": rows, "cells": cells}


def in_table(table: dict[str, Any], variants: Sequence[VariantTable], first: int, usual: int, call: Call) -> int:
    """What the table names for a call that the first of these two takes; the second if it names none."""
    if variants[first].name not in table["variants"]:
        return usual
    cell = 0
    for extent_, bins in zip(variants[first].tuned_by, table["bins"], strict=True):
        cell = cell * (len(bins) + 1) + sum(bound <= value_of(extent_.subject, call) for bound in bins)
    other = int(table["variants"][table["cells"][cell]].removeprefix("variant"))
    return other if first_unmet(variants[other], call) is None else usual


@st.composite
def tuned(draw: st.DrawFn) -> tuple[list[VariantTable], dict[str, Any]]:
    variants = draw(tables())
    if draw(st.booleans()):  # as an author's alternatives are: they take the same calls
        variants = [replace(variant, requirements=variants[0].requirements) for variant in variants]
    count = draw(st.integers(1, 3))
    extents = st.builds(Subject, st.just("extent"), st.sampled_from(PATHS), st.integers(0, 2))  # the way of most calls
    among = draw(st.sampled_from([extents, subjects()]))
    by = [
        tuple(TunedExtent("n", "n", draw(among)) for _ in range(count)) if i == 0 or draw(st.booleans()) else None
        for i in range(len(variants))
    ]
    found = [replace(variant, tuned_by=own or by[0] or ()) for variant, own in zip(variants, by, strict=True)]
    return found, draw(measured(count, len(variants)))


@settings(max_examples=100, deadline=None)
@given(tuned(), arguments, st.integers(0, 2), st.sampled_from([MINOR - 1, MINOR]))
def test_a_measured_table_chooses_what_the_model_does(
    selection: Any, made: tuple[list[VariantTable], dict[str, Any]], values: Any, device: int, minor: int
) -> None:
    variants, table = made
    library = selection.Library("sm_80", flatten(variants, ARGUMENTS, minor))
    call = Call(values, device, hypothetical=False)
    usual, meets_all = library.choose(values, device)
    chosen = library.choose_tuned(values, device, as_c(table))
    if meets_all:
        # A variant that takes a call has what its table goes by: these without requirements may lack it.
        assume(MISSING not in (value_of(one.subject, call) for variant in variants for one in variant.tuned_by))
        first = next(i for i, variant in enumerate(variants) if first_unmet(variant, call) is None)
        assert chosen == in_table(table, variants, first if minor == MINOR else usual, usual, call)
    else:  # nothing takes the call, and no table changes that
        assert chosen == -1 or first_unmet(variants[chosen], call) is not None


EXTENT = TunedExtent("n", "x.shape[0]", Subject("extent", (0,)))
PLAIN = [VariantTable(f"variant{i}", "tested", (), (), None, -1, ARGUMENTS, True, tuned_by=(EXTENT,)) for i in (0, 1)]
SOUND = {"variants": ["variant0", "variant1"], "counts": [2], "bounds": [4, 8], "rows": [0, 0], "cells": [0, 1, 0]}


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"variants": ["variant0", "variant2"]}, id="a variant that is not there"),
        pytest.param({"variants": [], "cells": [0, 0, 0]}, id="no variants"),
        pytest.param({"cells": [0, 1]}, id="too few cells"),
        pytest.param({"cells": [0, 1, 0, 1]}, id="too many cells"),
        pytest.param({"cells": [0, 2, 0]}, id="a cell of no variant"),
        pytest.param({"rows": [1, 0]}, id="a row that is not there"),
        pytest.param({"rows": [0, 0, 0, 0]}, id="too many rows"),
        pytest.param({"bounds": [8, 4]}, id="bins that descend"),
        pytest.param({"bounds": [4, 4]}, id="an empty bin"),
        pytest.param({"counts": [2, 2], "bounds": [4, 8, 4, 8], "cells": [0] * 9}, id="more extents than declared"),
        pytest.param({"counts": [], "cells": [0]}, id="no extents"),
        pytest.param(
            {"counts": [65536], "bounds": list(range(65536)), "cells": [0]}, id="more cells than a table holds"
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_any_call(selection: Any, wrong: dict[str, Any]) -> None:
    library = selection.Library("sm_80", flatten(PLAIN, ARGUMENTS))
    values = (matrix(64, (5,), (1,)), None, None)
    assert library.choose_tuned(values, 0, {**SOUND, **wrong}) == (-2 if wrong else 1)


# Memory: tensors of a few elements, close to each other, so that the model can look at every byte.


@st.composite
def small_tensors(draw: st.DrawFn) -> dict[str, Any]:
    rank_ = draw(st.integers(0, 3))
    code, bits, lanes = draw(st.sampled_from([(0, 8, 1), (2, 16, 1), (2, 32, 1)]))
    return {
        "shape": draw(st.lists(st.integers(0, 4), min_size=rank_, max_size=rank_)),
        "strides": draw(st.lists(st.integers(-9, 17), min_size=rank_, max_size=rank_)),
        "dtype": (code, bits, lanes),
        "data": draw(st.sampled_from([0, 2**40, 2**40 + 4, 2**40 + 7, 2**40 + 64])),
        "byte_offset": draw(st.sampled_from([0, 1, 8])),
        "device_type": 2,
        "device": draw(st.sampled_from([0, 0, 0, -1])),
    }


@st.composite
def calls_with_memory(draw: st.DrawFn) -> tuple[Any, ...]:
    """Three arguments, the last one perhaps a tuple; often one tensor twice."""
    pool = draw(st.lists(small_tensors(), min_size=1, max_size=3))
    one = st.one_of(st.sampled_from(pool), st.sampled_from(pool), st.none())
    return draw(st.tuples(one, one, st.one_of(one, st.tuples(one, one))))


@st.composite
def memories(draw: st.DrawFn) -> tuple[Region, ...]:
    paths = draw(st.permutations(PATHS))[: draw(st.integers(1, 4))]
    outputs = draw(st.integers(1, len(paths)))
    may_be = st.integers(0, (1 << outputs) - 1)
    return tuple(
        Region(path, i < outputs, 0 if i < outputs else draw(may_be), f"argument {path}")
        for i, path in enumerate(paths)
    )


def variants_with(regions: tuple[Region, ...], first: Requirement) -> list[VariantTable]:
    """One that asks something else first, and one that asks for memory alone."""
    memory = Requirement(Subject("overlap", (), regions=regions, label="memory"), 0, 0)
    asked = ((first, memory), (memory,))
    return [
        VariantTable(f"variant{i}", "tested", items, ((2, 0), (2, 1)), None, -1, ARGUMENTS, True)
        for i, items in enumerate(asked)
    ]


@settings(max_examples=200)
@given(memories(), calls_with_memory(), requirements(subjects()))
def test_outputs_that_overlap_are_refused_and_no_others(
    selection: Any, regions: tuple[Region, ...], values: tuple[Any, ...], first: Requirement
) -> None:
    variants = variants_with(regions, first)
    library = selection.Library("sm_80", flatten(variants, ARGUMENTS))
    call = Call(values, 0, hypothetical=False)
    fitting = [i for i, variant in enumerate(variants) if first_unmet(variant, call) is None]
    chosen, meets_all = library.choose(values, 0)
    assert (chosen, meets_all) == (fitting[0], True) if fitting else chosen == -1 or not meets_all
    assert not library.plainly_apart(values) or value_of(variants[1].requirements[0].subject, call) == 0
    said = selection.explain([library], 8, 0, values).splitlines()
    assert said == model_lines({Arch.parse("sm_80"): variants}, (8, 0), Call(values))


def matrix(data: int, shape: Sequence[int], strides: Sequence[int]) -> dict[str, Any]:
    return {"shape": shape, "strides": strides, "dtype": (4, 16, 1), "data": data, "byte_offset": 0, "device_type": 2,
            "device": 0}  # fmt: skip


BASE, ROWS = 2**40, 100_000


@pytest.mark.parametrize(
    ("out", "x", "refused"),
    [
        pytest.param(matrix(BASE, (ROWS, 512), (1024, 1)), matrix(BASE + 1024, (ROWS, 512), (1024, 1)), False, id="halves"),
        pytest.param(matrix(BASE, (ROWS, 513), (1024, 1)), matrix(BASE + 1024, (ROWS, 512), (1024, 1)), True, id="a column"),
        pytest.param(matrix(BASE, (ROWS, 8), (32, 1)), matrix(BASE + 32, (ROWS // 2, 8), (64, 1)), False, id="every other"),
        pytest.param(matrix(BASE, (ROWS, 8), (-1024, 1)), matrix(BASE + 16, (ROWS, 8), (-1024, 1)), False, id="upwards"),
        pytest.param(matrix(BASE, (64, 64), (64, 1)), matrix(BASE, (64, 64), (1, 64)), True, id="transposed"),
        pytest.param(matrix(BASE, (64, 64), (64, 1)), matrix(BASE + 2 * 64 * 64, (1,), (1,)), False, id="right behind"),
        pytest.param(matrix(BASE, (64, 64), (64, 1)), matrix(BASE + 2 * 64 * 64 - 2, (1,), (1,)), True, id="the last"),
        pytest.param(matrix(BASE, (4, 8), (8, 1)), matrix(BASE, (2**40, 2**40), (0, 0)), True, id="a broadcast"),
        pytest.param(matrix(BASE, (4, 8), (8, 1)), matrix(BASE + 64, (2**40, 2**40), (0, 0)), False, id="another"),
        pytest.param(matrix(BASE, (4, 8), (2**62, 1)), matrix(2**30, (4, 8), (8, 1)), True, id="more than there is"),
        pytest.param(matrix(BASE, (4, 8), (0, 1)), matrix(2**30, (4, 8), (8, 1)), True, id="rows on rows"),
        pytest.param(matrix(BASE, (4, 8), (7, 1)), matrix(2**30, (4, 8), (8, 1)), True, id="rows into rows"),
        # These lie apart, but finding that out would take as many steps as there are rows.
        pytest.param(matrix(BASE, (40_000, 1), (99_991, 1)), matrix(BASE + 6, (40_000, 1), (99_989, 1)), True, id="hard"),
    ],
)  # fmt: skip
def test_overlap_of_large_tensors(selection: Any, out: dict[str, Any], x: dict[str, Any], refused: bool) -> None:
    regions = (Region((0,), True, label="out"), Region((1,), False, label="x"))
    requirement = Requirement(Subject("overlap", (), regions=regions), 0, 0)
    variants = [VariantTable("variant0", "tested", (requirement,), (), None, -1, ARGUMENTS, True)]
    library = selection.Library("sm_80", flatten(variants, ARGUMENTS))
    assert library.choose((out, x, None), 0) == (0, not refused)


@settings(max_examples=1500)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(-40, 40)), max_size=4))
def test_an_output_that_overlaps_itself_is_found_exactly(selection: Any, dims: list[tuple[int, int]]) -> None:
    out = matrix(BASE, [extent_ for extent_, _ in dims], [stride for _, stride in dims])
    assert accepts_output(selection, out) == (not has_memory(out) or not overlaps_itself(out))


@pytest.mark.parametrize(
    ("shape", "strides", "accepted"),
    [
        pytest.param((ROWS, 512), (1, ROWS), True, id="column-major"),
        pytest.param((512, ROWS), (ROWS + 8, -1), True, id="backwards"),
        pytest.param((8, ROWS, 64), (64, 512, 1), True, id="heads inside"),
        pytest.param((1001, 999), (999, 1000), True, id="interleaved, each element once"),
        pytest.param((1001, 1000), (999, 1000), False, id="interleaved, one element twice"),
        pytest.param((2, ROWS), (ROWS - 1, 1), False, id="the last is the next row's first"),
        pytest.param((2, 3), (2**62, 1), False, id="longer than memory"),
        pytest.param((1, 3), (-(2**63), 1), True, id="a stride that means nothing"),
        pytest.param((2, 3), (-(2**63), 1), False, id="a stride without a positive"),
        pytest.param((2**62, 3), (1, 2**62), False, id="more elements than memory"),
        pytest.param((3, 2**62), (1, 0), False, id="broadcast"),
        pytest.param((2,) * 16, [2**i for i in range(16)], True, id="sixteen dimensions"),
        pytest.param((1,) * 40 + (8, 8), [3] * 40 + [1, 8], True, id="dimensions of one element"),
    ],
)
def test_large_outputs_that_overlap_themselves(
    selection: Any, shape: tuple[int, ...], strides: tuple[int, ...], accepted: bool
) -> None:
    assert accepts_output(selection, matrix(BASE, shape, strides)) == accepted


def accepts_output(selection: Any, out: dict[str, Any]) -> bool:
    requirement = Requirement(Subject("overlap", (), regions=(Region((0,), True, label="out"),)), 0, 0)
    variants = [VariantTable("variant0", "tested", (requirement,), (), None, -1, ARGUMENTS, True)]
    library = selection.Library("sm_80", flatten(variants, ARGUMENTS))
    values = (out, None, None)
    chosen, accepted = library.choose(values, 0)
    assert chosen == 0 and (accepted or not library.plainly_apart(values))
    return bool(accepted)


def test_common_calls_need_no_closer_look(selection: Any) -> None:
    regions = (Region((0,), True, label="out"), Region((1,), False, label="x"), Region((2,), False, label="bias"))
    requirement = Requirement(Subject("overlap", (), regions=regions), 0, 0)
    variants = [VariantTable("variant0", "tested", (requirement,), (), None, -1, ARGUMENTS, True)]
    library = selection.Library("sm_80", flatten(variants, ARGUMENTS))
    out, x, bias = (
        matrix(BASE, (ROWS, 512), (512, 1)),
        matrix(2**41, (ROWS, 512), (1024, 1)),
        matrix(2**42, (512,), (1,)),
    )
    assert library.plainly_apart((out, x, bias)) and library.plainly_apart((out, x, None))
    assert not library.plainly_apart((out, out, bias)) and not library.plainly_apart((x, x, bias))


def unrunnable(arch: Arch, device: tuple[int, int]) -> str:
    (major, minor), at = arch.capability, f"{device[0]}.{device[1]}"
    if arch.suffix == "a" or arch.capability in TEGRA:
        return f"runs on compute capability {major}.{minor} alone, not on {at}"
    scope = f"runs from compute capability {major}.{minor} within its major version"
    if major == device[0] and minor <= device[1]:
        return f"{scope}, except on {at}, which runs only code built for it"
    return f"{scope}, not on {at}"


def model_lines(builds: dict[Arch, list[VariantTable]], device: tuple[int, int], call: Call) -> list[str]:
    lines: list[str] = []
    chosen = False
    ranked = sorted((arch for arch in builds if rank(arch, device)), key=lambda arch: -rank(arch, device))
    for arch in ranked:
        first = None if chosen else first_choice(builds[arch], call)
        chosen = chosen or first is not None
        for number, variant in enumerate(builds[arch]):
            unmet = first_unmet(variant, call)
            mark = "*" if number == first else ""
            lines.append(f"{mark}{arch}\t{variant.name}\t{'' if unmet is None else reason(unmet, call)}")
    for arch in builds:
        if not rank(arch, device):
            lines.append(f"{arch}\ttested\t{unrunnable(arch, device)}")
    return lines


@given(
    st.sampled_from(accepted_archs()),
    st.tuples(st.integers(7, 13), st.integers(0, 9)),
)
def test_ranks_agree(selection: Any, arch: Arch, device: tuple[int, int]) -> None:
    assert selection.rank(arch.major, arch.minor, arch.suffix, *device) == rank(arch, device)
    assert bool(rank(arch, device)) == arch.runs_on(device)
