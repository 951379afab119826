"""A decoder block with the operators of a bundle against the same block in plain torch, compiled by torch.compile.

Contenders are plain torch compiled in the default mode, plain torch compiled with max-autotune, and the bundle's operators
compiled with ``fullgraph=True``. Each is captured in a CUDA graph, so that no host is measured, and they take turns. The
default mode is also timed without a graph, as ``eager`` for both sides. A figure is the median of the rounds.

The shapes were listed before anything was measured. The results hold each of them, the geometric mean, and the worst.

    python -m aot build --arch sm90
    python benchmarks/llama_block.py dist/kernels --out benchmarks/results/h200-llama-block.json
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from _common import PROJECT, interleaved_medians, parser, print_rows, report

# Hidden size, heads, heads of keys, feed-forward size, bias: as the models' public configurations say.
MODELS = {
    "llama-3-8b": (4096, 32, 8, 14_336, False),
    "mistral-small-24b": (5120, 32, 8, 32_768, False),
    "qwen2.5-7b": (3584, 28, 4, 18_944, True),
}
# Sequences and their length: single tokens first, then prompts of round and odd lengths. The list is short because
# max-autotune compiles each shape for some twenty seconds.
BATCHES = ((1, 1), (64, 1), (1, 1000), (4, 1024))
ROUNDS, REPLAYS = 7, 20
TOLERANCE = 0.02  # of the norm of the output: some roundings to bf16


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("bundle", type=Path, help="the shipped kernels")
    options = arguments.parse_args()
    from python_call import torch_with_gpu

    torch = torch_with_gpu()
    import aot_runtime
    import aot_runtime.torch

    bundle = aot_runtime.load(options.bundle)
    bundle.preload()
    ops, example = aot_runtime.torch.register(bundle), load_example()
    rows = []
    for model, (batch, length) in itertools.product(models(example), BATCHES):
        rows.append(measure(torch, example, ops, model, batch, length))
        print(rows[-1], flush=True)
    summary = summarize(rows)
    columns = ("model", "batch", "length", *(name for name in rows[0] if name.startswith("speedup")))
    print_rows(columns, [tuple(row[column] for column in columns) for row in rows])
    for name, value in summary.items():
        print(f"{name}: {value:.3f}")
    report("llama_block", {"shapes": rows, "summary": summary}, options.out)


def load_example() -> ModuleType:
    """``examples/llama_block/block.py``, which is in no package."""
    path = PROJECT / "examples" / "llama_block" / "block.py"
    spec = importlib.util.spec_from_file_location("llama_block_example", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def models(example: ModuleType) -> list[Any]:
    return [example.Model(name, *extents) for name, extents in MODELS.items()]


def measure(torch: Any, example: ModuleType, ops: Any, model: Any, batch: int, length: int) -> dict[str, Any]:
    """Milliseconds of each contender on one shape, and how many times faster ours is."""
    options = {"device": "cuda", "dtype": torch.bfloat16}
    torch._dynamo.reset()  # every shape is compiled by itself, for all contenders
    plain = example.Block(model, example.TorchLayers(), batch, **options)
    ours = example.Block(model, example.BundleLayers(ops), batch, **options)
    ours.load_state_dict(plain.state_dict())
    arguments = example.inputs(model, batch, length, **options)
    with torch.no_grad():
        check(ours(*arguments), plain(*arguments))
        contenders = {
            "ours": torch.compile(ours, fullgraph=True),
            "torch.compile": torch.compile(plain, fullgraph=True),
            "max-autotune": torch.compile(plain, fullgraph=True, mode="max-autotune-no-cudagraphs"),
        }
        graphs = {name: example.captured(function, arguments)[0] for name, function in contenders.items()}
        runs = {name: timed(torch, graph.replay) for name, graph in graphs.items()}
        for name in ("ours", "torch.compile"):
            runs[f"{name}, eager"] = timed(torch, lambda call=contenders[name]: call(*arguments))
        medians = interleaved_medians(runs, ROUNDS)
    return {"model": model.name, "batch": batch, "length": length, "milliseconds": medians, **speedups(medians)}


def check(results: Sequence[Any], expected: Sequence[Any]) -> None:
    for got, exact in zip(results, expected, strict=True):
        distance = float((got.float() - exact.float()).norm() / exact.float().norm())
        if not distance < TOLERANCE:
            sys.exit(f"the blocks differ by {distance:.3g} of the norm: nothing is measured")


def timed(torch: Any, call: Callable[[], Any]) -> Callable[[], float]:
    def run() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        call()
        start.record()
        for _ in range(REPLAYS):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / REPLAYS

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
        summary[f"{name}, mean"] = math.exp(sum(map(math.log, values)) / len(values))
        summary[f"{name}, worst"] = min(values)
    return summary


if __name__ == "__main__":
    main()
