"""Write the tables of the documentation from the files in ``benchmarks/results``.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
_NAMES = (
    "docs/performance.md",
    "docs/overheads.md",
    "docs/proven.md",
    "docs/dev/measurements.md",
    "docs/dev/nets.md",
    "docs/README.md",
    "README.md",
    "SECURITY.md",
)
PAGES = tuple(PROJECT / name for name in _NAMES)
RESULTS = PROJECT / "benchmarks" / "results"

_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


@cache
def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def measured_at(name: str) -> str:
    """The file of a result, and the commit that was measured."""
    return f"[`{name}`](RESULTS/{name}) at {read(name)['machine']['commit'][:7]}"


# Kernels on a GPU.


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


_TABLES = {"its own table": "", "its own table of the core tilings": ", core tilings"}
_DRAWN = {
    "h200-drawn-products.json": ("bf16", "cuBLAS"),
    "h200-cubes.json": ("bf16, cubes of 1024 to 8192", "cuBLAS"),
    "h200-drawn-tensor.json": ("f8, one scale each", "`_scaled_mm`"),
    "h200-drawn-rows.json": ("f8, a scale per row and column", "`_scaled_mm`"),
    "h200-drawn-blocks.json": ("f8, blocks of 1 x 128 by 128 x 128", "the better of `_scaled_mm` and DeepGEMM"),
}


def drawn() -> str:
    """Ratios to others on products that a seed drew, by the table that chooses."""
    rows, ranges = [], ("1 to 16", "17 to 64", "65 to 128", "129 to 512", "513 to 1024", "1025 to 8192")
    for file, (what, other) in _DRAWN.items():
        for name, one in read(file)["results"]["summary"].items():
            chosen = _TABLES.get(name, f", as the {name.removeprefix('NVIDIA ')} would choose")
            means = (f"{one['mean']:.3f}", str(one["behind"]), f"{one['worst']:.2f}")
            by_rows = (one["by_rows"][key] for key in ranges)
            cells = ("" if ratio is None else f"{ratio:.2f}" for ratio in by_rows)
            rows.append([f"{what}{chosen}", other, str(one["products"]), *means, *cells, measured_at(file)])
    columns = ("", "relative to", "products", "geometric mean", "below 0.95 in both runs", "worst")
    return table((*columns, *(f"m = {rows}" for rows in ranges), "measured"), rows)


_FEW = {
    "h200-few-bf16.json": "bf16, up to 16 rows",
    "h200-few-f16.json": "f16, up to 16 rows",
    "h200-few-tensor.json": "f8, one scale each, up to 16 rows",
    "h200-few-f32.json": "f32, exact, up to 4 rows",
}


def few_rows() -> str:
    """Products of few rows beside a kernel that reads their weights."""
    rows = []
    for file, what in _FEW.items():
        found = read(file)["results"]["summary"]
        read_alone, others = found["its own table, beside a plain read"], found["its own table"]
        cells = (str(read_alone["products"]), f"{read_alone['mean']:.2f}", f"{read_alone['worst']:.2f}")
        rows.append([what, *cells, f"{others['mean']:.2f}", measured_at(file)])
    columns = ("", "products", "of a plain read of the weights", "worst", "of torch", "measured")
    return table(columns, rows)


_TIMED = {"python": "from Python, the same inputs again", "alone": "one by one, with an empty L2 cache"}


def ways() -> str:
    """Ratios to torch on the same products, timed in other ways than in a graph."""
    rows = []
    for run in read("h200-products-ways.json")["results"]:
        found = run["summary"]
        means = " and ".join(f"{mean:.2f}" for mean in found["geometric_mean"])
        cells = [
            f"{run['what']}, {run['dtype']}",
            _TIMED[run["way"]],
            str(found["products"]),
            means,
            str(found["behind"]),
        ]
        rows.append([*cells, f"{min(found['worst']):.2f}", run["commit"][:7]])
    columns = (
        "speed relative to torch",
        "timed",
        "products",
        "geometric mean",
        "below 0.95 in both runs",
        "worst",
        "commit",
    )
    return table(columns, rows)


def rows() -> str:
    """Ratios to torch.compile on problems that were drawn at random, in three dtypes, by kernel."""
    ratios: dict[str, list[list[float]]] = {}
    for label, one in read("h200-rows.json")["results"]["times"].items():
        runs = [theirs / ours for theirs, ours in zip(one["torch.compile"], one["ours"], strict=True)]
        ratios.setdefault(label.split()[0], []).append(runs)
    ratios["all"] = [runs for own in ratios.values() for runs in own]
    lines = []
    for kernel, own in ratios.items():
        mean = statistics.geometric_mean(map(statistics.geometric_mean, own))
        below = sum(max(runs) < 0.95 for runs in own)
        lines.append([kernel, str(len(own)), f"{mean:.2f}", str(below), f"{min(map(min, own)):.2f}"])
    return table(("speed relative to torch.compile", "problems", "geometric mean", "below 0.95", "worst"), lines)


_SUMMARIES = (
    ("h200-gemm-f32.json", "`gemm_f32`, TF32", "TF32", "summary"),
    ("h200-gemm-f32.json", "`gemm_f32`, exact", "exact", "summary"),
    ("h200-scaled-tensor.json", "`gemm_fp8`, one scale each", "summary", "torch"),
    ("h200-scaled-rows.json", "`gemm_fp8`, a scale per row and column", "summary", "torch"),
    ("h200-scaled-blocks.json", "`gemm_fp8`, blocks of 1 x 128 by 128 x 128", "summary", "torch"),
    ("h200-grouped.json", "`grouped_gemm`, bf16", "summary", "torch"),
    ("h200-grouped-fp8.json", "`grouped_gemm`, f8e4m3", "summary", "torch"),
)


def scaled() -> str:
    """Ratios to torch on products in f32, with scales, and of experts."""
    rows = []
    for name, label, *path in _SUMMARIES:
        found = _at(read(name)["results"], *path)
        means = " and ".join(f"{mean:.3f}" for mean in found["geometric_mean"])
        below = " and ".join(map(str, found["below"]))
        rows.append([label, str(found["products"]), means, below, f"{min(found['worst']):.2f}", measured_at(name)])
    return table(("speed relative to torch", "products", "geometric mean", "below 0.95", "worst", "measured"), rows)


EXPERT_ROWS = ((1, 64), (65, 128), (129, 511), (512, 1 << 30))  # that each expert has


def experts() -> str:
    """Products of experts with equally many rows, beside one product of as many rows, by the rows of an expert."""
    problems = [one for one in read("h200-grouped.json")["results"]["problems"] if one[4]]
    lines = []
    for low, high in EXPERT_ROWS:
        ratios, speeds = [], []
        for (*_, m, count, n, k, _), _, ours, _, plain in problems:
            if low <= m / count <= high:
                ratios.append(statistics.geometric_mean(b / a for a, b in zip(ours, plain, strict=True)))
                speeds.append(2e-6 * (m * k + count * n * k + m * n) / statistics.mean(ours))
        label = f"{low} to {high}" if high < 1 << 30 else f"{low} and more"
        mean, speed = statistics.geometric_mean(ratios), statistics.mean(speeds)
        lines.append([label, str(len(ratios)), f"{mean:.2f}", f"{min(ratios):.2f}", f"{speed:.1f}"])
    columns = "rows of each expert", "products", "relative to one product, geometric mean", "worst", "TB/s"
    return table(columns, lines)


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


def prompts_short() -> str:
    """The same, summed up: means and the worst problem."""
    sets = read("h200-attention.json")["results"]
    labels = {
        "table": "whole sequences",
        "further": "other lengths and heads, windows",
        "chunks": "chunks of prompts, keys in pages",
    }
    contenders = {"cudnn": "cuDNN", "flash_attention_4": "FlashAttention-4"}
    problems = {label: sets[key] for key, label in labels.items()}
    rows = _contests(problems, contenders, lambda row, other: row["aot"] / row[other] if other in row else None)
    return table(("bf16, speed relative to", "contender", "problems", "geometric mean", "worst"), rows)


_BACKWARD = "h200-attention-backward.json"
_BESIDE = {"flash_attention_4": "FlashAttention-4", "cudnn": "cuDNN"}


def attention_gradients() -> str:
    """Speed of the gradients of attention in TFLOP/s, by shape."""
    names = {"aot": "attention_backward", **_BESIDE}
    rows = []
    for shapes in read(_BACKWARD)["results"]["sets"].values():
        for shape, row in shapes.items():
            relative = (f"{row['aot'] / row[key]:.2f}" if key in row else "" for key in _BESIDE)
            rows.append([shape, *(f"{row[key]:.0f}" if key in row else "" for key in names), *relative])
    return table(("TFLOP/s, bf16", *names.values(), *(f"relative to {name}" for name in _BESIDE.values())), rows)


def attention_gradients_short() -> str:
    """The same, summed up, beside the better contender of each problem."""
    labels = {"table": "listed", "wide": "other widths and masks", "drawn": "drawn by a seed"}
    rows = []
    results = read(_BACKWARD)["results"]
    for key, label in labels.items():
        shapes = results["sets"][key]
        ratios = {
            shape: row["aot"] / max(row[name] for name in _BESIDE if name in row) for shape, row in shapes.items()
        }
        rows.append([label, *_mean_and_worst(ratios)])
    return table(("bf16, speed relative to the better contender", "problems", "geometric mean", "worst"), rows)


def fixed_order() -> str:
    """What a fixed order of additions costs the gradients of attention, by shape."""
    rows = [
        [
            shape,
            f"{row['aot_deterministic']:.0f}",
            f"{row['aot']:.0f}",
            f"{row['aot_deterministic'] / row['aot']:.2f}",
        ]
        for shape, row in read(_BACKWARD)["results"]["deterministic"].items()
    ]
    return table(("TFLOP/s, bf16", "deterministic", "not", "ratio"), rows)


def decoding_short() -> str:
    """Bandwidth of decoding relative to a plain read and to torch's kernels, on problems of the list and on drawn ones."""
    results = read("h200-attention-decode.json")["results"]
    names = {"read": "reading alone", "cudnn": "cuDNN", "flash": "torch's flash attention"}
    problems = {"listed": results["times"], "drawn": results["drawn"]}
    compared = _contests(problems, names, lambda one, other: one["aot"] / one[other] if other in one else None)
    rows = [[name, label, *figures] for label, name, *figures in compared]
    return table(("speed relative to", "problems", "count", "geometric mean", "worst"), rows)


