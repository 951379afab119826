"""Tables as C: what ``runtime/src/aot_bundle.h`` calls tunings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aot_runtime.arch import Arch, parse_capability

from ..bundle.tables.cells import packed
from ..selection.tables import c_string

__all__ = ["EntrySet", "EntryTable", "Grid", "table_lines", "tables_row"]

Grid = tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]  # the bins and cells of a set


@dataclass(frozen=True)
class EntrySet:
    """Variants that were measured against each other: see ``aot_tuned_set_t``."""

    variants: tuple[str, ...]
    bins: tuple[tuple[int, ...], ...]
    cells: tuple[int, ...]


@dataclass(frozen=True)
class EntryTable:
    """The table of one public function for one device."""

    device: str
    multiprocessors: int
    capability: str
    bandwidth: int
    measured_on: str  # the device whose times a model was fitted to; "": this one
    arch: Arch
    sets: tuple[EntrySet, ...]


def tables_row(function: str, tables: Sequence[EntryTable]) -> str:
    """The two fields of ``aot_function_t`` that name a function's tables."""
    return f"tunings_{function}, {len(tables)}" if tables else "0, 0"


def table_lines(function: str, tables: Sequence[EntryTable], grids: dict[Grid, str]) -> list[str]:
    """The definitions behind :func:`tables_row`.

    ``grids`` has the names of bins and cells that are defined already: dtypes and epilogues often share them.
    """
    lines: list[str] = []
    rows = []
    for number, table in enumerate(tables):
        name = f"{function}_{number}"
        sets = [_set(f"{name}_{index}", one, lines, grids) for index, one in enumerate(table.sets)]
        lines.append(f"static const aot_tuned_set_t sets_{name}[] = {{\n  {_lines(sets)}\n}};")
        rows.append(f"{{{_device(table)}, {c_string(str(table.arch))}, sets_{name}, {len(sets)}}}")
    if rows:
        lines.append(f"static const aot_tuning_t tunings_{function}[] = {{\n  {_lines(rows)}\n}};")
    return lines


def _device(table: EntryTable) -> str:
    """The first fields of ``aot_tuning_t``."""
    major, minor = parse_capability(table.capability)
    elsewhere = c_string(table.measured_on) if table.measured_on else "0"
    return f"{c_string(table.device)}, {table.multiprocessors}, {table.bandwidth}, {{{major}, {minor}}}, {elsewhere}"


def _set(name: str, one: EntrySet, lines: list[str], grids: dict[Grid, str]) -> str:
    lines.append(f"static const char* const variants_{name}[] = {{{', '.join(map(c_string, one.variants))}}};")
    grid = grids.setdefault((one.bins, one.cells), name)
    rows, cells = packed(one.bins, one.cells)
    if grid == name:
        bounds = [f"INT64_C({bound})" for bins in one.bins for bound in bins] or ["0"]  # C has no empty arrays
        lines += [
            f"static const uint32_t counts_{grid}[] = {{{', '.join(str(len(bins)) for bins in one.bins)}}};",
            f"static const int64_t bounds_{grid}[] = {{{', '.join(bounds)}}};",
            *(
                f"static const uint8_t {name}_{grid}[{len(content)}] __attribute__((nonstring)) = {_text(content)};"
                for name, content in (("rows", rows), ("cells", cells))
            ),
        ]
    counts = f"{len(one.variants)}, {len(one.bins)}"
    choices = f"rows_{grid}, {len(rows) // 2}, cells_{grid}, {len(cells)}"
    return f"{{variants_{name}, {counts}, counts_{grid}, bounds_{grid}, {choices}}}"


def _text(content: bytes) -> str:
    """A text of octal numbers: tables have a million cells, and compilers read such a text much faster than a list."""
    return '"' + "".join(f"\\{byte:03o}" for byte in content) + '"'


def _lines(rows: Sequence[str]) -> str:
    return ",\n  ".join(rows)
