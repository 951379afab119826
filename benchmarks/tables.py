"""Write the tables of ``docs/performance.md`` and ``docs/proven.md`` from the files in ``benchmarks/results``.

    python benchmarks/tables.py            # after new results: rewrite the pages
    python benchmarks/tables.py --check    # exit code 1 if a page differs from the files

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``. Nothing else of a page is changed.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
PAGE = PROJECT / "docs" / "performance.md"
PROVEN = PROJECT / "docs" / "proven.md"
RESULTS = PROJECT / "benchmarks" / "results"

_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _checked_calls(data: Mapping[str, Any]) -> str:
    return f"{data['calls']['checked']} calls, {data['calls']['failed']} failed"


def _sanitized_calls(data: Mapping[str, Any]) -> str:
    """Of each tool: racecheck finds hazards, the others errors."""
    runs = data["results"]
    return " and ".join(
        f"{sum(run['calls'].values())} calls, {run.get('errors', run.get('hazards'))} found" for run in runs
    )


@cache
def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def link(name: str) -> str:
    return f"[`{name}`](../benchmarks/results/{name})"


# Kernels on a GPU.

_SHAPES = ("32768x4096", "8192x16384", "1024x1024")
_PRODUCTS = ("2048x2048", "4096x4096", "8192x8192", "16x8192", "64x8192", "256x8192")


def _by_shape(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Results by kernel with its choices, then by the shape of the first argument."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        name = " ".join((row["kernel"], *row["choices"].values()))
        found.setdefault(name, {})[row["arguments"].split(",")[0].split()[1]] = row
    return found


def _results(products: bool) -> dict[str, dict[str, Mapping[str, Any]]]:
    return _by_shape(row for row in read("h200-kernels.json")["results"] if (row["kernel"] == "gemm") == products)


def kernels() -> str:
    def cell(row: Mapping[str, Any]) -> str:
        faster = ", ".join(f"{row['speedups'][name]:.2f}x" for name in ("torch", "torch.compile"))
        return f"{row['bandwidth'] / 1e12:.2f} ({faster})"

    columns = [
        "bf16, TB/s (speed relative to torch, to torch.compile)",
        *(shape.replace("x", " x ") for shape in _SHAPES),
    ]
    return table(columns, ([name, *(cell(rows[shape]) for shape in _SHAPES)] for name, rows in _results(False).items()))


def gemm() -> str:
    def cell(row: Mapping[str, Any]) -> str:
        return f"{row['teraflops']:.0f} ({row['speedups']['torch']:.2f}x)"

    columns = [
        "bf16, TFLOP/s (speed relative to torch)",
        *(f"m x k = {shape.replace('x', ' x ')}" for shape in _PRODUCTS),
    ]
    return table(
        columns, ([name, *(cell(rows[shape]) for shape in _PRODUCTS)] for name, rows in _results(True).items())
    )


def products() -> str:
    """Ratios to cuBLAS on products that no choice among tilings was made on, by rows, in both runs."""
    runs = read("h200-gemm-shapes.json")["runs"]
    bins = {
        "m = 1 to 16": (1, 16),
        "m = 17 to 64": (17, 64),
        "m = 65 to 256": (65, 256),
        "m = 257 to 1024": (257, 1024),
    }
    bins |= {"m above 1024": (1025, math.inf), "all": (1, math.inf)}
    rows = []
    for label, (least, most) in bins.items():
        ratios = [[row[7] / row[6] for row in run if least <= row[2] <= most] for run in runs]
        means = " and ".join(f"{statistics.geometric_mean(run):.3f}" for run in ratios)
        below = " and ".join(str(sum(ratio < 0.95 for ratio in run)) for run in ratios)
        rows.append([label, str(len(ratios[0])), means, below, f"{min(map(min, ratios)):.2f}"])
    return table(("bf16, speed relative to cuBLAS", "products", "geometric mean", "below 0.95", "worst"), rows)


_TIMED = {"python": "from Python, the same inputs again", "alone": "one by one, with an empty L2 cache"}


def ways() -> str:
    """Ratios to torch on the same products, timed in other ways than in a graph."""
    rows = []
    for run in read("h200-products-ways.json")["runs"]:
        found = run["summary"]
        means = " and ".join(f"{mean:.2f}" for mean in found["geometric_mean"])
        cells = [
            f"{run['what']}, {run['dtype']}",
            _TIMED[run["way"]],
            str(found["products"]),
            means,
            str(found["behind"]),
        ]
        rows.append([*cells, f"{min(found['worst']):.2f}"])
    columns = ("speed relative to torch", "timed", "products", "geometric mean", "below 0.95 in both runs", "worst")
    return table(columns, rows)


def matrices() -> str:
    """Ratios to torch.compile on matrices that nothing is tuned on, by kernel, each of one run or more."""
    return _compiled("h200-rows.json", "bf16, speed relative to torch.compile", "matrices")


def drawn() -> str:
    """The same on problems that were drawn at random, in three dtypes."""
    return _compiled("h200-rows-random.json", "speed relative to torch.compile", "problems")


def _compiled(file: str, title: str, counted: str) -> str:
    ratios: dict[str, list[list[float]]] = {}
    for label, one in read(file)["results"]["times"].items():
        runs = [theirs / ours for theirs, ours in zip(one["torch.compile"], one["ours"], strict=True)]
        ratios.setdefault(label.split()[0], []).append(runs)
    ratios["all"] = [runs for own in ratios.values() for runs in own]
    rows = []
    for kernel, own in ratios.items():
        mean = statistics.geometric_mean(map(statistics.geometric_mean, own))
        below = sum(max(runs) < 0.95 for runs in own)
        rows.append([kernel, str(len(own)), f"{mean:.2f}", str(below), f"{min(map(min, own)):.2f}"])
    return table((title, counted, "geometric mean", "below 0.95", "worst"), rows)


_SCALED = {
    "h200-scaled-tensor.json": "`gemm_fp8`, one scale each",
    "h200-scaled-rows.json": "`gemm_fp8`, a scale per row and column",
    "h200-scaled-blocks.json": "`gemm_fp8`, blocks of 1 x 128 by 128 x 128",
    "h200-grouped.json": "`grouped_gemm`, bf16",
    "h200-grouped-fp8.json": "`grouped_gemm`, f8e4m3",
}


def scaled() -> str:
    """Ratios to torch on products with scales, and of experts."""
    rows = []
    for name, label in _SCALED.items():
        found = read(name)["results"]["summary"]["torch"]
        means = " and ".join(f"{mean:.3f}" for mean in found["geometric_mean"])
        below = " and ".join(map(str, found["below"]))
        rows.append([label, str(found["products"]), means, below, f"{min(found['worst']):.2f}", link(name)])
    return table(("speed relative to torch", "products", "geometric mean", "below 0.95", "worst", "file"), rows)


def prompts() -> str:
    """Speed of attention of whole sequences, and of chunks of them, in TFLOP/s, by shape."""
    sets = read("h200-attention.json")["results"]
    shapes = {**sets["table"], **sets["further"], **sets.get("chunks", {})}
    names = {"cudnn": "cuDNN", "flash_attention_4": "FlashAttention-4"}
    others = {key: name for key, name in names.items() if any(key in row for row in shapes.values())}
    rows = []
    for shape, row in shapes.items():
        speeds = [f"{row[key]:.0f}" if key in row else "" for key in ("aot", *others)]
        rows.append([shape, *speeds, *(f"{row['aot'] / row[key]:.2f}" if key in row else "" for key in others)])
    table_means = [_mean_ratio(sets["table"].values(), key) for key in others]
    rows.append(["geometric mean of the first eleven", *[""] * (1 + len(others)), *table_means])
    relative = [f"attention relative to {name}" for name in others.values()]
    return table(("TFLOP/s, bf16", "attention", *others.values(), *relative), rows)


def _mean_ratio(rows: Iterable[dict[str, float]], other: str) -> str:
    """The geometric mean of our speed over that of a contender, over the rows that have it."""
    ratios = [row["aot"] / row[other] for row in rows if other in row]
    return f"{statistics.geometric_mean(ratios):.2f}" if ratios else ""


def portable_prompts() -> str:
    """Speed of the portable code for attention of whole sequences, in TFLOP/s, by shape."""
    rows = []
    for shape, row in read("h200-attention-portable.json")["results"]["attention"].items():
        flash = (f"{row['flash']:.0f}", f"{row['aot'] / row['flash']:.2f}") if "flash" in row else ("", "")
        rows.append([shape, f"{row['aot']:.0f}", *flash])
    return table(("TFLOP/s, bf16", "attention for sm_80", "flash", "relative to flash"), rows)


def decoding() -> str:
    """Bandwidth of attention while decoding, in TB/s, by shape."""
    times = read("h200-attention-decode.json")["results"]["times"]
    columns = ("aot", "read", "cudnn", "flash")
    return table(
        ("TB/s of keys and values", "attention_decode", "reading alone", "cuDNN", "flash"),
        (
            [shape, *(f"{one[column]:.2f}" if column in one else "" for column in columns)]
            for shape, one in times.items()
        ),
    )


def latent() -> str:
    """Time of latent attention while decoding, by shape."""
    names = ("aot", "read", "torch")
    rows = []
    for shape, one in read("h200-mla-decode.json")["results"]["shapes"].items():
        times = (f"{one['microseconds'][name]:.0f}" if name in one["microseconds"] else "" for name in names)
        rows.append([shape, *times, f"{one['TFLOP/s']:.0f}", f"{one['TB/s']:.2f}"])
    return table(("microseconds", "mla_decode", "reading alone", "torch", "TFLOP/s", "TB/s"), rows)


def generating() -> str:
    """Tokens per second of a small decoder."""
    speeds = read("h200-decode-loop.json")["results"]["speeds"]
    names = ("bundle", "torch's attention", "torch")
    return table(
        ("tokens per second", "bundle", "bundle with torch's attention", "torch"),
        ([shape, *(f"{one[name]:,}" for name in names)] for shape, one in speeds.items()),
    )


def noise() -> str:
    """The spread of the copy that is timed beside every measurement, and the slowest comparison."""
    copies = [row["copy_bandwidth"] / 1e12 for row in read("h200-kernels.json")["results"]]
    elementwise = [row for rows in _results(False).values() for row in rows.values()]
    slowest = min(value for row in elementwise for value in row["speedups"].values())
    return table(
        ("what", "value"),
        [
            ("A copy of 1 GiB, timed beside each measurement", f"{min(copies):.2f} to {max(copies):.2f} TB/s, median {statistics.median(copies):.2f}"),
            ("The slowest entry of the table below, relative to torch or torch.compile", f"{slowest:.3f}x"),
        ],
    )  # fmt: skip


# Loading.


def loading() -> str:
    rows = [row for name in ("aarch64-load.json", "h200-load.json") for row in _load_rows(name, read(name))]
    return table(("what", "measured", "file"), rows)


def _load_rows(name: str, data: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    limit = data["results"].get("limit_ms") if data["machine"]["processor"] == "Neoverse-N1" else None
    for bundle, found in data["results"].items():
        if bundle == "lists_instead":
            what = "1,000 empty lists in the place of import and first load, torch installed not imported"
            yield what, _lists(found["torch_installed_not_imported"]), link(name)
        if not isinstance(found, dict) or bundle == "lists_instead":
            continue
        if "load_ms" in found:  # a file of before fresh processes were measured
            label = f"1 kernel of {bundle} variant{'s' * (bundle != '1')}" if bundle.isdecimal() else bundle
            yield f"Load, everything imported: {label}", f"{found['load_ms']:.2f} ms", link(name)
            continue
        for process in ("without_torch", "with_torch", "torch_installed_not_imported"):
            if process in found:
                what = f"Import and first load in a fresh process, {process.replace('_', ' ')}: {bundle}"
                yield what, _fresh(found[process], limit), link(name)
        yield f"Load, everything imported: {bundle}", f"{found['warm']['warm_load_ms']:.2f} ms", link(name)
        if "first_error" in found:
            error, call = found["first_error"], found["warm"]["first_call_ms"]
            alone, most = error["after_a_call_ms"], data["results"]["error_limit_ms"]
            verdict = f"limit {most:g} ms, {'met' if alone <= most else 'missed'}"
            yield f"First error of a kernel that was called before: {bundle}", f"{alone:.2f} ms; {verdict}", link(name)
            opening = f"{error['opening_the_library_ms']:.2f} ms; a first call that succeeds takes {call:.2f} ms"
            yield f"First error of a kernel whose library it opens: {bundle}", opening, link(name)


def _lists(times: Mapping[str, float]) -> str:
    return f"{times['lists_ms']:.1f} ms; {times['collecting_older_ms']:.1f} ms of it collect older objects"


def _fresh(times: Mapping[str, float], limit: float | None) -> str:
    """Milliseconds against the limit, and how many of them collected older objects, which earlier imports had left."""
    both, older = times["import_and_first_load_ms"], times.get("collecting_older_ms", 0.0)
    verdict = "" if limit is None else f"; limit {limit:g} ms, {'met' if both <= limit else 'missed'}"
    return f"{both:.1f} ms{verdict}" + (f"; {older:.1f} ms of it collect older objects" if older else "")


# Single facts: what, from which file, and how the number is found there.


def _number(*path: str, scale: float = 1.0, digits: int = 2, unit: str) -> Callable[[Any], str]:
    def find(data: Any) -> str:
        for key in path:
            data = data[key]
        return f"{float(data) * scale:.{digits}f} {unit}"

    return find


def _epilogue(size: str) -> Callable[[Any], str]:
    return lambda data: ", ".join(
        f"{name} {cost:+.1f}%" for name, cost in data["results"][size]["cost of the epilogue, %"].items()
    )


def _outcomes(files: Any) -> str:
    """How many tests passed in all files; those that failed are named."""
    failed = [name for outcomes in files.values() for name in outcomes.get("failed", ())]
    passed = f"{sum(outcomes.get('passed', 0) for outcomes in files.values())} passed"
    return f"{passed}, {len(failed)} failed: {', '.join(failed)}" if failed else f"{passed}, 0 failed"


def _served_tests(data: Any) -> str:
    """Of all runs of a library's tests, and how many kernels the bundles have that served them."""
    runs = data["results"]["runs"]
    passed, failed = sum(run["passed"] for run in runs), sum(len(run["failed"]) for run in runs)
    skipped = sum(sum(run["skipped"].values()) for run in runs)
    return f"{passed} passed, {failed} failed, {skipped} skipped; {max(run['kernels'] for run in runs)} kernels"