def narrow_caches() -> str:
    """Speed of decoding with caches of 8 bits relative to the same problem in bf16."""
    rows = []
    grouped = read("h200-attention-decode.json")["results"]["times"]
    for shape, one in grouped.items():
        if (wide := grouped.get(shape.replace("float8_e4m3fn", "bfloat16"))) and wide is not one:
            rows.append(["attention_decode", shape, f"{2 * one['aot'] / wide['aot']:.2f}"])  # half of the bytes
    latent = read("h200-mla-decode.json")["results"]["shapes"]
    for shape, one in latent.items():
        wide = latent.get(shape.replace("float8_e4m3fn", "bfloat16").replace("packed", "bfloat16"))
        if wide and wide is not one:
            rows.append(["mla_decode", shape, f"{wide['microseconds']['aot'] / one['microseconds']['aot']:.2f}"])
    return table(("kernel", "problem", "speed relative to bf16"), rows)


def few_and_short() -> str:
    """Time of decoding for few short sequences, by problem."""
    names = ("aot", "flash_mla", "planned", "cudnn")
    rows = []
    for problem, one in read("h200-decode-short.json")["results"]["problems"].items():
        times = (f"{one['microseconds'][name]:.1f}" if name in one["microseconds"] else "" for name in names)
        rows.append([problem, f"{one['goal']:.1f}", *times])
    return table(("microseconds", "goal", "ours", "FlashMLA", "FlashMLA and its plan", "cuDNN"), rows)


