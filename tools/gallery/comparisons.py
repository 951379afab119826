"""How fast each kernel is beside the best contender, problem by problem, from ``benchmarks/results``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
_CONTENDERS = {
    "cudnn": "cuDNN",
    "flash": "torch's flash attention",
    "flash_attention_4": "FlashAttention-4",
    "flash_mla": "FlashMLA",
    "torch": "torch",
    "torch.compile": "torch.compile",
}


@dataclass(frozen=True)
class Comparison:
    """The speeds of one kernel, relative to the faster contender of each problem: above 1, ours is faster."""

    kernel: str
    label: str  # which calls of the kernel, where several sets were measured
    contenders: tuple[str, ...]
    ratios: Mapping[str, float]  # by problem
    file: str
    gpu: str
    commit: str

    @property
    def mean(self) -> float:
        return statistics.geometric_mean(self.ratios.values())

    @property
    def worst(self) -> str:
        return min(self.ratios, key=self.ratios.__getitem__)


def comparisons(results: Path = RESULTS) -> list[Comparison]:
    found = [*_rows(results), *_products(results), *_scaled(results), *_attention(results), *_training(results)]
    return [one for one in found if one.ratios]


def _rows(results: Path) -> Iterator[Comparison]:
    name = "h200-rows.json"
    by_kernel: dict[str, dict[str, float]] = {}
    for label, times in _read(results, name)["results"]["times"].items():
        kernel, _, problem = label.partition(" ")
        by_kernel.setdefault(kernel, {})[problem] = _over(times["torch.compile"], times["ours"])
    for kernel, ratios in by_kernel.items():
        yield _compared(results, name, kernel, "", ("torch.compile",), ratios)


def _products(results: Path) -> Iterator[Comparison]:
    name = "h200-gemm-shapes.json"
    pairs: dict[str, list[tuple[float, float]]] = {}
    for run in _read(results, name)["runs"]:
        for row in run:
            pairs.setdefault(_extents(row), []).append((row[7], row[6]))
    ratios = {
        problem: statistics.geometric_mean(theirs / ours for theirs, ours in own) for problem, own in pairs.items()
    }
    yield _compared(results, name, "gemm", "bf16", ("cuBLAS",), ratios)
    name = "h200-gemm-f32.json"
    for precision in ("exact", "TF32"):
        problems = _read(results, name)["results"][precision]["problems"]
        ratios = {_extents(row): _over(row[7], row[6]) for row in problems}
        yield _compared(results, name, "gemm_f32", precision, ("cuBLAS",), ratios)


_SCALED = (
    ("h200-scaled-tensor.json", "gemm_fp8", "one scale each"),
    ("h200-scaled-rows.json", "gemm_fp8", "a scale per row and column"),
    ("h200-scaled-blocks.json", "gemm_fp8", "scales of blocks"),
    ("h200-grouped.json", "grouped_gemm", "bf16"),
    ("h200-grouped-fp8.json", "grouped_gemm", "f8e4m3"),
)


def _scaled(results: Path) -> Iterator[Comparison]:
    for name, kernel, label in _SCALED:
        rows = [row for row in _read(results, name)["results"]["problems"] if row[3]]  # torch refuses some of them
        ratios = {" ".join(map(str, row[0])): _over(row[3], row[2]) for row in rows}
        yield _compared(results, name, kernel, label, ("torch",), ratios)


def _attention(results: Path) -> Iterator[Comparison]:
    name = "h200-attention.json"
    sets = _read(results, name)["results"]
    speeds = {problem: row for own in sets.values() for problem, row in own.items()}
    yield _by_speed(results, name, "attention", speeds, ("cudnn", "flash_attention_4"))
    name = "h200-attention-decode.json"
    sets = _read(results, name)["results"]
    yield _by_speed(results, name, "attention_decode", sets["times"] | sets.get("drawn", {}), ("cudnn", "flash"))
    name = "h200-mla-decode.json"
    sets = _read(results, name)["results"]
    yield _by_speed(results, name, "mla_decode", _inverted(sets["shapes"] | sets["drawn"]), ("flash_mla", "torch"))
    name = "h200-mla-decode-sparse.json"
    speeds = _inverted(_read(results, name)["results"]["shapes"])
    packed = {problem: {**own, "aot": own["packed"]} for problem, own in speeds.items()}
    yield _by_speed(results, name, "mla_decode_sparse", packed, ("flash_mla",))


def _training(results: Path) -> Iterator[Comparison]:
    """What is not measured yet is left out: the page then says so."""
    name = "h200-attention-backward.json"
    if (results / name).exists():
        sets = _read(results, name)["results"]["sets"].values()
        speeds = {problem: row for own in sets for problem, row in own.items()}
        yield _by_speed(results, name, "attention_backward", speeds, ("cudnn", "flash_attention_4"))
    name = "h200-training.json"
    losses = _read(results, name)["results"].get("losses", {})
    speeds = {
        problem: {_OURS.get(who, who): 1 / one["ms"] for who, one in own.items()} for problem, own in losses.items()
    }
    yield _by_speed(results, name, "linear_cross_entropy", speeds, ("torch", "torch.compile"))


_OURS = {"bundle": "aot"}


def _inverted(problems: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Speeds from times."""
    return {
        problem: {contender: 1 / taken for contender, taken in own["microseconds"].items()}
        for problem, own in problems.items()
    }


def _by_speed(
    results: Path, name: str, kernel: str, speeds: Mapping[str, Mapping[str, float]], contenders: Sequence[str]
) -> Comparison:
    best = {
        problem: max((row[one] for one in contenders if one in row), default=None) for problem, row in speeds.items()
    }
    ratios = {problem: speeds[problem]["aot"] / other for problem, other in best.items() if other is not None}
    seen = [_CONTENDERS[one] for one in contenders if any(one in row for row in speeds.values())]
    return _compared(results, name, kernel, "", seen, ratios)


def _compared(
    results: Path, name: str, kernel: str, label: str, contenders: Iterable[str], ratios: Mapping[str, float]
) -> Comparison:
    machine = _read(results, name)["machine"]
    gpu = machine["gpu"] if isinstance(machine.get("gpu"), str) else "NVIDIA H200"
    return Comparison(kernel, label, tuple(contenders), dict(ratios), name, gpu.partition(",")[0], machine["commit"])


def _over(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """Of several runs, the mean of the ratios of each."""
    return statistics.geometric_mean(a / b for a, b in zip(theirs, ours, strict=True))


def _extents(row: Sequence[Any]) -> str:
    return f"{row[0]} {row[1]}, {row[2]} x {row[3]} x {row[4]}"


def _read(results: Path, name: str) -> Any:
    return json.loads((results / name).read_text())