def _clusters(data: Any) -> str:
    counts = data["results"]["max_active_clusters"]
    compiled, served = counts["compiled"], counts["served"]
    same = "the same counts" if compiled["clusters"] == served["clusters"] else "different counts"
    spans = (f"{min(one['ms']):.1f} to {max(one['ms']):.1f} ms" for one in (compiled, served))
    return f"{same}; {', '.join(spans)}"


def _new_project(data: Any) -> str:
    found = data["results"]["new_project"]
    tests = found["tests"]
    return (
        f"the C++ program prints `{found['program']}`; model.py: {found['model.py']}; check: {found['check']}; "
        f"memcheck: {found['memcheck']}; its tests: {tests['passed']} passed, {tests['failed']} failed, "
        "which ask for code for sm_80"
    )


_FORWARD = ("results", "fa4", "operations", "forward, causal, head dimension 128")
_QUACK = ("results", "quack", "operations")
_QUACK_NAMES = ("rmsnorm", "layernorm", "softmax", "cross entropy", "gemm", "gemm with ReLU")


def _first_results(name: str) -> Callable[[Any], str]:
    def cell(data: Any) -> str:
        found = _at(data, *_QUACK, name)
        compiled, served = found["first result, compiled_ms"], found["first result, served_ms"]
        return (
            f"{compiled:.0f} ms, {served:.1f} ms ({compiled / served:.0f} times); look-up {found['look-up_ms']:.2f} ms"
        )

    return cell