def _contests(
    problems: Mapping[str, Mapping[str, Any]],
    contenders: Mapping[str, str],
    ratio: Callable[[Any, str], float | None],
) -> list[list[str]]:
    """A row for each set of problems and each contender that solved some of them: the set, who, mean and worst."""
    rows = []
    for label, own in problems.items():
        for other, name in contenders.items():
            found = {shape: ratio(one, other) for shape, one in own.items()}
            ratios = {shape: one for shape, one in found.items() if one is not None}
            if ratios:
                rows.append([label, name, *_mean_and_worst(ratios)])
    return rows


def _mean_and_worst(ratios: Mapping[str, float]) -> tuple[str, str, str]:
    worst = min(ratios, key=ratios.__getitem__)
    return str(len(ratios)), f"{statistics.geometric_mean(ratios.values()):.2f}", f"{ratios[worst]:.2f}, {worst}"


def _mean_ratio(rows: Iterable[dict[str, float]], other: str) -> str:
    """The geometric mean of our speed over that of a contender, over the rows that have it."""
    ratios = [row["aot"] / row[other] for row in rows if other in row]
    return f"{statistics.geometric_mean(ratios):.2f}" if ratios else ""


def portable_prompts() -> str:
    """Speed of the portable code for attention of whole sequences, relative to torch's flash attention."""
    file = "h200-attention-portable.json"
    ratios = {
        name: row["aot"] / row["flash"] for name, row in read(file)["results"]["attention"].items() if "flash" in row
    }
    return table(
        ("speed relative to torch's flash attention", "problems", "geometric mean", "worst", "measured"),
        [("`attention` for `sm_80`, built as `sm_90`", *_mean_and_worst(ratios), measured_at(file))],
    )


def decoding() -> str:
    """Bandwidth of attention while decoding, in TB/s, by shape."""
    results = read("h200-attention-decode.json")["results"]
    times = results["times"] | results.get("drawn", {})
    columns = ("aot", "read", "cudnn", "flash")
    return table(
        ("TB/s of keys and values", "attention_decode", "reading alone", "cuDNN", "flash"),
        (
            [shape, *(f"{one[column]:.2f}" if column in one else "" for column in columns)]
            for shape, one in times.items()
        ),
    )


def latent_short() -> str:
    """Speed of latent attention relative to a plain read and to FlashMLA, on problems of the list and on drawn ones."""
    results = read("h200-mla-decode.json")["results"]
    contenders = {
        "flash_mla": "FlashMLA, one plan for all layers",
        "planned": "FlashMLA, a plan in each call",
        "read": "reading alone",
    }
    problems = {
        label: {shape: one["microseconds"] for shape, one in results[key].items()}
        for key, label in (("shapes", "listed"), ("drawn", "drawn"))
    }
    compared = _contests(problems, contenders, lambda own, other: own[other] / own["aot"] if other in own else None)
    rows = [[name, label, *figures] for label, name, *figures in compared]
    return table(("speed relative to", "problems", "count", "geometric mean", "worst"), rows)


def sparse() -> str:
    """Time of latent attention against chosen tokens, by shape."""
    names = ("packed", "flash_mla", "planned", "bf16", "prompts")
    rows = []
    for shape, one in read("h200-mla-decode-sparse.json")["results"]["shapes"].items():
        rows.append([shape, *(f"{one['microseconds'][name]:.0f}" for name in names), str(one["TFLOP/s"]["packed"])])
    columns = ("packed", "FlashMLA", "FlashMLA and its plan", "bf16", "FlashMLA for prompts, bf16", "TFLOP/s, packed")
    return table(("microseconds", *columns), rows)


def latent() -> str:
    """Time of latent attention while decoding, by shape."""
    names = ("aot", "flash_mla", "planned", "read", "torch")
    rows = []
    results = read("h200-mla-decode.json")["results"]
    for shape, one in [*results["shapes"].items(), *results["drawn"].items()]:
        times = (f"{one['microseconds'][name]:.0f}" if name in one["microseconds"] else "" for name in names)
        rows.append([shape, *times, f"{one['TFLOP/s']:.0f}", f"{one['TB/s']:.2f}"])
    columns = ("mla_decode", "FlashMLA", "FlashMLA and its plan", "reading alone", "torch", "TFLOP/s", "TB/s")
    return table(("microseconds", *columns), rows)


def generating() -> str:
    """Tokens per second of a small decoder."""
    speeds = read("h200-decode-loop.json")["results"]["speeds"]
    names = ("bundle", "torch's attention", "torch")
    return table(
        ("tokens per second", "bundle", "bundle with torch's attention", "torch"),
        ([shape, *(f"{one[name]:,}" for name in names)] for shape, one in speeds.items()),
    )


def steps() -> str:
    """Tokens per second of a step of training, and seconds until the first one is done."""
    found = read("h200-training-steps.json")["results"]["decoder"]
    speeds = {name: one["tokens per second"] for name, one in found.items()}
    seconds = {
        name: (one["imports"], one["first step after the start"] - one["imports"]) for name, one in found.items()
    }
    rows = [(name, f"{speed:,}", *(f"{value:.1f} s" for value in seconds[name])) for name, speed in speeds.items()]
    ratio = f"{speeds['bundle'] / speeds['torch.compile']:.2f}"
    columns = ("974 M parameters, 16,384 tokens a step", "tokens per second", "imports", "first step after the imports")
    return table(columns, [*rows, ("bundle relative to torch.compile", ratio, "", "")])


