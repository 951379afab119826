"""How much of a bundle its tables are: for each GPU, and for all of them, with equal ones counted once as they are stored.

    python benchmarks/table_sizes.py dist/kernels

Needs no GPU. Cells take a byte, numbers of rows of cells two, and bounds of bins eight.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from _common import parser, report

from aot.bundle.tables.cells import packed
from aot.bundle.tables.tuning import TunedSet, Tuning, read_tuning

BOUND_BYTES = 8


def table_bytes(sets: Iterable[TunedSet]) -> int:
    """Bytes of bins, rows and cells. Dtypes and epilogues share them."""
    different = {(one.bins, one.cells) for one in sets}
    return sum(BOUND_BYTES * sum(map(len, bins)) + sum(map(len, packed(bins, cells))) for bins, cells in different)


def sizes(tunings: Sequence[Tuning]) -> dict[str, object]:
    sets = {tuning.device.name: [one for kernel in tuning.kernels for one in kernel.sets] for tuning in tunings}
    return {
        "bytes": {name: table_bytes(own) for name, own in sets.items()},
        "all": table_bytes(one for own in sets.values() for one in own),
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("bundle", type=Path)
    given = arguments.parse_args()
    found = sizes([read_tuning(path) for path in sorted((given.bundle / "tuning").iterdir())])
    print(json.dumps(found, indent=1))
    report("table_sizes", found, given.out)


if __name__ == "__main__":
    main()
