"""Write what the C and C++ sources say of dtypes, from the table in ``aot_runtime/dtypes.py``.

    python tools/dtypes.py            # after a change of the table: rewrite the sources
    python tools/dtypes.py --check    # exit code 1 if a source differs

In a source, what is written here stands between a comment that names this tool and a comment ``end of dtypes``.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from aot_runtime.dtypes import DTYPES, TABLE, Dtype

__all__ = ["regions", "rewritten"]

PROJECT = Path(__file__).resolve().parents[1]
_REGION = re.compile(r"(?P<head>^ */\* dtypes: .*\n)(?:.*\n)*?(?P<tail>^ */\* end of dtypes\b)", re.MULTILINE)


def regions() -> dict[Path, str]:
    """What stands in the region of each source."""
    include, source = PROJECT / "runtime" / "include" / "aot", PROJECT / "runtime" / "src"
    return {
        include / "abi.h": _codes(),
        include / "aot.h": _macros(),
        include / "aot.hpp": _constants(),
        source / "aot_explain.c": _names(),
        source / "torch" / "aot_torch_table.h": _torch(),
    }


def rewritten(text: str, region: str) -> str:
    """A source with another region."""
    assert len(_REGION.findall(text)) == 1, "a source has one region"
    return _REGION.sub(lambda match: match["head"] + region + match["tail"], text)


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a source differs")
    texts = {path: (path.read_text(), region) for path, region in regions().items()}
    changed = {
        path: after for path, (before, region) in texts.items() if (after := rewritten(before, region)) != before
    }
    if parser.parse_args().check:
        return 1 if changed else 0
    for path, text in changed.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
