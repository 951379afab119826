"""The same build with one worker and with two, taking turns, each without a cache: how many times faster two are.

Numbers are only valid on an idle machine with two cores; the output includes the load.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path

from _common import parser, print_rows, report
from incremental import build, write_kernels

ROUNDS = 3


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--kernels", type=int, default=4)
    arguments.add_argument("--variants", type=int, default=25, help="of each kernel")
    options = arguments.parse_args()
    load = os.getloadavg()[0]
    runs: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as scratch:
        source = write_kernels(Path(scratch) / "kernels", options.kernels)
        for _ in range(ROUNDS):
            for jobs, own in runs.items():
                with tempfile.TemporaryDirectory(dir=scratch) as place:
                    own.append(build(Path(place), source, options.variants, jobs))
    medians = {jobs: statistics.median(one["seconds"] for one in own) for jobs, own in runs.items()}
    ratio = medians[1] / medians[2]
    print_rows(("workers", "seconds"), [*medians.items(), ("ratio", f"{ratio:.2f}")])
    sizes = {"kernels": options.kernels, "variants": options.variants, "load_average_before": load}
    report("workers", {**sizes, "runs": runs, "seconds": medians, "ratio": ratio}, options.out)


main()
