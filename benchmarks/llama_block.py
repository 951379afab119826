"""A decoder block with the operators of a bundle against the same block in plain torch, compiled by torch.compile.

Contenders are plain torch compiled in the default mode, plain torch compiled with max-autotune, and the bundle's operators
compiled with ``fullgraph=True``. Each is captured in a CUDA graph, so that no host is measured, and they take turns. The
default mode is also timed without a graph, as ``eager`` for both sides. A figure is the median of the rounds.

The shapes were listed before anything was measured. The results hold each of them, the geometric mean, and the worst.

    python -m aot build --arch sm90
    python benchmarks/llama_block.py dist/kernels --out benchmarks/results/h200-llama-block.json

max-autotune tries its kernels for about half a minute per shape. ``--tune`` does that alone, for some of the shapes if
``--shapes`` lists them, and several processes can do so at once. Torch keeps what it compiled in the folder that
``TORCHINDUCTOR_CACHE_DIR`` names, and a run with the same folder starts with that:

    python benchmarks/llama_block.py dist/kernels --tune --shapes llama-3-8b:1x1 llama-3-8b:64x1
    python benchmarks/llama_block.py dist/kernels --out benchmarks/results/h200-llama-block.json
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from _common import interleaved_medians, load_example, parser, print_rows, report

# Hidden size, heads, heads of keys, feed-forward size, bias: as the models' public configurations say.
MODELS = {
    "llama-3-8b": (4096, 32, 8, 14_336, False),
    "mistral-small-24b": (5120, 32, 8, 32_768, False),
    "qwen2.5-7b": (3584, 28, 4, 18_944, True),
}
# Sequences and their length: single tokens first, then prompts of round and odd lengths.
BATCHES = ((1, 1), (64, 1), (1, 1000), (4, 1024))
ROUNDS, SAMPLE_MS = 9, 20  # each sample replays as often as fits into that time
TOLERANCE = 0.02  # of the norm of the output: some roundings to bf16
AUTOTUNED = "max-autotune"


class Shape(NamedTuple):
    """A model, and the sequences that it gets."""

    model: str
    batch: int
    length: int

    def __str__(self) -> str:
        return f"{self.model}:{self.batch}x{self.length}"


SHAPES = [Shape(model, *sizes) for model, sizes in itertools.product(MODELS, BATCHES)]


def main() -> None:
    options = arguments().parse_args()
    listed = {str(shape): shape for shape in SHAPES}
    unknown = [name for name in options.shapes or () if name not in listed]
    if unknown:
        sys.exit(f"not a shape of this benchmark: {', '.join(unknown)}; they are {', '.join(listed)}")
    shapes = [listed[name] for name in options.shapes or listed]
    from python_call import torch_with_gpu

    torch = torch_with_gpu()
    import aot_runtime
    import aot_runtime.torch

    bundle = aot_runtime.load(options.bundle)
    bundle.preload()
    ops, example = aot_runtime.torch.register(bundle), load_example("llama_block", "block.py")
    prepared = []
    for shape in shapes:
        prepared.append((shape, prepare(torch, example, ops, shape, only=AUTOTUNED if options.tune else None)))
        print(f"{shape}: compiled", flush=True)
    if options.tune:
        return
    rows = []
    with held(options.lock):
        for shape, runs in prepared:
            rows.append(measure(shape, runs))
            print(rows[-1], flush=True)
    summary = summarize(rows)
    columns = ("model", "batch", "length", *(name for name in rows[0] if name.startswith("speedup")))
    print_rows(
        columns, [tuple(f"{row[name]:.3f}" if "speedup" in name else row[name] for name in columns) for row in rows]
    )
    for name, value in summary.items():
        print(f"{name}: {value:.3f}")
    report("llama_block", {"shapes": rows, "summary": summary}, options.out)


def arguments() -> Any:
    options = parser(__doc__)
    options.add_argument("bundle", type=Path, help="the shipped kernels")
    options.add_argument("--shapes", nargs="+", metavar="MODEL:BATCHxLENGTH", help="only these (default: all)")
    options.add_argument("--tune", action="store_true", help="only compile with max-autotune, for a later run")
    options.add_argument("--lock", type=Path, help="file to lock while measuring, if several programs share the GPU")
    return options


@contextlib.contextmanager
def held(path: Path | None) -> Iterator[None]:
    if path is None:
        yield
        return
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def prepare(
    torch: Any, example: ModuleType, ops: Any, shape: Shape, only: str | None = None
) -> dict[str, Callable[[], float]]:
    """Compile and capture the contenders, or one of them, on one shape. Returns what measures them."""
    model, options = example.Model(shape.model, *MODELS[shape.model]), {"device": "cuda", "dtype": torch.bfloat16}
    plain = example.Block(model, example.TorchLayers(), shape.batch, **options)
    ours = example.Block(model, example.BundleLayers(ops), shape.batch, **options)
    ours.load_state_dict(plain.state_dict(), assign=True)
    given = example.inputs(model, shape.batch, shape.length, **options)
    kinds = {
        "ours": (ours, {}),
        "torch.compile": (plain, {}),
        AUTOTUNED: (plain, {"mode": "max-autotune-no-cudagraphs"}),
    }
    with torch.no_grad():
        check(ours(*given), plain(*given))
        contenders = {
            name: torch.compile(separate(block), fullgraph=True, dynamic=False, **mode)
            for name, (block, mode) in kinds.items()
            if only in (None, name)
        }
        graphs = {name: example.captured(function, given)[0] for name, function in contenders.items()}
        runs = {name: timed(torch, graph.replay) for name, graph in graphs.items()}
        for name in ("ours", "torch.compile"):
            if name in contenders:
                runs[f"{name}, eager"] = timed(torch, torch.no_grad()(lambda call=contenders[name]: call(*given)))
    return runs


def separate(block: Any) -> Callable[..., Any]:
    """A function around the block with code of its own: torch keeps what it compiled by the code of a function."""

    def call(*given: Any) -> Any:
        return block(*given)

    return FunctionType(call.__code__.replace(), globals(), "block", None, call.__closure__)


def measure(shape: Shape, runs: Mapping[str, Callable[[], float]]) -> dict[str, Any]:
    """Milliseconds of each contender on one shape, and how many times faster ours is."""
    medians = interleaved_medians(runs, ROUNDS)
    return {**shape._asdict(), "milliseconds": medians, **speedups(medians)}


def check(results: Sequence[Any], expected: Sequence[Any]) -> None:
    for got, exact in zip(results, expected, strict=True):
        distance = float((got.float() - exact.float()).norm() / exact.float().norm())
        if not distance < TOLERANCE:
            sys.exit(f"the blocks differ by {distance:.3g} of the norm: nothing is measured")


def timed(torch: Any, call: Callable[[], Any]) -> Callable[[], float]:
    """Milliseconds per call. The first measurement only finds out how many calls a sample has."""
    calls = 0

    def run() -> float:
        nonlocal calls
        if calls == 0:
            calls = max(3, min(100, int(SAMPLE_MS / elapsed(3))))
        return elapsed(calls)

    def elapsed(count: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        call()
        start.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / count

    return run


def speedups(medians: Mapping[str, float]) -> dict[str, float]:
    """How many times the time of ours each contender takes, in CUDA graphs; and without them for the default mode."""
    return {
        "speedup over torch.compile": medians["torch.compile"] / medians["ours"],
        "speedup over max-autotune": medians["max-autotune"] / medians["ours"],
        "speedup over torch.compile, eager": medians["torch.compile, eager"] / medians["ours, eager"],
    }


def summarize(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The geometric mean and the worst of each speedup over all shapes."""
    summary = {}
    for name in (name for name in rows[0] if name.startswith("speedup")):
        values = [row[name] for row in rows]
        summary[f"{name}, mean"] = statistics.geometric_mean(values)
        summary[f"{name}, worst"] = min(values)
    return summary


if __name__ == "__main__":
    main()