def _host_times(name: str) -> Callable[[Any], str]:
    def cell(data: Any) -> str:
        found = _at(data, *_QUACK, name)
        public = (
            f" ({found['public function_us']:.1f} us with support for gradients)"
            if "public function_us" in found
            else ""
        )
        own, alone, launch = found["wrapper_us"], found["bundle alone_us"], found["launch alone_us"]
        without = f"{own - launch:.1f} us and {alone - launch:.1f} us"
        return f"{own:.1f} us{public}, {alone:.1f} us; without the launch itself {without}"

    return cell


def _cold_build(family: str) -> Callable[[Any], str]:
    def find(data: Any) -> str:
        one = data["results"]["builds"][family]
        compiled = f"{one['compiled']} compiled for {one['variants']} variants"
        seconds = f"{one['seconds']['total']:.0f} s, " if one["alone"] else ""
        return f"{seconds}{one['cpu_seconds']:.0f} s of CPU; {compiled}"

    return find


def _recipes(data: Any) -> str:
    archs = [found for recipe in data["results"].values() for found in recipe.values()]
    counts = [sum(found[key] for found in archs) for key in ("calls", "captured", "built", "found again")]
    return "{} calls: {} captured, {} built, {} found again".format(*counts)


def _at(data: Any, *path: str) -> Any:
    for key in path:
        data = data[key]
    return data


