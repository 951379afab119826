"""Libraries' own tests: of the calls that they compile for sm_90a, how many does a fresh process find in a bundle?

Needs CuTe DSL, torch and pytest, and the libraries with the tests of the same commit, but no GPU:

    python examples/capture/served_tests/library_tests.py --library flashinfer --tests ~/flashinfer/tests --out results.json

Each file of tests runs twice, on tensors without memory: `capture --pytest` builds a bundle of what it compiles, and a fresh
process looks up what it compiles again. ``--only`` runs the files, and parts of files, whose names contain a text, ``--jobs``
N of them at a time, and ``--add`` keeps what the file of results has of others. ``--note`` says where the tests are from.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from aot_runtime.arch import Arch

from aot.compile.device.devices import library_variables

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
from _common import machine_facts, parser, print_rows, report  # noqa: E402

ARCH = "sm_90a"
# The files of tests that compile CuTe DSL for sm_90a, with what `-k` selects of each: all, or parts that run side by side.
# Most other sizes of batches of `test_norm.py`, and other lengths of `test_prefill_delta_rule.py`, are left out to save time.
TESTS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "flashinfer": {
        "gdn/test_decode_delta_rule.py": (
            "mtp and not bf16_state",
            "mtp and bf16_state",
            "not mtp and not bf16_state",
            "not mtp and bf16_state and fla_scatter",
            "not mtp and bf16_state and t1 and not (recovery or per_request)",
            "not mtp and bf16_state and recovery",
            "not mtp and bf16_state and per_request and not recovery",
            "not mtp and bf16_state and not (fla_scatter or t1 or recovery or per_request)",
        ),
        "gdn/test_decode_pretranspose_bf16_padded_pool.py": ("",),
        "gdn/test_decode_pretranspose_noncontiguous_pool.py": ("",),
        "gdn/test_decode_ucache.py": ("",),
        "gdn/test_prefill_cp_delta_rule.py": ("",),
        "gdn/test_prefill_delta_rule.py": ("checkpoint or zero_length or state_dtype or block_end",),
        "gdn/test_prefill_state_indices.py": ("",),
        "utils/test_norm.py": (
            "not quant and (-19] or -128])",
            "not quant and (-4096-1] or -4096-99] or -4096-989])",
            "quant and -1.0- and -4096-19]",
            "quant and -1.0- and -19]",
        ),
    },
    "sglang": {
        "registered/kernels/ops/gemm/test_cutedsl_dsv3_fused_a_gemm.py": ("",),
        "registered/kernels/ops/diffusion/test_norm.py": (
            "index_modes",
            "affine_modes or non_divisible",
            "mixed_operand_dtypes",
            "norm_scale_shift_shapes and layer",
            "norm_scale_shift_shapes and rms",
        ),
    },
    "cudnn": {
        "python/fe_api/bsa/test_BSA_attention_forward.py": ("",),
        "python/fe_api/bsa/test_BSA_attention_backward.py": ("",),
        "python/fe_api/dsa/test_DSA_indexer_forward.py": ("",),
    },
}
COLUMNS = ("compiles", "built", "found", "missed", "seconds")


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--library", choices=TESTS, required=True)
    arguments.add_argument("--tests", type=Path, required=True, help="the folder of the library's tests")
    arguments.add_argument("--only", default="", help="files, and parts of files, whose names contain this")
    arguments.add_argument("--jobs", type=int, default=1, help="files at a time (default: 1)")
    arguments.add_argument("--seconds", type=int, default=3600, help="the longest that one may take (default: 3600)")
    arguments.add_argument("--add", action="store_true", help="keep what the file has of other files of tests")
    arguments.add_argument("--note", default="", help="where the tests and the library are from")
    options = arguments.parse_args()
    known = json.loads(options.out.read_text())["results"] if options.add and options.out.is_file() else {}
    parts = [
        (file, part)
        for file, parts in TESTS[options.library].items()
        for part in parts
        if options.only in f"{file}, {part}"
    ]
    ran = known.get(options.library, {}).get("tests", {}) if options.add else {}
    known[options.library] = {"note": options.note, "machine": machine_facts(), "tests": ran}
    with ThreadPoolExecutor(options.jobs) as pool:
        started = {pool.submit(run, options.tests / file, part, options.seconds): (file, part) for file, part in parts}
        for done in as_completed(started):
            name = ", ".join(filter(None, started[done]))
            ran[name] = found = done.result()
            report("library tests", known, options.out, quiet=True)
            print(name, *(found[column] for column in COLUMNS), *found["reasons"][:2], flush=True)
    rows = [
        (library, name, *(found[column] for column in COLUMNS))
        for library, of_library in known.items()
        for name, found in of_library["tests"].items()
    ]
    print_rows(("library", "tests", *COLUMNS), rows)


def run(tests: Path, part: str, seconds: int) -> dict[str, Any]:
    """What became of the calls that a file of tests compiles."""
    told = ["-k", part] if part else []
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "bundle"
        try:
            captured = _captured(tests, told, bundle, seconds)
            looked_up = _looked_up(tests, told, bundle, seconds)
        except subprocess.TimeoutExpired:
            captured, looked_up = {"failures": [{"message": f"took more than {seconds} s"}]}, {}
    # An operator of torch whose body raises compiles nothing that could be found again.
    refused = [reason for reason in looked_up.get("refused", ()) if not reason.startswith("the operator ")]
    failed = [failure["message"].strip().splitlines()[0] for failure in captured.get("failures", ())]
    found, missed = looked_up.get("found", 0), looked_up.get("missed", [])
    return {
        "tests": looked_up.get("tests", {}),
        "compiles": found + len(missed) + len(refused),
        "built": len(captured.get("captured", {})),
        "found": found,
        "missed": len(missed) + len(refused),
        "reasons": [reason.strip().splitlines()[0][:300] for reason in [*missed, *refused]]
        + [text[:300] for text in failed],
        "seconds": round(time.perf_counter() - started),
    }


def _captured(tests: Path, told: Sequence[str], bundle: Path, seconds: int) -> dict[str, Any]:
    options = ["--arch", ARCH, "--name", "tests", "--out", bundle, "--jobs", "1", "--no-archives", "--json", "-q"]
    command = [sys.executable, "-m", "aot", "capture", "--pytest", tests, *options, "--", *told]
    done = _run(command, tests, seconds)
    try:
        result: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        result = {"failures": [{"message": done.stderr.strip()[-300:] or f"exit code {done.returncode}"}]}
    if "error" in result and not result.get("failures"):
        result["failures"] = [{"message": str(result["error"]["message"])}]
    return result


def _looked_up(tests: Path, told: Sequence[str], bundle: Path, seconds: int) -> dict[str, Any]:
    if not (bundle / "manifest.json").is_file():
        return {}
    command = [sys.executable, BENCHMARKS / "_look_up.py", bundle, ARCH, tests, "--pytest", *told]
    done = _run(command, tests, seconds)
    try:
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        result = {"missed": [done.stderr.strip()[-300:] or f"exit code {done.returncode}"]}
    return result


def _run(command: Sequence[Any], tests: Path, seconds: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, cwd=tests.parent, timeout=seconds, env=_environment()
    )


def _environment() -> dict[str, str]:
    return {**os.environ, **library_variables(Arch.parse(ARCH)), "CUTE_DSL_ARCH": ARCH, "CUDA_VISIBLE_DEVICES": ""}


if __name__ == "__main__":
    main()
