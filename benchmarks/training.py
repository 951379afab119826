"""Gradients and steps of training beside torch's: rows, products, the loss of a large vocabulary, and `examples/train_decoder`.

Contenders take turns in one process, and the median of the rounds counts. Parts are written as they are measured, and a part
that is measured again replaces the former one.

    python -m aot build --arch sm90 --family all
    python benchmarks/training.py dist/kernels --out benchmarks/results/h200-training.json
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import combinations, count
from pathlib import Path
from statistics import mean, median
from typing import Any

from _common import PROJECT, interleaved_medians, parser, print_rows, report
from _timers import medians
from gemm_shapes import Problem, read_problems

ROUNDS, FEW_ROUNDS = 5, 3
ROWS = (16_384, 4096)
LOSSES = ((8192, 4096, 128_256), (16_384, 2048, 32_000))  # tokens, k, words
TURN, RATE = 4, 1e-4  # steps of an engine before the other has its turn, and their learning rate
STEPS, LONG_STEPS = 500, 10_000
# What the curves of losses are of: the model of a billion parameters, with few tokens a step, so that 500 steps are short.
CURVES = ("--model", "1b", "--batch", "2", "--length", "2048", "--steps", str(STEPS))
TINY = ("--model", "tiny", "--batch", "2", "--length", "256", "--rate", "1e-3", "--steps", str(LONG_STEPS))


def milliseconds(run: Callable[[], Any], count: int) -> Callable[[], float]:
    """A function that measures one call of ``run``, of ``count`` in a row."""
    import torch

    def measure() -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(count):
            run()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / count

    run()
    torch.cuda.synchronize()
    return measure


def bf16(*shape: int, scale: float = 1.0) -> Any:
    import torch

    return (torch.randn(*shape, device="cuda") * scale).bfloat16()


def rows(ops: Any) -> dict[str, Any]:
    """Bandwidth of gradients of norms, in TB/s, beside that of a copy."""
    m, n = ROWS
    x, grad, other, weight = bf16(m, n), bf16(m, n), bf16(m, n), bf16(n)
    runs = {
        "rmsnorm_backward": (lambda: ops.rmsnorm_backward(grad, x, weight), 3),
        "rmsnorm_residual_backward": (lambda: ops.rmsnorm_residual_backward(grad, other, x, weight), 4),
        "a copy": (lambda: other.copy_(x), 2),
    }
    times = interleaved_medians({name: milliseconds(run, 50) for name, (run, _) in runs.items()}, ROUNDS)
    return {name: round(moved * x.numel() * 2 / times[name] / 1e9, 2) for name, (_, moved) in runs.items()}


def products(ops: Any) -> dict[str, Any]:
    """Microseconds of the reported products and of both of their gradients, ours and cuBLAS's, in CUDA graphs."""
    gc.freeze()  # torch collects garbage before each graph: it need not look at what is here already
    found = {f"{p.m} x {p.n} x {p.k}": product(ops, p) for p in read_problems("gemm_report")}
    return {
        "columns": list(next(iter(found.values()))),
        "times": {name: [*one.values()] for name, one in found.items()},
    }


def product(ops: Any, problem: Problem) -> dict[str, float]:
    from aot.gpu.bench import cache_bytes, copies_beyond

    m, n, k = problem.m, problem.n, problem.k
    sets = min(copies_beyond(cache_bytes("cuda"), problem.bytes), 8)
    xs, weights, grads = ([bf16(*shape) for _ in range(sets)] for shape in ((m, k), (n, k), (m, n)))
    runs = {
        "forward, bundle": lambda i: ops.gemm(xs[i], weights[i]),
        "forward, cuBLAS": lambda i: xs[i] @ weights[i].mT,
        "by x, bundle": lambda i: ops.gemm(grads[i], weights[i].mT),
        "by x, cuBLAS": lambda i: grads[i] @ weights[i],
        "by weight, bundle": lambda i: ops.gemm(grads[i].mT, xs[i].mT),
        "by weight, cuBLAS": lambda i: grads[i].mT @ xs[i],
    }
    times = medians(runs, "graph", sets, problem.calls, FEW_ROUNDS)
    return {name: round(time, 2) for name, time in times.items()}


def losses(ops: Any) -> dict[str, Any]:
    """Milliseconds and extra gigabytes of a loss with both gradients."""
    import torch
    from torch.nn import functional

    def plain(x: Any, weight: Any, target: Any) -> Any:
        return functional.cross_entropy(functional.linear(x, weight).float(), target)

    makers = {
        "bundle": lambda x, weight, target: ops.linear_cross_entropy(x, weight, target)[0],
        "torch": plain,
        "torch.compile": torch.compile(plain),
    }
    return {f"{m} tokens x {k} x {n} words": loss_steps(makers, m, k, n) for m, k, n in LOSSES}


def loss_steps(makers: dict[str, Callable[..., Any]], m: int, k: int, n: int) -> dict[str, Any]:
    import torch

    x, weight = bf16(m, k).requires_grad_(), bf16(n, k, scale=k**-0.5).requires_grad_()
    target = torch.randint(n, (m,), device="cuda")

    def step(loss: Callable[..., Any]) -> None:
        x.grad = weight.grad = None
        loss(x, weight, target).backward()

    runs = {name: partial(step, make) for name, make in makers.items()}
    times = interleaved_medians({name: milliseconds(run, 3) for name, run in runs.items()}, ROUNDS)
    return {
        name: {"ms": round(times[name], 2), "extra GB": round(extra_gigabytes(run, x, weight), 3)}
        for name, run in runs.items()
    }


