"""Tokens per second of `examples/decode_loop`, beside the same model with torch's own attention, and with torch alone.

A step appends one token to each sequence and is one replay of a CUDA graph. The caches are filled up to a few tokens less
than their capacity, so that torch's attention, which sees a fixed capacity through a mask, has little to skip. Contenders
take turns, and the median of the rounds counts.

    python -m aot build --arch sm90 --family all
    python benchmarks/decode_loop.py dist/kernels --out benchmarks/results/h200-decode-loop.json
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from _common import interleaved_medians, load_example, parser, print_rows, report

# Sequences, and tokens that each cache has room for. The model is Llama 3 8B with four of its 32 layers.
PROBLEMS = ((1, 8192), (16, 8192), (64, 4096), (256, 1024))
ROUNDS, STEPS = 5, 20


def contenders(example: ModuleType, kernels: Any, batch: int, capacity: int) -> dict[str, Any]:
    """Decoders by name. They have the same weights, and caches of random numbers."""
    import torch

    options = {"device": "cuda", "dtype": torch.bfloat16}
    model = example.Model(32_000, 4096, 4, 32, 8, 128, 14_336)
    weights, tokens = model.weights(torch.bfloat16, "cuda"), torch.arange(batch, device="cuda")
    paged = example.PagedAttention(kernels, model, batch, capacity, page=64, **options)
    for caches in paged.caches:
        for cache in caches:
            cache.normal_()
    plain = example.TorchAttention(model, batch, capacity, **options)
    plain.cache.normal_()
    bundle, torch_layers = example.BundleLayers(kernels), example.TorchLayers()
    made = {"bundle": (bundle, paged), "torch's attention": (bundle, plain), "torch": (torch_layers, plain)}
    return {name: example.Decoder(model, weights, *parts, tokens) for name, parts in made.items()}


def timer(example: ModuleType, decoder: Any, length: int) -> Callable[[], float]:
    """Tokens per second of some steps."""
    import torch

    graph, _ = example.captured(decoder)

    def timed() -> float:
        decoder.lengths.fill_(length)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(STEPS):
            graph.replay()
        end.record()
        end.synchronize()
        return STEPS * len(decoder.tokens) / start.elapsed_time(end) * 1000

    return timed


def measure(example: ModuleType, kernels: Any, batch: int, capacity: int) -> dict[str, float]:
    import torch

    with torch.no_grad():
        decoders = contenders(example, kernels, batch, capacity)
        timers = {name: timer(example, decoder, capacity - STEPS) for name, decoder in decoders.items()}
        return interleaved_medians(timers, ROUNDS)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("bundle", type=Path, help="the shipped kernels, with the family `attention`")
    given = arguments.parse_args()
    from python_call import torch_with_gpu

    torch_with_gpu()
    import aot_runtime

    kernels, example = aot_runtime.load(given.bundle), load_example("decode_loop", "decoder.py")
    kernels.preload()
    results = {}
    for batch, capacity in PROBLEMS:
        speeds = measure(example, kernels, batch, capacity)
        results[f"{batch} sequences of {capacity} tokens"] = {name: round(speed) for name, speed in speeds.items()}
    names = tuple(next(iter(results.values())))
    print_rows(("tokens/s", *names), [(problem, *speeds.values()) for problem, speeds in results.items()])
    report("decode_loop", {"unit": "tokens per second", "layers": 4, "speeds": results}, given.out)


if __name__ == "__main__":
    main()
