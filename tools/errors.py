"""Write the codes of C, the classes of C++ and a table of all of them, from the classes in ``aot_runtime/errors.py``.

    python tools/errors.py            # after a change of the classes: rewrite the sources
    python tools/errors.py --check    # exit code 1 if a source differs

In a source, what is written here stands between a comment that names this tool and a comment ``end of ...``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

# Started as a script, Python finds what lies beside it and not the folder of the project.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aot_runtime import errors
from aot_runtime.errors import AotError

from tools.generated import PROJECT, Regions, run

__all__ = ["coded", "name_in_c", "regions"]

_INCLUDE = PROJECT / "runtime" / "include" / "aot"


def coded() -> list[type[AotError]]:
    """The classes that have a code of their own, in the order of the codes; the base of all is ``AOT_ERROR_OTHER``."""
    classes = [value for value in vars(errors).values() if isinstance(value, type) and "code" in vars(value)]
    return sorted(classes, key=lambda one: int(one.code))


def name_in_c(error: type[AotError]) -> str:
    """``AOT_ERROR_NOT_FOUND``, of ``NotFoundError``."""
    words = "OTHER" if error is AotError else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", error.__name__.removesuffix("Error"))
    return f"AOT_ERROR_{words.upper()}"


def _name_in_cpp(error: type[AotError]) -> str:
    return "Error" if error is AotError else error.__name__


def _base(error: type[AotError]) -> type[AotError]:
    return next(one for one in error.__mro__[1:] if "code" in vars(one))


def _in_order() -> list[type[AotError]]:
    """Every class after its base, as C++ needs it."""
    found: list[type[AotError]] = []
    waiting = [one for one in coded() if one is not AotError]
    while waiting:
        ready = [one for one in waiting if _base(one) is AotError or _base(one) in found]
        found += ready
        waiting = [one for one in waiting if one not in ready]
    return found


def _meaning(error: type[AotError]) -> str:
    text = "everything else" if error is AotError else str(error.__doc__).splitlines()[0].rstrip(".")
    return text if text.split()[0].isupper() and text[1] != " " else text[0].lower() + text[1:]


def _codes() -> str:
    rows = [(f"{name_in_c(one)} = {one.code},", _meaning(one)) for one in coded()]
    return "".join(f"  {code:27}/* {meaning} */\n" for code, meaning in rows)


def _kinds() -> str:
    return "".join(f'      {{"Aot{one.__name__}", {name_in_c(one)}}},\n' for one in _in_order())


def _classes() -> str:
    rows = [(_name_in_cpp(one), _name_in_cpp(_base(one))) for one in _in_order()]
    return "".join(f"class {name} : public {base} {{ using {base}::{base}; }};\n" for name, base in rows)


def _cases() -> str:
    return "".join(f"    case {name_in_c(one)}: throw {_name_in_cpp(one)}(code, text);\n" for one in _in_order())


def _table() -> str:
    rows = [f"| {one.code} | `{one.__name__}` | `aot::{_name_in_cpp(one)}` | `{name_in_c(one)}` |\n" for one in coded()]
    return "\n| code | Python | C++ | C |\n| --- | --- | --- | --- |\n" + "".join(rows) + "\n"


def regions() -> Regions:
    """What stands in the regions of each source."""
    return {
        _INCLUDE / "aot.h": {"errors": _codes()},
        _INCLUDE / "aot.hpp": {"errors": _classes(), "codes": _cases()},
        _INCLUDE / "detail" / "errors.h": {"errors": _kinds()},
        PROJECT / "docs" / "reference" / "errors.md": {"codes": _table()},
    }


if __name__ == "__main__":
    sys.exit(run(__doc__, regions()))
