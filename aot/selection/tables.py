"""Selection as C source: the tables of ``runtime/src/aot_tables.h`` for one kernel library.

The C compiler turns them into data of the library; nothing is parsed at run time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from aot_runtime.arch import Arch

from ..errors import BuildError
from ..kinds import DTYPES
from .branching import branch_by_range, branch_by_value
from .decision import Node, Tree
from .requirements import SOURCE_ACTIVE_CLUSTERS, SOURCE_CONSTANT
from .subjects import FixedArgument, Path, Region, Requirement, Step, Subject, VariantTable, WorkspaceTable

__all__ = ["CompiledVariant", "Group", "kernel_library_source", "variant_symbol"]

NO_VARIANT = -(2**31)
MAX_ARGUMENTS = 64  # AOT_MAX_ARGUMENTS
MAX_SOURCE = 255  # a source is a byte


@dataclass(frozen=True)
class CompiledVariant:
    """A variant with what its compilation showed."""

    table: VariantTable
    launcher: str  # the variant whose launcher runs it: itself, or one before it of the same code
    symbol: str  # prefix of the launcher's own symbols
    binaries: int
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_shared_memory: int


@dataclass(frozen=True)
class Group:
    """The variants of one public function, and the trees over them."""

    function: str
    argument_count: int
    variants: tuple[CompiledVariant, ...]
    tree: Tree
    plain: Tree  # the same without preferences


def kernel_library_source(kernel: str, arch: Arch, groups: Sequence[Group], imports: Iterable[str]) -> str:
    """The C source of the tables of one kernel for one architecture."""
    return _Writer(kernel, arch).write(groups, sorted(imports))


def c_string(text: str) -> str:
    """A C string literal. Whatever is not plain goes in as octal UTF-8, which ends after three digits."""
    return '"' + "".join(chr(byte) if byte in _PLAIN else f"\\{byte:03o}" for byte in text.encode()) + '"'


_PLAIN = frozenset(range(0x20, 0x7F)) - frozenset(b'"\\?')


class _Writer:
    def __init__(self, kernel: str, arch: Arch) -> None:
        self.kernel = kernel
        self.arch = arch
        self.subjects: list[str] = []
        self.requirements: dict[tuple[int, int, int], int] = {}
        self.nodes: list[str] = []
        self.branches: list[str] = []
        self.steps: list[str] = []
        self.regions: list[str] = []
        self.constants: dict[FixedArgument, int] = {}
        self.tunables: list[str] = []
        self.plain_roots: list[str] = []
        self.launchers: set[str] = set()  # that something was written of

    def write(self, groups: Sequence[Group], imports: Sequence[str]) -> str:
        bodies: list[str] = []
        rows: list[str] = []
        for number, group in enumerate(groups):
            body, row = self._group(number, group)
            bodies += body
            rows.append(row)
        return "\n".join([*_PREAMBLE, *_imports(imports), *bodies, *self._library(rows, len(imports))]) + "\n"

    def _group(self, number: int, group: Group) -> tuple[list[str], str]:
        slots = _slots(group)
        memory: dict[tuple[Region, ...], int] = {}
        numbers = self._number_subjects(group, slots, memory)
        done: dict[int, int] = {}
        root = self._flatten(group.tree, numbers, done)
        self.plain_roots.append(_int32(self._flatten(group.plain, numbers, done)))
        lines = [f"static const aot_slot_t slots_{number}[] = {{{_joined(_slot_rows(slots))}}};"]
        lines += self._tunable(number, group, numbers)
        rows = []
        for variant in group.variants:
            lines += self._variant_data(variant, numbers)
            rows.append(_variant_row(variant, memory))
        lines.append(f"static const aot_variant_t variants_{number}[] = {{\n  {_lines(rows)}\n}};")
        row = (
            f"{{{c_string(group.function)}, {_int32(root)}, {len(group.variants)}, variants_{number}, slots_{number}, "
            f"{len(slots)}, {group.argument_count}}}"
        )
        return lines, row

    def _tunable(self, number: int, group: Group, numbers: Mapping[Subject, int]) -> list[str]:
        """What tables go by: as many integers for each variant."""
        rows = [[numbers[extent.subject] for extent in variant.table.tuned_by] for variant in group.variants]
        self.tunables.append(f"{{tuned_by_{number}, {len(rows[0])}}}" if rows[0] else "{0, 0}")
        subjects = [subject for row in rows for subject in row]
        return [f"static const uint32_t tuned_by_{number}[] = {{{_joined(subjects)}}};"] if subjects else []

    def _number_subjects(
        self, group: Group, slots: Mapping[Path, int], memory: dict[tuple[Region, ...], int]
    ) -> dict[Subject, int]:
        numbers: dict[Subject, int] = {}
        for subject in (subject for variant in group.variants for subject in _subjects(variant.table)):
            if subject not in numbers:
                if subject.regions:
                    memory[subject.regions] = self._memory(subject.regions, slots)
                numbers[subject] = len(self.subjects)
                self.subjects.append(self._subject_row(subject, slots, memory))
        return numbers

    def _subject_row(
        self, subject: Subject, slots: Mapping[Path, int], memory: Mapping[tuple[Region, ...], int]
    ) -> str:
        parameter = self._program(subject.steps, slots) if subject.steps else subject.parameter
        parameter = memory.get(subject.regions, parameter)
        if subject.none is not None and subject.operation in _WITHOUT_PARAMETER:
            parameter = subject.none
        dim = len(subject.regions) or subject.dim
        other_label = c_string(subject.other_label) if subject.other_label else "0"
        return (
            f"{{AOT_SUBJECT_{subject.operation.upper()}, {slots.get(subject.path, 0)}, {dim}, "
            f"{int(subject.other_is_stride)}, {slots.get(subject.other, 0)}, {subject.other_dim}, "
            f"{int(subject.none is not None)}, 0, "
            f"{_int64(parameter)}, {c_string(subject.label)}, {other_label}}}"
        )

    def _program(self, steps: tuple[Step, ...], slots: Mapping[Path, int]) -> int:
        first = len(self.steps)
        self.steps += [
            f"{{AOT_STEP_{step.operation.upper()}, {slots.get(step.path, 0)}, {step.dim}, {{0}}, {_int64(step.value)}}}"
            for step in steps
        ]
        self.steps.append("{AOT_STEP_END, 0, 0, {0}, 0}")
        return first

    def _memory(self, regions: tuple[Region, ...], slots: Mapping[Path, int]) -> int:
        first = len(self.regions)
        self.regions += [
            f"{{{slots[region.path]}, {int(region.is_output)}, {{0}}, UINT64_C({region.may_be}), {c_string(region.label)}}}"
            for region in regions
        ]
        return first

    def _flatten(self, tree: Tree, numbers: Mapping[Subject, int], done: dict[int, int]) -> int:
        if tree is None:
            return NO_VARIANT
        if isinstance(tree, int):
            return ~tree
        if id(tree) not in done:
            done[id(tree)] = self._flatten_node(tree, numbers, done)
        return done[id(tree)]

    def _flatten_node(self, node: Node, numbers: Mapping[Subject, int], done: dict[int, int]) -> int:
        children = [self._flatten(child, numbers, done) for child in node.children]
        branching = branch_by_value(node.cuts, children) or branch_by_range(node.cuts, children)
        self.nodes.append(
            f"{{{numbers[node.subject]}, {len(branching.branches)}, {len(self.branches)}, {branching.shift}, "
            f"UINT64_C({branching.multiplier}), {_int32(branching.otherwise)}, 0}}"
        )
        self.branches += [f"{{{_int64(value)}, {_int32(child)}, 0}}" for value, child in branching.branches]
        return len(self.nodes) - 1

    def _variant_data(self, variant: CompiledVariant, numbers: Mapping[Subject, int]) -> list[str]:
        table, name = variant.table, variant.table.name
        indices = [self._requirement(item, numbers[item.subject]) for item in table.requirements]
        lines = [*self._launcher(variant), f"static const uint32_t requirements_{name}[] = {{{_joined(indices)}}};"]
        if table.sources is not None:
            lines.append(f"static const uint8_t sources_{name}[] = {{{_joined(self._sources(table))}}};")
        if table.workspace is not None:
            row = _workspace_row(table.workspace, numbers[table.workspace.size])
            lines.append(f"static const aot_workspace_t workspace_{name} = {row};")
        return lines

    def _launcher(self, variant: CompiledVariant) -> list[str]:
        """The functions of a launcher and what changes while it is used: once, if several variants share it."""
        launcher, symbol = variant.launcher, variant.symbol
        if launcher in self.launchers:
            return []
        self.launchers.add(launcher)
        clusters = SOURCE_ACTIVE_CLUSTERS in (variant.table.sources or ())
        lines = [
            f"int {variant_symbol(launcher)}(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);",
            f"int32_t {symbol}_cuda_init(void**);",
            f"int32_t {symbol}_cuda_load_to_device(void**, int32_t);",
            f"static void* libraries_{launcher}[{max(variant.binaries, 1)}];",
        ]
        if clusters:
            lines += [f"static int32_t clusters_{launcher}[AOT_MAX_DEVICES];", f"extern void* {symbol}_first_kernel;"]
        counted = f"clusters_{launcher}" if clusters else "0"
        return [*lines, f"static aot_variant_state_t state_{launcher} = {{0, {counted}}};"]

    def _sources(self, table: VariantTable) -> list[int]:
        """Where the arguments of a variant come from; constants are counted over the whole library."""
        first, sources = SOURCE_CONSTANT, []
        for source in table.sources or ():
            if source >= first:
                source = first + self.constants.setdefault(table.constants[source - first], len(self.constants))
            sources.append(source)
        if any(source > MAX_SOURCE for source in sources):
            most = MAX_SOURCE - first + 1
            raise BuildError(
                f"{self.kernel} fixes more than {most} different arguments", hint="declare it as two kernels"
            )
        return sources

    def _requirement(self, requirement: Requirement, subject: int) -> int:
        key = (subject, requirement.low, requirement.high)
        return self.requirements.setdefault(key, len(self.requirements))

    def _library(self, groups: list[str], import_count: int) -> list[str]:
        constants = [f"{{{one.type_index}, {one.argument}, {_int64(one.bits)}}}" for one in self.constants]
        requirements = [f"{{{subject}, 0, {_int64(low)}, {_int64(high)}}}" for subject, low, high in self.requirements]
        return [
            _array("aot_subject_t", "subjects", self.subjects),
            _array("aot_requirement_t", "requirements", requirements),
            _array("aot_node_t", "nodes", self.nodes or ["{0, 0, 0, 0, 0, 0, 0}"]),
            _array("aot_branch_t", "branches", self.branches or ["{0, 0, 0}"]),
            _array("aot_step_t", "steps", self.steps or ["{0, 0, 0, {0}, 0}"]),
            _array("aot_region_t", "regions", self.regions or ["{0, 0, {0}, 0, 0}"]),
            _array("aot_constant_t", "constants", constants or ["{0, 0, 0}"]),
            _array("aot_tunable_t", "tunables", self.tunables),
            _array("int32_t", "plain_roots", self.plain_roots),
            _array("aot_group_t", "groups", groups),
            '__attribute__((visibility("default"))) const aot_kernel_library_t aot_kernel_library = {',
            f"  AOT_TABLES_MAJOR, AOT_TABLES_MINOR, {c_string(self.kernel)}, {c_string(str(self.arch))}, groups,",
            f"  {len(groups)}, {import_count}, imports, subjects, requirements, nodes, branches, steps, regions, constants,",
            "  tunables, plain_roots};",
        ]


# Of an optional argument, the parameter of these is what None counts as. The others count as 0.
_WITHOUT_PARAMETER = ("kind", "dtype", "ndim", "device_type", "device_index", "extent")

_PREAMBLE = ["/* Generated by cute-aot. */", '#include "aot_launcher.h"', '#include "aot_tables.h"']


def variant_symbol(name: str) -> str:
    return f"__tvm_ffi_{name}"


def _variant_row(variant: CompiledVariant, memory: Mapping[tuple[Region, ...], int]) -> str:
    table, name = variant.table, variant.table.name
    regions = next((item.subject.regions for item in table.requirements if item.subject.regions), ())
    clusters = SOURCE_ACTIVE_CLUSTERS in (table.sources or ())
    fields = [
        c_string(name),
        variant_symbol(variant.launcher),
        f"{variant.symbol}_cuda_init",
        f"{variant.symbol}_cuda_load_to_device",
        f"libraries_{variant.launcher}",
        f"&state_{variant.launcher}",
        f"requirements_{name}",
        str(len(table.requirements)),
        str(memory.get(regions, 0)),
        str(len(regions)),
        str(table.stream),
        f"sources_{name}" if table.sources is not None else "0",
        str(table.entry_arguments),
        f"{{{_joined(variant.cluster)}}}",
        f"{{{_joined(variant.block)}}}",
        str(variant.dynamic_shared_memory),
        f"&{variant.symbol}_first_kernel" if clusters else "0",
        f"&workspace_{name}" if table.workspace is not None else "0",
    ]
    return f"{{{', '.join(fields)}}}"


def _subjects(table: VariantTable) -> Iterator[Subject]:
    yield from (requirement.subject for requirement in (*table.requirements, *table.preferences))
    yield from (extent.subject for extent in table.tuned_by)
    if table.workspace is not None:
        yield table.workspace.size


def _workspace_row(workspace: WorkspaceTable, subject: int) -> str:
    dtype = DTYPES[workspace.dtype]
    return (
        f"{{{c_string(workspace.name)}, {subject}, {workspace.argument}, {int(workspace.zeroed)}, "
        f"{{{dtype.code}, {dtype.bits}, {dtype.lanes}}}}}"
    )


def _slots(group: Group) -> dict[Path, int]:
    slots: dict[Path, int] = {(i,): i for i in range(group.argument_count)}
    for path in (path for variant in group.variants for path in variant.table.paths):
        slots.setdefault(path, len(slots))
    assert len(slots) <= MAX_ARGUMENTS, "checked when the declaration was read"
    return slots


def _slot_rows(slots: Mapping[Path, int]) -> list[str]:
    return [f"{{{slots[path[:-1]] if len(path) > 1 else -1}, {path[-1]}}}" for path in slots] or ["{-1, 0}"]


def _imports(names: Sequence[str]) -> list[str]:
    lines = [f"void* aot_import_{name};" for name in names]
    rows = [f"{{{c_string(name)}, &aot_import_{name}}}" for name in names] or ["{0, 0}"]
    return [*lines, _array("aot_import_t", "imports", rows)]


def _array(kind: str, name: str, rows: Sequence[str]) -> str:
    return f"static const {kind} {name}[] = {{\n  {_lines(rows)}\n}};"


def _lines(rows: Iterable[object]) -> str:
    return _joined(rows, ",\n  ")


def _joined(items: Iterable[object], separator: str = ", ") -> str:
    return separator.join(str(item) for item in items)


def _int64(value: int) -> str:
    return "INT64_MIN" if value == -(2**63) else f"INT64_C({value})"


def _int32(value: int) -> str:
    return "AOT_NO_VARIANT" if value == NO_VARIANT else str(value)