FACTS: dict[str, tuple[tuple[str, str, Callable[[Any], str]], ...]] = {
    "calling": (
        ("Selection in C adds, 4 kernels x 3 dtypes x 3 architectures", "h200-dispatch.json",
         _number("results", "4 kernels x 3 dtypes x 3 architectures", "added", digits=0, unit="ns")),
        ("Selection in C adds, one kernel of 64 variants", "h200-dispatch.json",
         _number("results", "1 kernel of 64 variants", "added", digits=0, unit="ns")),
        ("Selection in C adds, one kernel of 256 variants", "h200-dispatch.json",
         _number("results", "1 kernel of 256 variants", "added", digits=0, unit="ns")),
        ("A call from Python with torch tensors", "h200-python-call.json",
         _number("results", "bundle.add", scale=1e-3, digits=1, unit="us")),
        ("The same kernel through CuTe DSL's own function", "h200-python-call.json",
         _number("results", "CuTe DSL's own function", scale=1e-3, digits=1, unit="us")),
        ("`torch.add(out=)`", "h200-python-call.json",
         _number("results", "torch.add(out=)", scale=1e-3, digits=1, unit="us")),
        ("A call from C++ through a generated function, relative to the compiled entry", "h200-cpp-call.json",
         lambda data: f"{min(data['results']['ratios']):.2f} to {max(data['results']['ratios']):.2f} times"),
        ("A generated C++ function adds, against the stand-in", "standin-cpp.json",
         _number("generated_over_entry_ns", digits=0, unit="ns")),
        ("Opening a bundle from C++, against the stand-in", "standin-cpp.json",
         _number("first_open_ms", digits=1, unit="ms")),
        ("A C++ program with one kernel and the CUDA runtime linked in", "standin-cpp.json",
         _number("static_program_bytes", scale=1e-6, digits=2, unit="MB")),
    ),
    "epilogues": tuple(
        (f"Cost of an epilogue at {size} cubed, relative to the product alone", "h200-gemm-epilogue.json", _epilogue(size))
        for size in ("2048", "4096", "8192")
    ),
    "captured": (
        ("FlashAttention-4 forward, call to first result: compiled", "h200-capture.json",
         _number("results", "start_s", "library", "first result", scale=1e3, digits=0, unit="ms")),
        ("The same, served from a bundle", "h200-capture.json",
         _number(*_FORWARD, "first result, served_ms", digits=1, unit="ms")),
        ("Of that: the look-up. Before it, during the import of the library: opening the bundle", "h200-capture.json",
         lambda data: f"{_at(data, *_FORWARD)['look-up_ms']:.1f} ms, {data['results']['fa4']['opening_ms']:.1f} ms"),
        ("Later calls in one process, host time: compiled, served", "h200-capture.json",
         lambda data: f"{_at(data, *_FORWARD)['later, compiled_us']:.1f} us, {_at(data, *_FORWARD)['later, served_us']:.1f} us"),
        ("The same kernel as a function of the bundle, without the library", "h200-capture.json",
         _number(*_FORWARD, "bundle alone_us", digits=1, unit="us")),
        ("From the end of `import torch` to the first result: with the library", "h200-capture.json",
         _number("results", "start_s", "library", "all", unit="s")),
        ("The same with the bundle alone; creating the CUDA context is most of it", "h200-capture.json",
         _number("results", "start_s", "bundle", "all", unit="s")),
        *((f"quack's {name}: call to first result, compiled and served", "h200-capture.json", _first_results(name))
          for name in _QUACK_NAMES),
        *((f"quack's {name}, host time: its function, the bundle's function", "h200-capture.json", _host_times(name))
          for name in _QUACK_NAMES),
        ("An empty launch by the driver's own function, host time", "h200-capture.json",
         _number(*_QUACK, "rmsnorm", "launch alone_us", digits=1, unit="us")),
        ("The recipes: calls captured, built, and found again by a fresh process", "aarch64-recipes.json", _recipes),
        ('FlashAttention-4\'s tests, served with `miss="raise"`', "h200-served-tests-fa4.json", _served_tests),
        ('quack\'s tests, served with `miss="raise"`', "h200-served-tests-quack.json", _served_tests),
        ("CuTe DSL counts clusters of 1 to 16 blocks that fit: compiled, served", "h200-served-tests-quack.json",
         _clusters),
    ),
    "building": (
        ("1,040 variants in 20 kernels, first build, two workers", "aarch64-incremental.json",
         _number("results", "builds", "at first", "seconds", digits=0, unit="s")),
        ("The same, nothing changed, interpreter start included", "aarch64-incremental.json",
         _number("results", "builds", "nothing changed", "seconds", unit="s")),
        ("The same, bundle deleted, cache kept", "aarch64-incremental.json",
         _number("results", "builds", "bundle gone", "seconds", digits=1, unit="s")),
        ("The same, one kernel changed", "aarch64-incremental.json",
         lambda data: f"{data['results']['builds']['one kernel changed']['compiled']} of "
                      f"{data['results']['builds']['at first']['compiled']} variants compiled"),
        *((f"The shipped kernels of {families} for `sm90`, empty cache, two workers",
           "aarch64-cold-build.json", _cold_build(name))
          for name, families in (("core", "the core families"), ("all", "all families"))),
        ("Two workers relative to one, 84 variants", "aarch64-workers.json", _number("results", "ratio", unit="times")),
        ("Peak memory of all processes with `--memory 2G`, `--memory 1G`", "aarch64-memory.json",
         lambda data: ", ".join(
             f"{max(build['peak_mb'] for build in data['results']['builds'] if build['cap'] == cap)} MB"
             for cap in ("2G", "1G"))),
        ("A second host in the same build, `add` and `rmsnorm` for two architectures", "package.json",
         _number("results", "second host, %", digits=0, unit="% more time")),
        ("A wheel, beyond its bundle", "package.json",
         _number("results", "wheel beyond the bundle, KB", digits=0, unit="KB")),
        ("Builds killed at random moments; each left the old or the new bundle, whole", "aarch64-kill.json",
         _number("results", "kills", digits=0, unit="builds")),
    ),
    "limits": tuple(
        (what, "aarch64-many.json",
         lambda data, key=key, unit=unit: f"{data['results'][key]:.2f} {unit}; limit {data['results']['limits'][key]:g} {unit}, "
                                          + ("met" if data["results"][key] <= data["results"]["limits"][key] else "missed"))
        for what, key, unit in (
            ("Load", "load_ms", "ms"),
            ("First call of one kernel, beyond hashing", "first_call_beyond_hashing_ms", "ms"),
            ("Memory that loading takes", "resident_growth_mb", "MB"),
            ("`inspect` of one kernel", "inspect_ms", "ms"),
        )
    ),
    "checked": (
        ("Calls of the `sm_90a` code, every variant that takes each input, checked against references", "h200-check.json",
         lambda data: f"{data['calls']['checked']} calls of {len(data['variants'])} variants, {data['calls']['failed']} failed"),
        ("The `sm_80` code of the core families, built as `sm_90`, checked against references", "h200-check-portable.json",
         _checked_calls),
        ("Calls of `rows`, `elementwise` and `backward` under compute-sanitizer: memcheck, racecheck, initcheck",
         "h200-sanitizer.json",
         _sanitized_calls),
        ("Calls of the families `fp8`, `experts` and `f32` under compute-sanitizer, memcheck and racecheck", "h200-sanitizer-fp8.json",
         _sanitized_calls),
        ("The code of `fp8` and `experts` for `sm_80`, built as `sm_90`, checked against references", "h200-check-fp8-portable.json",
         _checked_calls),
        ("Calls of the GEMM under compute-sanitizer, memcheck and racecheck", "h200-sanitizer-gemm.json",
         _sanitized_calls),
        ("Calls of `attention` and `attention_decode` for `sm_90a` under compute-sanitizer, memcheck and racecheck",
         "h200-sanitizer-attention.json",
         _sanitized_calls),
        ("Calls for `sm_90a` under compute-sanitizer: `mla_decode` and `cache_append`, memcheck; `cache_append`, racecheck; "
         "`mla_decode`, racecheck, whose reports the file explains",
         "h200-sanitizer-latent.json",
         _sanitized_calls),
        ("The `sm_80` code of `mla_decode` and `cache_append`, built as `sm_90`, checked against references",
         "h200-check-latent-portable.json",
         lambda data: f"{data['calls']['checked']} calls of {len(data['variants'])} variants, {data['calls']['failed']} failed"),
        ("The `sm_80` code of the family `attention`, built as `sm_90`, checked against references",
         "h200-check-attention-portable.json",
         lambda data: f"{data['calls']['checked']} calls of {len(data['verified'])} variants, {data['calls']['failed']} failed"),
        ("Calls of that code under compute-sanitizer, memcheck and racecheck",
         "h200-sanitizer-attention-portable.json",
         _sanitized_calls),
        ("One bundle and two wheels, built on aarch64 and on x86_64", "reproducible.json",
         lambda data: "the same bytes" if data["same"] else "different bytes"),
    ),
    "block": tuple(
        (contender, "h200-llama-block.json",
         lambda data, name=name: "mean {:.3f}, worst {:.3f}".format(
             data["results"]["summary"][f"{name}, mean"], data["results"]["summary"][f"{name}, worst"]))
        for contender, name in (
            ("torch.compile, each in a CUDA graph", "speedup over torch.compile"),
            ("torch.compile with max-autotune, each in a CUDA graph", "speedup over max-autotune"),
            ("torch.compile, without CUDA graphs", "speedup over torch.compile, eager"),
        )
    ),
    "proven": (
        ("GPU, driver and compute capability", "h200-kit.json", lambda data: "; ".join(data["machine"]["gpus"])),
        ("Host of the GPU", "h200-kit.json",
         lambda data: "{cpu}, {glibc}, Python {python}".format(**data["machine"])),
        ("torch, with the GPU", "h200-kit.json", lambda data: data["machine"]["versions"]["torch"]),
        ("torch, without a GPU", "aarch64-torch-call.json", lambda data: data["machine"]["versions"]["torch"]),
        ("apache-tvm-ffi", "h200-kit.json", lambda data: data["machine"]["versions"]["apache-tvm-ffi"]),
        ("Built with", "h200-kit.json",
         lambda data: "CuTe DSL {nvidia-cutlass-dsl} (CUDA {cuda}), zig {ziglang}, Python {python}"
         .format(**data["kit"]["made_with"])),
        ("JAX and jax-tvm-ffi", "h200-gpu-tests.json",
         lambda data: "{jax}, {jax-tvm-ffi}".format(**data["machine"]["versions"])),
        ("CuPy", "h200-gpu-tests.json", lambda data: data["machine"]["versions"]["cupy"]),
        ("Tests that need a GPU", "h200-gpu-tests.json", lambda data: _outcomes(data["results"])),
        ("Tests that need none, on the host of the GPU", "h200-suite.json",
         lambda data: f"{data['results']['passed']} passed, {len(data['results']['failed'])} failed"),
        ("The first programs of the guide, in C++ and in C", "h200-guides.json",
         lambda data: f"they print `{data['results']['first_program']}` and `{data['results']['first_program_c']}`"),
        ("`check` of the kernel of the first guide", "h200-guides.json", lambda data: data["results"]["check"]),
        ("`bench --ncu`: share of the time that tensor cores are busy, product of 8192 x 8192 x 8192 in bf16",
         "h200-tools.json", lambda data: _tensor_share(data["results"]["ncu"])),
        ("`check --sanitize memcheck`", "h200-tools.json",
         lambda data: "; ".join(f"{kernel}: {found}" for kernel, found in data["results"]["memcheck"].items())),
        ("The project that `aot new --cpp --torch` writes, with a bundle for sm_90a alone", "h200-tools.json",
         _new_project),
        ("Checks of the programs in `cpp_demo/`", "h200-cpp-demo.json",
         lambda data: f"{sum(line.startswith('ok') for line in data['results'])} passed, "
                      f"{sum(line.startswith('FAIL') for line in data['results'])} failed"),
    ),
}  # fmt: skip


