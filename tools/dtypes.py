"""Write what the C and C++ sources and the reference say of dtypes, from the table in ``aot_runtime/dtypes.py``.

    python tools/dtypes.py            # after a change of the table: rewrite the sources
    python tools/dtypes.py --check    # exit code 1 if a source differs

In a source, what is written here stands between a comment that names this tool and a comment ``end of dtypes``.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Started as a script, Python finds what lies beside it and not the folder of the project.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aot_runtime.dtypes import DTYPES, TABLE, Dtype

from tools.generated import PROJECT, Regions, run

__all__ = ["regions"]


def regions() -> Regions:
    """What stands in the region of each source."""
    include, source = PROJECT / "runtime" / "include" / "aot", PROJECT / "runtime" / "src"
    texts = {
        include / "abi.h": _codes(),
        include / "aot.h": _macros(),
        include / "aot.hpp": _constants(),
        source / "aot_explain.c": _names(),
        source / "torch" / "aot_torch_table.h": _torch(),
        PROJECT / "docs" / "reference" / "declaring.md": _page(),
    }
    return {path: {"dtypes": text} for path, text in texts.items()}


def _codes() -> str:
    codes = {dtype.kind: dtype.code for dtype in sorted(DTYPES.values(), key=lambda one: one.code)}
    return "".join(f"  AOT_DTYPE_{kind} = {code},\n" for kind, code in codes.items())


def _name_in_cpp(dtype: Dtype) -> str:
    """``bool`` is a word of the language."""
    return "boolean" if dtype.name == "bool" else dtype.torch


def _macros() -> str:
    rows = [(f"AOT_{_name_in_cpp(one).upper()}", one) for one in DTYPES.values()]
    return "".join(
        f"#define {name} aot_make_vector_dtype(AOT_DTYPE_{one.kind}, {one.bits}, {one.lanes})\n" for name, one in rows
    )


def _constants() -> str:
    rows = [f"{_name_in_cpp(one)}{{AOT_DTYPE_{one.kind}, {one.bits}, {one.lanes}}}" for one in DTYPES.values()]
    return "inline constexpr DType " + ",\n    ".join(rows) + ";\n"


def _names() -> str:
    rows = [f'    {{{one.code}, {one.bits}, {one.lanes}, "{one.torch}"}},\n' for one in TABLE]
    return "".join(rows)


def _torch() -> str:
    rows = [
        f'  X({one.name}, "{one.shim}", AOT_DTYPE_{one.kind}, {one.bits}, {one.lanes})'
        for one in DTYPES.values()
        if one.shim
    ]
    return "#define AOT_TORCH_DTYPES(X) \\\n" + " \\\n".join(rows) + "\n"


def _page() -> str:
    rows = [
        f"| `{one.name}` | {', '.join(f'`{name}`' for name in dict.fromkeys((one.torch, *one.aliases)) if name != one.name)} "
        f"| {'tensors, scalars' if one.is_scalar else 'tensors'} |\n"
        for one in DTYPES.values()
    ]
    return "| dtype | other names | of |\n| --- | --- | --- |\n" + "".join(rows)


if __name__ == "__main__":
    sys.exit(run(__doc__, regions()))