def extra_gigabytes(run: Callable[[], Any], *leaves: Any) -> float:
    """The most memory that a step has at a time, beyond its inputs and their gradients."""
    import torch

    for leaf in leaves:
        leaf.grad = None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    gradients = sum(leaf.numel() * leaf.element_size() for leaf in leaves)
    return float(torch.cuda.max_memory_allocated() - before - gradients) / 1e9


def trained(bundle: Path, *words: str) -> dict[str, Any]:
    """What a run of the example wrote. Its own lines go to standard error."""
    program = PROJECT / "examples" / "train_decoder" / "train.py"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(program), str(bundle), "--out", folder, "--every", "0", *words]
        subprocess.run(command, check=True, stdout=sys.stderr)
        found: dict[str, Any] = json.loads((Path(folder) / "results.json").read_text())
    return next(iter(found.values()))


ENGINES = {"bundle": (), "torch.compile": ("--engine", "torch", "--compile")}


def decoder(bundle: Path) -> dict[str, Any]:
    """Tokens per second of a model of a billion parameters, and seconds until its first step is done in a new process."""
    speeds, found = in_turns(warm_steps(bundle)), {}
    for name, words in ENGINES.items():
        one = trained(bundle, "--model", "1b", "--steps", "2", *words)
        found[name] = {
            "tokens per second": speeds[name],
            "imports": round(one["import_seconds"], 2),
            "first step after the start": round(one["first_step_after_start"], 2),
            "gigabytes": round(one["memory"] / 1e9, 1),
        }
    return found


def warm_steps(bundle: Path, names: Iterable[str] = ("torch.compile", "bundle")) -> dict[str, Callable[[], float]]:
    """For each engine, a function that takes a step and returns tokens per second."""
    import torch

    sys.path.insert(0, str(PROJECT / "examples" / "train_decoder"))
    import train

    given = train.options([str(bundle), "--model", "1b", "--compile"])
    batches = train.Batches(train.read_text(), given.batch, given.length, given.seed)

    def steps(engine: str) -> Callable[[], float]:
        trainer, numbers = train.Trainer(engine, given), count(1)

        def step() -> float:
            data = batches.step(next(numbers))
            torch.cuda.synchronize()
            start = time.perf_counter()
            trainer.step(*data, RATE)
            return given.batch * given.length / (time.perf_counter() - start)

        for _ in range(train.EAGER_STEPS + 2):
            step()
        return step

    return {name: steps(name.partition(".")[0]) for name in names}


def in_turns(engines: dict[str, Callable[[], float]]) -> dict[str, int]:
    """Tokens per second of engines that take turns, because a GPU that gets warm slows down."""

    def turn(step: Callable[[], float]) -> float:
        return median([step() for _ in range(TURN)][1:])

    found = interleaved_medians({name: partial(turn, step) for name, step in engines.items()}, FEW_ROUNDS + 1)
    return {name: round(speed) for name, speed in found.items()}


def curves(bundle: Path) -> dict[str, Any]:
    """How far losses of the same steps are apart: those of a bundle, of torch, and of torch.compile. All run at once."""
    engines = {**ENGINES, "torch": ("--engine", "torch")}
    with ThreadPoolExecutor() as pool:
        running = {name: pool.submit(trained, bundle, *CURVES, *words) for name, words in engines.items()}
    losses = {name: run.result()["losses"] for name, run in running.items()}
    return {
        "command": " ".join(CURVES),
        "losses": {name: [round(loss, 4) for loss in one[:: STEPS // 25]] for name, one in losses.items()},
        "distances": {f"{a} and {b}": distance(losses[a], losses[b]) for a, b in combinations(losses, 2)},
    }


def distance(one: list[float], other: list[float]) -> dict[str, float]:
    """Of two curves: the mean over all steps, over the last fifth of them, and the largest."""
    apart = [abs(a - b) for a, b in zip(one, other, strict=True)]
    late = apart[-len(apart) // 5 :]
    return {"mean": round(mean(apart), 5), "last fifth": round(mean(late), 5), "largest": round(max(apart), 5)}


def memory(bundle: Path) -> dict[str, Any]:
    """Bytes that many steps of a small model keep, after each tenth of them."""
    found = trained(bundle, *TINY)
    return {"command": " ".join(TINY), "on the GPU": found["allocated"], "on the host": found["resident"]}


PARTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "rows": rows, "products": products, "losses": losses, "decoder": decoder, "curves": curves, "memory": memory,
}  # fmt: skip
OF_OPERATORS = ("rows", "products", "losses")  # the others start the example


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("bundle", type=Path)
    arguments.add_argument("--part", action="append", choices=PARTS, help="only these; repeatable")
    options = arguments.parse_args()
    wanted = options.part or list(PARTS)
    results = json.loads(options.out.read_text())["results"] if options.out and options.out.exists() else {}
    ops = operators(options.bundle) if set(OF_OPERATORS) & set(wanted) else None
    for part in wanted:
        results[part] = PARTS[part](ops if part in OF_OPERATORS else options.bundle)
        print_rows((part, "measured"), [(name, str(value)) for name, value in results[part].items()])
        report("training", results, options.out, quiet=True)


def operators(bundle: Path) -> Any:
    import aot_runtime
    import aot_runtime.torch

    return aot_runtime.torch.register(aot_runtime.load(bundle))


if __name__ == "__main__":
    main()