def curves() -> str:
    """How far losses of the same steps are apart."""
    found = read("h200-training-curves.json")["results"]["curves"]["distances"]
    rows = [(pair, *(f"{one[name]:.3f}" for name in ("mean", "last fifth", "largest"))) for pair, one in found.items()]
    return table(("4,096 tokens a step, distance of losses", "mean", "mean of the last fifth", "largest"), rows)


def kept() -> str:
    """Bytes that a run keeps on the GPU and on the host."""
    found = read("h200-training-memory.json")["results"]["memory"]
    rows = [(where, *(f"{found[where][i] / 1e6:,.2f}" for i in (0, 4, 9))) for where in ("on the GPU", "on the host")]
    steps = int(found["command"].split()[-1])
    return table(("megabytes after", *(f"{part * steps // 10:,} steps" for part in (1, 5, 10))), rows)


def losses() -> str:
    """Time and extra memory of a loss with its gradients."""
    results = read("h200-training.json")["results"]
    earlier = {k: v for k, v in results["losses of an earlier run"].items() if k != "commit"}
    runs = {"this run": results["losses"], "an earlier run, at e57713e": earlier}
    names = ("bundle", "torch", "torch.compile")
    rows = [
        [shape, run, *(f"{one[name]['ms']:.1f} ms, {one[name]['extra GB']:.2f} GB" for name in names)]
        for run, found in runs.items()
        for shape, one in found.items()
    ]
    columns = ("loss and gradients, with extra memory", "", "`linear_cross_entropy`", "torch", "torch.compile")
    return table(columns, rows)


def gradients() -> str:
    """Speed of products and of their gradients relative to cuBLAS, by the number of rows."""
    found = read("h200-training.json")["results"]["products"]
    parts = {
        "product": ("forward",), "gradient by x": ("by x",), "gradient by weight": ("by weight",),
        "both gradients": ("by x", "by weight"),
    }  # fmt: skip
    rows = []
    for label, summed in parts.items():
        ratios = _ratios(found, summed)
        large = {name: ratio for name, ratio in ratios.items() if int(name.partition(" ")[0]) >= 512}
        rows += [(label, "any", *_mean_and_worst(ratios)), (label, "512 or more", *_mean_and_worst(large))]
    return table(("`gemm` in bf16, relative to cuBLAS", "m", "products", "geometric mean", "worst, m x n x k"), rows)


def _ratios(found: Any, parts: tuple[str, ...]) -> dict[str, float]:
    """Speed relative to cuBLAS, of all parts together."""
    ours, other = ([found["columns"].index(f"{part}, {who}") for part in parts] for who in ("bundle", "cuBLAS"))
    return {name: sum(times[i] for i in other) / sum(times[i] for i in ours) for name, times in found["times"].items()}


def norms() -> str:
    """Bandwidth of gradients of norms."""
    found = read("h200-training.json")["results"]["rows"]
    return table(("16384 x 4096, bf16", "TB/s"), ((name, f"{speed:.2f}") for name, speed in found.items()))


def block() -> str:
    """Speed of a block of a language model relative to torch.compile's, over listed shapes."""
    summary = read("h200-llama-block.json")["results"]["summary"]
    contenders = {
        "torch.compile, each in a CUDA graph": "speedup over torch.compile",
        "torch.compile with max-autotune, each in a CUDA graph": "speedup over max-autotune",
        "torch.compile, without CUDA graphs": "speedup over torch.compile, eager",
    }
    cells = (
        [label, *(f"{summary[f'{name}, {kind}']:.2f}" for kind in ("mean", "worst"))]
        for label, name in contenders.items()
    )
    return table(("speed relative to", "geometric mean", "worst"), cells)


def epilogues() -> str:
    """What a fused epilogue adds to a product, by the size of a cube."""
    costs = {size: one["cost of the epilogue, %"] for size, one in read("h200-gemm-epilogue.json")["results"].items()}
    names = list(next(iter(costs.values())))
    cells = ([f"{size} cubed", *(f"{own[name]:+.1f}%" for name in names)] for size, own in costs.items())
    return table(("time relative to the product alone", *names), cells)


def f32_errors() -> str:
    """Errors of exact products, of ours and of cuBLAS', by ``k`` and the numbers."""
    found = read("h200-f32-errors.json")["results"]
    rows = ([f"{k:,}", numbers, *(f"{error:.1e}" for error in errors)] for k, numbers, *errors in found["rows"])
    return table(("k", "numbers", *(name.replace("aot", "`gemm_f32`") for name in found["columns"][2:])), rows)


def loading() -> str:
    """Milliseconds that a process pays after ``import tvm_ffi``, by the size of the bundle."""
    results = read("x86_64-load.json")["results"]
    bundles = [name for name, found in results.items() if isinstance(found, dict) and "warm" in found]
    limits = {"import_and_first_load_ms": results["limit_ms"], "after_a_call_ms": results["error_limit_ms"]}
    rows = (
        ("Import and first load, without torch", "without_torch", "import_and_first_load_ms"),
        ("The same, torch imported", "with_torch", "import_and_first_load_ms"),
        ("The same, torch installed and not imported", "torch_installed_not_imported", "import_and_first_load_ms"),
        ("Load, everything imported", "warm", "warm_load_ms"),
        ("First call of a kernel", "warm", "first_call_ms"),
        ("First error of a kernel that was called before", "first_error", "after_a_call_ms"),
    )
    return table(
        ("milliseconds", *bundles, "limit"),
        (
            [
                what,
                *(f"{results[bundle][part][key]:.1f}" for bundle in bundles),
                f"{limits[key]:g}" if key in limits else "",
            ]
            for what, part, key in rows
        ),
    )


def checked() -> str:
    cells = (
        [one["what"], str(one["variants"]), str(one["calls"]), str(one["failed"]), one["commit"][:7]]
        for one in read("h200-check.json")["results"]
    )
    return table(("checked against references", "variants", "calls", "failed", "commit"), cells)