def _tensor_share(profiles: Sequence[Mapping[str, Any]]) -> str:
    """Of the product without an epilogue, by contender."""
    label, call = "gemm identity bf16", "a 8192x8192, b 8192x8192"
    shares = {
        one["call"]["contender"]: one["tensor"]
        for one in profiles
        if (one["call"]["label"], one["call"]["arguments"]) == (label, call)
    }
    return f"{shares['aot']:.0f}%, cuBLAS {shares['torch']:.0f}%"


def facts(name: str) -> str:
    return table(
        ("what", "measured", "file"), ([what, find(read(file)), link(file)] for what, file, find in FACTS[name])
    )


TABLES: dict[str, Callable[[], str]] = {
    "kernels": kernels,
    "gemm": gemm,
    "noise": noise,
    "products": products,
    "ways": ways,
    "matrices": matrices,
    "drawn": drawn,
    "scaled": scaled,
    "prompts": prompts,
    "portable_prompts": portable_prompts,
    "decoding": decoding,
    "latent": latent,
    "generating": generating,
    "loading": loading,
}


def rewritten(text: str) -> str:
    """The page with every table made from the files."""

    def fill(match: re.Match[str]) -> str:
        name = match[2]
        return match[1] + (TABLES[name]() if name in TABLES else facts(name)) + match[3]

    return _TABLE.sub(fill, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a page differs")
    options = parser.parse_args()
    texts = {page: (page.read_text(), rewritten(page.read_text())) for page in (PAGE, PROVEN)}
    if options.check:
        return 0 if all(before == after for before, after in texts.values()) else 1
    for page, (_, after) in texts.items():
        page.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
