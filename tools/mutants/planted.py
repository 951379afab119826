"""Plant bugs one by one, and see which the fuzzers find: ``python -m tools.mutants.planted --jobs 2 --out FILE``.

Eleven bugs are in ``planted.json``. Nine more are drawn by a seed from the operators of the mutation check, in the files
that the fuzzers are for. Each bug gets a minute of one core.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm_ffi.libinfo

from .report import why_it_survives, write
from .sites import Mutation
from .sites import draw as draw_sites
from .trees import PROJECT, environment

SECONDS = 60
DRAWN = 9
SPARE = 3  # times as many are drawn: some do not compile
FUZZED = (
    "runtime/src/aot_arguments.c", "runtime/src/aot_dispatch.c", "runtime/src/aot_overlap.c", "runtime/src/aot_select.c",
    "runtime/src/aot_tuning.c", "runtime/src/aot_workspace.c", "runtime/aot_runtime/description/*.py", "aot/binary/cubin.py",
    "aot/binary/elf.py", "aot/binary/objects.py", "aot/bundle/details.py", "aot/cache/entries.py",
)  # fmt: skip
_COPIED = ("aot", "fuzz", "kernels", "runtime", "tests", "pyproject.toml")


@dataclass(frozen=True)
class Bug:
    name: str
    mutation: Mutation


def known() -> list[Bug]:
    """Those of ``planted.json``, each of which must fit the code as it is."""
    found = []
    for bug in json.loads(Path(__file__).with_name("planted.json").read_text()):
        text = (PROJECT / bug["file"]).read_text()
        assert text.count(bug["old"]) == 1, (
            f"{bug['bug']}: {bug['file']} has {text.count(bug['old'])} of {bug['old']!r}"
        )
        start = text.index(bug["old"])
        line = text.count("\n", 0, start) + 1
        one = Mutation(bug["file"], line, "planted", start, start + len(bug["old"]), bug["old"], bug["new"])
        found.append(Bug(bug["bug"], one))
    return found


def drawn(seed: int, count: int) -> Iterator[Bug]:
    """So many that compile, and that somebody could notice."""
    for one in draw_sites(PROJECT, {"fuzzed": (count * SPARE, FUZZED)}, seed):
        if count and not why_it_survives(one) and (one.path.endswith(".py") or _compiles(one)):
            count -= 1
            yield Bug(f"{one.path}:{one.line}: {one.kind}: {one.old[:50]} -> {one.new[:50]}", one)


def _compiles(one: Mutation) -> bool:
    folders = (PROJECT / "runtime/src", PROJECT / "runtime/include", tvm_ffi.libinfo.find_include_path())
    command = ["cc", "-std=gnu99", "-fsyntax-only", "-w", "-x", "c", *(f"-I{folder}" for folder in folders), "-"]
    return not subprocess.run(
        command, input=one.applied((PROJECT / one.path).read_text()).encode(), capture_output=True
    ).returncode


def hunt(bug: Bug, corpus: Path, seed: int, seconds: float) -> dict[str, Any]:
    """What the fuzzers make of a copy of the project with the bug."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="aot-planted-") as scratch:
        root = Path(scratch)
        for name in _COPIED:
            copy = shutil.copytree if (PROJECT / name).is_dir() else shutil.copy
            copy(PROJECT / name, root / name)
        path = root / bug.mutation.path
        path.write_text(bug.mutation.applied(path.read_text()))
        command = [
            sys.executable,
            "-m",
            "fuzz.hunt",
            "--corpus",
            str(corpus),
            "--seconds",
            str(seconds),
            "--seed",
            str(seed),
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd=root, env=environment(root))
    said = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1:]
    return {
        "bug": bug.name, "file": bug.mutation.path, "found": done.returncode != 0, "by": said[0][:200] if done.returncode else "",
        "seconds": round(time.monotonic() - started, 1),
    }  # fmt: skip


def main() -> int:
    options = _parser().parse_args()
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(options.jobs) as pool:
        corpus = options.corpus or Path(scratch) / "corpus"
        command = [sys.executable, "-m", "fuzz.hunt", "--corpus", str(corpus), "--seconds", "1"]
        clean = subprocess.run(command, cwd=PROJECT)
        assert clean.returncode == 0, "the fuzzers find something in the code as it is"
        started = time.monotonic()
        bugs = [*known(), *drawn(options.seed, DRAWN)]
        hunts = [pool.submit(hunt, bug, corpus, options.seed, options.seconds) for bug in bugs]
        results: list[dict[str, Any]] = []
        for done in as_completed(hunts):
            results.append(done.result())
            _tell(results[-1])
            found = sum(result["found"] for result in results)
            facts = {"seed": options.seed, "jobs": options.jobs, "seconds": round(time.monotonic() - started)}
            write(options.out, "planted", {**facts, "planted": len(results), "found": found, "bugs": results})
    return 0 if found >= len(bugs) - 2 else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants.planted", description=__doc__)
    add = parser.add_argument
    add("--seed", type=int, default=1, help="which nine are drawn, and where the fuzzers begin")
    add("--jobs", type=int, default=2, metavar="N")
    add("--seconds", type=float, default=SECONDS, help="for each bug")
    add("--corpus", type=Path, metavar="DIR", help="of `python -m fuzz --corpus`; made there if it is missing")
    add("--out", type=Path, metavar="FILE", help="write the results here, as JSON")
    return parser


def _tell(result: dict[str, Any]) -> None:
    said = f"found in {result['seconds']} s" if result["found"] else f"MISSED in {result['seconds']} s"
    print(f"{said}: {result['bug']} {result['by']}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