def sanitized() -> str:
    """Calls under compute-sanitizer: racecheck finds hazards, the others errors."""
    found: dict[str, dict[str, Any]] = {}
    for one in read("h200-sanitizer.json")["results"]:
        found.setdefault(one["what"], {"commits": one["commits"]})[one["tool"]] = (
            f"{one['calls']} calls, {one['found']} found"
        )
    tools = ("memcheck", "racecheck", "initcheck")
    cells = (
        [what, *(own.get(tool, "") for tool in tools), ", ".join(commit[:7] for commit in own["commits"])]
        for what, own in found.items()
    )
    return table(("under compute-sanitizer", *tools, "commits"), cells)


def _at_commit(commit: str | None) -> str:
    """The commit that a row was measured at, if it is not that of the others."""
    return f", at {commit[:7]}" if commit else ""


def beside_older() -> str:
    """Speed of one bundle relative to an older one of the same kernels."""
    data = read("h200-two-bundles.json")
    cells = (
        [
            f"{name}{_at_commit(row.get('commit'))}",
            str(row["calls"]),
            f"{row['mean']:.3f}",
            str(len(row["slower"])),
            f"{row['worst']:.2f}",
        ]
        for name, row in data["results"].items()
    )
    return table(("speed relative to the older bundle", "calls", "geometric mean", "below 0.98", "worst"), cells)


def code_lines() -> str:
    """How much code kernels have, before and after they shared it."""
    cells = (
        [name, str(row["before"]), str(row["after"]), f"{row['after'] / row['before']:.2f}", str(row["goal"])]
        for name, row in read("code-lines.json")["results"].items()
    )
    return table(("code lines", "before", "after", "remaining part", "goal"), cells)


# Single facts: what, from which file, and how the number is found there.


def _number(*path: str, scale: float = 1.0, digits: int = 2, unit: str) -> Callable[[Any], str]:
    def find(data: Any) -> str:
        for key in path:
            data = data[key]
        return f"{float(data) * scale:.{digits}f} {unit}"

    return find


def _outcomes(files: Any) -> str:
    """How many tests passed in all files; those that failed are named."""
    failed = [name for outcomes in files.values() for name in outcomes.get("failed", ())]
    passed = f"{sum(outcomes.get('passed', 0) for outcomes in files.values())} passed"
    return f"{passed}, {len(failed)} failed: {', '.join(failed)}" if failed else f"{passed}, 0 failed"


_FORWARD = ("results", "fa4", "operations", "forward, causal, head dimension 128")
_QUACK = ("results", "quack", "operations")
_QUACK_NAMES = ("rmsnorm", "layernorm", "softmax", "cross entropy", "gemm", "gemm with ReLU")


def _quack(compared: Callable[[Any], str]) -> Callable[[Any], str]:
    """One cell for all operations of quack."""
    return lambda data: ", ".join(f"{name} {compared(_at(data, *_QUACK, name))}" for name in _QUACK_NAMES)


TABLE_BYTES = 200_000  # that tables of one GPU may take


def _cold_build(family: str) -> Callable[[Any], str]:
    def find(data: Any) -> str:
        one = data["results"]["builds"][family]
        compiled = f"{one['compiled']} compiled for {one['variants']} variants"
        alone = f"{one['seconds']['total']:.0f} s, " if one["alone"] else ""
        beside = "" if one["alone"] else f" beside programs that took {one['cores_of_others']:.1f} cores"
        return f"{alone}{one['cpu_seconds']:.0f} s of CPU{beside}; {compiled}; {one['megabytes']:.0f} MB of libraries"

    return find


def _whole_build(data: Any) -> str:
    one = data["results"]
    return (
        f"{one['seconds']['total']:.0f} s, {one['cpu_seconds']:.0f} s of CPU; {one['variants']:,} variants of "
        f"{one['kernels']} kernels; {one['megabytes']:.0f} MB"
    )


def _table_sizes(data: Any) -> str:
    found = data["results"]
    largest = max(found["bytes"].values())
    kept = "met" if largest <= TABLE_BYTES else "missed"
    limit, whole = f"limit {TABLE_BYTES / 1e3:.0f} KB, {kept}", f"{found['all'] / 1e6:.2f} MB"
    return f"{largest / 1e3:.0f} KB for one GPU, {limit}; {whole} for {len(found['bytes'])} GPUs"


def _forecast(data: Any) -> str:
    builds = data["results"]["builds"].values()
    right, told = (sum(one[key] for one in builds) for key in ("right", "told"))
    return f"{right} of {told} times in {len(builds)} builds"


def _recipes(data: Any) -> str:
    archs = [found for recipe in data["results"].values() for found in recipe.values()]
    counts = [sum(found[key] for found in archs) for key in ("calls", "captured", "built", "found again")]
    return "{} calls: {} captured, {} built, {} found again".format(*counts)


def _plain(name: str, unit: str) -> Callable[[Any], str]:
    return lambda data: " and ".join(f"{data['results'][how][name]:.1f} {unit}" for how in ("compiled", "served"))


def _serve_start(data: Any) -> str:
    found = data["results"]["median and largest"]
    units = {"added, ms": "ms", "added, ms of the processor": "ms", "added, MB": "MB"}
    return ", ".join("{:.1f} (largest {:.1f}) {}".format(*found[name], unit) for name, unit in units.items())


def _served(data: Any) -> str:
    rows = data["results"]["libraries"].items()
    words = "{}: {} kernels, {} missed, {} of {} results equal"
    keys = ("kernels", "missed", "equal", "results")
    return "; ".join(words.format(name, *(one[key] for key in keys)) for name, one in rows)


def _sooner(data: Any) -> str:
    one = data["results"]["libraries"]["FlashInfer"]
    compiled, served = (one[f"until all results, {how}_s"] for how in ("compiled", "served"))
    return f"{compiled:.2f} s and {served * 1e3:.1f} ms, {compiled / served:.0f} times sooner"


