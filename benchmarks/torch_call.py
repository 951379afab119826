"""What a kernel costs the host as an operator of torch, against the plain call and torch's own operator.

Needs a GPU, torch, and a bundle of the shipped kernels. Calls take the same small tensors, in turns, under
``torch.no_grad()``; the figures are medians of the host's time per call, in nanoseconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from _common import interleaved_medians, parser, print_rows, report
from python_call import per_call, torch_with_gpu

ROUNDS = 51


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("bundle", type=Path)
    options = arguments.parse_args()
    torch = torch_with_gpu()
    with torch.no_grad():
        medians = measure(torch, options.bundle)
    print_rows(("call", "ns"), list(medians.items()))
    report("torch_call", medians, options.out)


def measure(torch: Any, path: Path) -> dict[str, float]:
    import aot_runtime
    import aot_runtime.torch

    bundle = aot_runtime.load(path)
    plain = bundle["rmsnorm"]
    ops = aot_runtime.torch.register(bundle)
    x, out = (torch.ones(64, 256, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    weight = torch.ones(256, device="cuda", dtype=torch.bfloat16)

    def allocate_and_call() -> None:
        plain(x, weight, torch.empty_like(x))

    runs = {
        "the plain call": per_call(plain, x, weight, out),
        "ops.rmsnorm.out": per_call(lambda: ops.rmsnorm.out(x, weight, out=out)),
        "a lambda around the plain call": per_call(lambda: plain(x, weight, out)),
        "torch.empty_like and the plain call": per_call(allocate_and_call),
        "ops.rmsnorm": per_call(ops.rmsnorm, x, weight),
        "torch.ops.kernels.rmsnorm, through the dispatcher": per_call(torch.ops.kernels.rmsnorm.default, x, weight),
        "torch.nn.functional.rms_norm": per_call(lambda: torch.nn.functional.rms_norm(x, (256,), weight, 1e-6)),
    }
    medians = interleaved_medians(runs, ROUNDS)
    return {
        **medians,
        "out form over the plain call": medians["ops.rmsnorm.out"] - medians["a lambda around the plain call"],
        "functional form over torch.empty_like and the plain call": medians["ops.rmsnorm"]
        - medians["torch.empty_like and the plain call"],
    }


if __name__ == "__main__":
    main()
