"""Print which CuTe DSL is installed, the module that serves it, and every name that the builder misses in it."""

from __future__ import annotations

import sys

from ...errors import AotError
from . import installed, missing, version


def main() -> int:
    try:
        dsl = installed()
        lacking = missing(dsl)
    except (AotError, ImportError) as error:
        print(f"error: {error}")
        return 1
    print(f"CuTe DSL {version()}, served by {dsl.__name__}")  # type: ignore[attr-defined]
    for name in lacking:
        print(f"missing function {name}")
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