def _library_tests(data: Any) -> str:
    rows = []
    for library, found in data["results"].items():
        files = found["tests"].values()
        found_again, compiles = (sum(one[key] for one in files) for key in ("found", "compiles"))
        rows.append(f"{library}: {found_again} of {compiles}")
    return "; ".join(rows)


def _repeated(data: Any) -> str:
    found = data["results"]["cuDNN frontend, gradients"]
    rows = [row for how in ("served", "compiled") for row in found[how]["gradients"].values()]
    equal, runs = (sum(one[key] for one in rows) for key in ("later runs equal to the first", "later runs"))
    largest = max(one["largest difference"] for one in rows)
    kernels = "{kernels} kernels served, {missed} missed".format_map(found["served"])
    return f"{kernels}; {equal} of {runs} later runs equal to the first, differences up to {largest:.4f}"


# As `scripts.py` words it.
NO_KERNEL = "it compiles no code for a GPU"
NEEDED = ("several GPUs", "JAX with CUDA", "the output of another script", "CMake, and a C++ module that it builds")


def _scripts(data: Any) -> str:
    found = [one for name, one in data["results"].items() if not name.startswith("libraries/")]
    works, part = (sum(one["verdict"] == verdict for one in found) for verdict in ("works", "in part"))
    failed = [one["reason"] for one in found if one["verdict"] == "fails"]
    beyond, without = sum(reason in NEEDED for reason in failed), failed.count(NO_KERNEL)
    rest = len(failed) - beyond - without
    words = f"{len(found)} scripts: {works} work, {part} in part, {rest} fail"
    return f"{words}; {without} compile no kernel, {beyond} need more than torch and one GPU"


def _flips(data: Any) -> str:
    outcomes = data["results"]["targets"].values()
    refused = sum(one.get("refused by load, named by verify", 0) for one in outcomes)
    later = sum(one.get("refused when it is read, named by verify", 0) for one in outcomes)
    named = f"`verify` names {refused + later:,}; `load` refuses {refused:,}, reading the file {later:,}"
    return f"{data['results']['cases']:,} flips: {named}; {_findings(data)}"


def _races(data: Any) -> str:
    targets = data["results"]["targets"]
    ours, control = (
        [one for name, one in targets.items() if name.startswith("control") == is_control]
        for is_control in (False, True)
    )
    loads, by_path = (sum(one["cases"] for one in group) for group in (ours, control))
    ran, won = sum(one["found"] for one in ours), sum(one["won"] for one in control)
    return f"{loads:,} loads: other code ran {ran} times; {won} times in {by_path:,} loads that hash and open by path"


def _fuzzed(data: Any) -> str:
    return f"{data['results']['cases']:,} cases: {_findings(data)}"


def _reached(data: Any) -> str:
    shares = [share for one in data["results"]["targets"].values() for share in one["lines_reached_percent"].values()]
    return f"{min(shares):.0f}% to {max(shares):.0f}% of each of {len(shares)} files"


def reached() -> str:
    """What the fuzzers reach, by file."""
    targets = read("aarch64-reach.json")["results"]["targets"].values()
    return table(
        ("file", "lines reached", "cases"),
        (
            (f"`{file}`", f"{share:.1f}%", f"{one['cases']:,}")
            for one in targets
            for file, share in one["lines_reached_percent"].items()
        ),
    )


def _mutated(data: Any) -> str:
    results = data["results"]
    known = sum(bool(one["reason"]) for one in results["survivors"])
    share = f"{100 * results['noticed'] / results['mutations']:.1f}%"
    survivors = f"{len(results['survivors'])} survivors, {known} with a reason"
    return f"{results['mutations']} mutations: {results['noticed']} noticed ({share}); {survivors}"


def _planted(data: Any) -> str:
    results = data["results"]
    return (
        f"{results['planted']} planted: {results['found']} found, on {results['jobs']} cores in {results['seconds']} s"
    )


def _forked(data: Any) -> str:
    return f"{data['results']['cases']:,} children: {_findings(data)}"


def _findings(data: Any) -> str:
    return f"{data['results']['findings']} findings"


def _at(data: Any, *path: str) -> Any:
    for key in path:
        data = data[key]
    return data


