"""Which lines the fuzzers reach, of dispatch in C and of the readers in Python: ``python -m fuzz.reach --out FILE``.

Needs gcov, which comes with gcc, and ``pip install coverage``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from . import worlds
from .command import corpus_and_folder, corpus_parser, run_all
from .corpus import PROJECT, Corpus

__all__ = ["READERS", "in_c", "in_python"]

READERS = (
    "aot/binary/cubin.py", "aot/binary/elf.py", "aot/binary/objects.py", "aot/bundle/details.py", "aot/bundle/split.py",
    "aot/bundle/tables/tuning.py", "aot/cache/entries.py", "runtime/aot_runtime/description/kernel_records.py",
    "runtime/aot_runtime/description/manifest.py", "runtime/aot_runtime/description/records.py",
)  # fmt: skip
# What writes, in files that mostly read.
WRITERS = (
    "def (pack|record_bytes|json_bytes|entry_limit|tuning_text|_text_of|details_text|shape_text|stamp_text|data|replace)\\(",
    "def (tuning_name|pairs|only|bundle_tunings|check_names|check_tuning)\\(",  # and what compares tables with variants
    "if TYPE_CHECKING:",
)


def in_c(corpus: Corpus, folder: Path, seed: int, cases: int) -> dict[str, float]:
    """Of each file, the share of its lines that calls into made-up bundles reach."""
    program = worlds.compile_program(folder, corpus.standin, "--coverage")
    assert worlds.run(program, seed, cases, leaks=False).findings == []
    reached = {}
    for name in worlds.REACHED:
        command = ["gcov", "-n", f"worlds-aot_{name}.gcda"]
        said = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
        for file, share in re.findall(r"File '(.*)'\nLines executed:([\d.]+)%", said):
            if Path(file).stem == f"aot_{name}":
                reached[Path(file).name] = float(share)
    return reached


def in_python(corpus: Path, folder: Path, seed: int, cases: int) -> dict[str, float]:
    """The same of the readers. In a process of its own, since lines of modules run when they are imported."""
    settings, data = folder / "coverage.ini", folder / "coverage"
    files = "\n  ".join(str(PROJECT / name) for name in READERS)
    left_out = "\n  ".join(WRITERS)
    settings.write_text(f"[run]\ndata_file = {data}\ninclude =\n  {files}\n[report]\nexclude_also =\n  {left_out}\n")
    tool = [sys.executable, "-m", "coverage"]
    words = ["--corpus", str(corpus), "--only", "readers", "--seed", str(seed), "--cases", str(cases)]
    subprocess.run([*tool, "run", f"--rcfile={settings}", "-m", "fuzz", *words], cwd=PROJECT, check=True)
    report = subprocess.run(
        [*tool, "json", f"--rcfile={settings}", "-q", "-o", "-"], cwd=PROJECT, check=True, capture_output=True
    )
    found = json.loads(report.stdout)["files"]
    return {name: round(found[name]["summary"]["percent_covered"], 1) for name in READERS}


def main() -> int:
    arguments = corpus_parser("fuzz.reach", __doc__)
    arguments.add_argument("--cases", type=int, default=50_000)
    options = arguments.parse_args()
    with corpus_and_folder(options.corpus) as (corpus, folder):
        shares: dict[str, Any] = {
            "C": in_c(corpus, folder, options.seed, options.cases),
            "Python": in_python(corpus.bundle.parent, folder, options.seed, options.cases),
        }
    data = {
        name: {"cases": options.cases, "lines_reached_percent": share, "findings": []} for name, share in shares.items()
    }
    return run_all("reach", data.items(), options.out, seed=options.seed)


if __name__ == "__main__":
    sys.exit(main())
