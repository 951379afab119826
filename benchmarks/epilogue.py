"""What an epilogue fused into the shipped GEMM costs on a GPU, relative to the product alone and to torch.

Needs a GPU, torch, and a bundle of the shipped kernels. Inputs are normally distributed random bf16, row-major, in
enough sets to exceed the L2 cache. All contenders run in one process, in random order in each round.
"""

from __future__ import annotations

from pathlib import Path

from _common import parser, print_rows, report

SIZES, ROUNDS = (2048, 4096, 8192), 41
EPILOGUES = ("identity", "relu", "gelu", "silu")


def measure(bundle: Path, size: int) -> dict[str, float]:
    """Microseconds of a product of ``size`` cubed, by epilogue, and of torch's product."""
    import aot_runtime
    import torch

    from aot.gpu.bench import cache_bytes, copies_beyond, graph_timer, shuffled_medians

    gemm = aot_runtime.load(bundle)["gemm"]
    sets = copies_beyond(cache_bytes("cuda"), 3 * 2 * size * size)
    a, b, out = (torch.randn(3, sets, size, size, device="cuda", dtype=torch.bfloat16)).unbind(0)
    timers = {"torch.mm": graph_timer(lambda i: torch.mm(a[i], b[i].T, out=out[i]), sets)}
    for epilogue in EPILOGUES:
        timers[epilogue] = graph_timer(lambda i, own=epilogue: gemm(a[i], b[i], out[i], epilogue=own), sets)
    return shuffled_medians(timers, ROUNDS)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("bundle", type=Path)
    given = arguments.parse_args()
    rows, results = [], {}
    for size in SIZES:
        times = measure(given.bundle, size)
        cost = {name: round(100 * (times[name] / times["identity"] - 1), 1) for name in EPILOGUES[1:]}
        results[str(size)] = {"microseconds": times, "cost of the epilogue, %": cost}
        rows.append((f"{size} cubed", times["torch.mm"], times["identity"], *(f"{cost[name]:+} %" for name in cost)))
    print_rows(("problem", "torch.mm, us", "gemm, us", *EPILOGUES[1:]), rows)
    report("gemm_epilogue", results, given.out)


if __name__ == "__main__":
    main()