FACTS: dict[str, tuple[tuple[str, str, Callable[[Any], str]], ...]] = {
    "headline": (
        ("The README's two commands on two cores, with an empty cache: building, testing", "x86_64-readme.json",
         lambda data: "{first_s} s, {second_s} s".format_map(data["results"])),
        ("First result of FlashAttention-4 in a fresh process: compiled, served from a bundle", "h200-capture.json",
         lambda data: f"{data['results']['start_s']['library']['first result'] * 1e3:.0f} ms, "
                      f"{_at(data, *_FORWARD)['first result, served_ms']:.1f} ms"),
        ("Import the loader and load a bundle of 10,000 variants, in a fresh process", "x86_64-load.json",
         _number("results", "50 kernels, 10,000 variants", "without_torch", "import_and_first_load_ms", digits=1, unit="ms")),
        ("Speed of the shipped attention of prompts, relative to cuDNN through torch", "h200-attention.json",
         lambda data: f"{_mean_ratio(data['results']['table'].values(), 'cudnn')} in the mean of eleven shapes"),
    ),
    "calling": (
        *((f"Selection in C adds: {bundle}", "aarch64-dispatch.json", _number("results", bundle, "added", digits=0, unit="ns"))
          for bundle in ("4 kernels x 3 dtypes x 3 architectures", "1 kernel of 256 variants",
                         "8 tilings of a product, by preference", "8 tilings of a product, by a table of 16 x 16 x 16 bins")),
        ("A generated C++ function adds to the compiled entry", "aarch64-cpp-call.json",
         _number("results", "generated_over_entry_ns", digits=0, unit="ns")),
        ("Opening a bundle from C++", "aarch64-cpp-call.json", _number("results", "first_open_ms", digits=1, unit="ms")),
        ("A C++ program with one kernel and the CUDA runtime linked in", "aarch64-cpp-call.json",
         _number("results", "static_program_bytes", scale=1e-6, digits=2, unit="MB")),
        ("A call from Python with torch tensors", "h200-python-call.json",
         _number("results", "bundle.add", scale=1e-3, digits=1, unit="us")),
        ("The same kernel through CuTe DSL's own function", "h200-python-call.json",
         _number("results", "CuTe DSL's own function", scale=1e-3, digits=1, unit="us")),
        ("`torch.add(out=)`", "h200-python-call.json",
         _number("results", "torch.add(out=)", scale=1e-3, digits=1, unit="us")),
        ("A call of a kernel as an operator of torch, `ops.rmsnorm.out`", "h200-torch-call.json",
         _number("results", "no_grad", "ops.rmsnorm.out", scale=1e-3, digits=1, unit="us")),
        ("The same kernel as the bundle's own function", "h200-torch-call.json",
         _number("results", "no_grad", "the plain call", scale=1e-3, digits=1, unit="us")),
        ("A key adds to loading a signed bundle", "aarch64-signature.json",
         _number("results", "more_for_one_key_cpu_ms", digits=1, unit="ms of CPU")),
    ),
    "limits": tuple(
        (what, "aarch64-many.json",
         lambda data, key=key, unit=unit: f"{data['results'][key]:.2f} {unit}; limit {data['results']['limits'][key]:g} {unit}, "
                                          + ("met" if data["results"][key] <= data["results"]["limits"][key] else "missed"))
        for what, key, unit in (
            ("Load a bundle of 10,000 variants in 50 kernels, everything imported", "load_ms", "ms"),
            ("First call of one kernel, beyond hashing", "first_call_beyond_hashing_ms", "ms"),
            ("Memory that loading takes", "resident_growth_mb", "MB"),
            ("`inspect` of one kernel", "inspect_ms", "ms"),
        )
    ),
    "captured": (
        ("FlashAttention-4 forward, call to first result: compiled", "h200-capture.json",
         _number("results", "start_s", "library", "first result", scale=1e3, digits=0, unit="ms")),
        ("The same, served from a bundle", "h200-capture.json",
         _number(*_FORWARD, "first result, served_ms", digits=1, unit="ms")),
        ("Later calls, host time: compiled, served, the bundle's function without the library", "h200-capture.json",
         lambda data: ", ".join(f"{_at(data, *_FORWARD)[key]:.1f} us"
                                for key in ("later, compiled_us", "later, served_us", "bundle alone_us"))),
        ("From the end of `import torch` to the first result: with the library, with the bundle alone", "h200-capture.json",
         lambda data: ", ".join(f"{data['results']['start_s'][key]['all']:.2f} s" for key in ("library", "bundle"))),
        ("quack, call to first result: compiled, served", "h200-capture.json",
         _quack(lambda one: f"{one['first result, compiled_ms']:.0f} and {one['first result, served_ms']:.1f} ms")),
        ("quack, host time of later calls: its function, the bundle's function", "h200-capture.json",
         _quack(lambda one: f"{one['wrapper_us']:.1f} and {one['bundle alone_us']:.1f} us")),
        ("An empty launch by the driver's own function, host time", "h200-capture.json",
         _number(*_QUACK, "rmsnorm", "launch alone_us", digits=1, unit="us")),
        ("A call without TVM-FFI, host time: compiled, served", "h200-plain-call.json", _plain("tensors kept, us", "us")),
        ("The same if the caller wraps its tensors for each call", "h200-plain-call.json", _plain("tensors wrapped, us", "us")),
        ("The same, first result: compiled, served", "h200-plain-call.json", _plain("first result, ms", "ms")),
        ("Serving a bundle of 1,000 calls in two processes that start at once, on two cores without SHA instructions, added to each: by the clock, of the processor, memory",
         "x86_64-serve-start.json", _serve_start),
        ("The recipes: calls captured, built, and found again by a fresh process", "aarch64-recipes.json", _recipes),
        ("Unmodified libraries on a GPU, compiles forbidden, results compared bit by bit with compiled ones", "h200-served.json", _served),
        ("FlashInfer, 17 results of 14 kernels in a fresh process, imports apart: compiled, served", "h200-served.json", _sooner),
        ("Libraries' own tests for sm_90: calls that they compile, found again by a fresh process", "library-tests.json", _library_tests),
        ("The gradients of the cuDNN frontend's block-sparse attention, compiled and served, six times each from the same inputs", "h200-served.json", _repeated),
        ("CUTLASS's examples as they are: every call captured, built, and found again", "x86_64-scripts.json", _scripts),
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
        ("The shipped kernels of the core families for `sm90`, empty cache, two cores", "x86_64-cold-build.json",
         _cold_build("core")),
        ("All kernels for `sm90` with the core tilings, likewise", "x86_64-cold-build.json", _cold_build("all")),
        ("All kernels for `sm90` with every tiling, empty cache, ten workers beside other programs", "x86_64-build-all.json",
         _whole_build),
        ("Tables of products, with every tiling; equal ones count once", "x86_64-table-sizes.json", _table_sizes),
        ("The time left that builds tell after ten seconds, right within a factor of two", "aarch64-forecast.json",
         _forecast),
        ("Builds killed at random moments; each left the old or the new bundle, whole", "aarch64-kill.json",
         _number("results", "kills", digits=0, unit="builds")),
    ),
    "proven": (
        ("GPU, driver and compute capability", "h200-kit.json", lambda data: "; ".join(data["machine"]["gpus"])),
        ("Host of the GPU", "h200-kit.json",
         lambda data: "{cpu}, {glibc}, Python {python}".format(**data["machine"])),
        ("torch, with the GPU", "h200-kit.json", lambda data: data["machine"]["versions"]["torch"]),
        ("apache-tvm-ffi", "h200-kit.json", lambda data: data["machine"]["versions"]["apache-tvm-ffi"]),
        ("Built with", "h200-kit.json",
         lambda data: "CuTe DSL {nvidia-cutlass-dsl} (CUDA {cuda}), zig {ziglang}, Python {python}"
         .format(**data["kit"]["made_with"])),
        ("JAX and jax-tvm-ffi", "h200-gpu-tests.json",
         lambda data: "{jax}, {jax-tvm-ffi}".format(**data["machine"]["versions"])),
        ("CuPy", "h200-gpu-tests.json", lambda data: data["machine"]["versions"]["cupy"]),
        ("Tests that need a GPU", "h200-gpu-tests.json", lambda data: _outcomes(data["results"])),
        ("Faults: processes killed while they launch, illegal accesses, two processes at once, also through MPS, no memory left",
         "h200-faults.json", lambda data: _outcomes(data["results"])),
        ("Tests that need none, on the host of the GPU", "h200-suite.json",
         lambda data: _outcomes({"suite": data["results"]})),
        ("`bench --ncu`: share of the time that tensor cores are busy, product of 8192 x 8192 x 8192 in bf16",
         "h200-tools.json", lambda data: _tensor_share(data["results"]["ncu"])),
        ("`check --sanitize memcheck`", "h200-tools.json",
         lambda data: "; ".join(f"{kernel}: {found}" for kernel, found in data["results"]["memcheck"].items())),
        ("Checks of the programs in `cpp_demo/`", "h200-cpp-demo.json",
         lambda data: f"{sum(line.startswith('ok') for line in data['results'])} passed, "
                      f"{sum(line.startswith('FAIL') for line in data['results'])} failed"),
    ),
    "attacked": (
        ("Every single bit of `manifest.json`, `kernels.json`, `files.json` and `provenance.json` flipped", "aarch64-flips.json", _flips),
        ("The entry library and a kernel's library replaced by renaming at random moments, in Python and in C++", "aarch64-races.json", _races),
        ("Readers of manifests, details, libraries, GPU code, archives and cache entries; the overlap check against brute force; "
         "dispatch in C under the sanitizers for addresses and undefined behaviour", "aarch64-fuzz.json", _fuzzed),
        ("Lines that the fuzzers reach: dispatch, selection, measured tables and scratch memory in C, readers in Python",
         "aarch64-reach.json", _reached),
        ("Bugs planted in copies of the code, for the fuzzers to find", "x86_64-planted.json", _planted),
        ("Mistakes put into the runtime, the loader, selection and bundles, one by one, for the tests to notice",
         "aarch64-mutants.json", _mutated),
        ("Forks while threads make their first calls", "x86_64-forks.json", _forked),
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
        ("what", "measured", "file and commit"),
        ([what, find(read(file)), measured_at(file)] for what, file, find in FACTS[name]),
    )


# The tables of one file each, and what makes them. Tables of several files name them in their rows.
TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "rows": ("h200-rows.json", rows),
    "products": ("h200-gemm-shapes.json", products),
    "drawn": ("", drawn),
    "few_rows": ("", few_rows),
    "epilogues": ("h200-gemm-epilogue.json", epilogues),
    "f32_errors": ("h200-f32-errors.json", f32_errors),
    "experts": ("h200-grouped.json", experts),
    "ways": ("", ways),
    "beside_older": ("h200-two-bundles.json", beside_older),
    "code_lines": ("code-lines.json", code_lines),
    "scaled": ("", scaled),
    "block": ("h200-llama-block.json", block),
    "prompts": ("h200-attention.json", prompts),
    "prompts_short": ("h200-attention.json", prompts_short),
    "attention_gradients": (_BACKWARD, attention_gradients),
    "attention_gradients_short": (_BACKWARD, attention_gradients_short),
    "fixed_order": (_BACKWARD, fixed_order),
    "portable_prompts": ("", portable_prompts),
    "decoding": ("h200-attention-decode.json", decoding),
    "decoding_short": ("h200-attention-decode.json", decoding_short),
    "few_and_short": ("h200-decode-short.json", few_and_short),
    "narrow_caches": ("", narrow_caches),
    "latent": ("h200-mla-decode.json", latent),
    "latent_short": ("h200-mla-decode.json", latent_short),
    "sparse": ("h200-mla-decode-sparse.json", sparse),
    "generating": ("h200-decode-loop.json", generating),
    "steps": ("h200-training-steps.json", steps),
    "curves": ("h200-training-curves.json", curves),
    "kept": ("h200-training-memory.json", kept),
    "losses": ("h200-training.json", losses),
    "gradients": ("h200-training.json", gradients),
    "norms": ("h200-training.json", norms),
    "loading": ("x86_64-load.json", loading),
    "checked": ("", checked),
    "reached": ("aarch64-reach.json", reached),
    "sanitized": ("", sanitized),
}


def made(name: str) -> str:
    """A table with its source above it."""
    if name in FACTS:
        return facts(name)
    file, make = TABLES[name]
    return (f"Measured: {measured_at(file)}.\n\n" if file else "") + make()


def rewritten(text: str, page: Path) -> str:
    """The page with every table made from the files."""
    up = "../" * len(page.relative_to(PROJECT).parent.parts)
    return _TABLE.sub(
        lambda match: match[1] + made(match[2]).replace("](RESULTS/", f"]({up}benchmarks/results/") + match[3], text
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a page differs")
    options = parser.parse_args()
    texts = {page: (page.read_text(), rewritten(page.read_text(), page)) for page in PAGES}
    if options.check:
        return 0 if all(before == after for before, after in texts.values()) else 1
    for page, (_, after) in texts.items():
        page.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
