"""Errors of exact products of f32, of ours and of cuBLAS', against the product in f64.

Needs a GPU, torch, and a bundle with the family `f32`. The error is that of the whole output by its norm, and that of the
worst element relative to the largest. Numbers are normally distributed; or all of the same sign, so that sums grow with k; or
of very different sizes.

    python benchmarks/f32_errors.py dist/kernels
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from _common import parser, report

M, N = 256, 512
DEPTHS = (64, 512, 4096, 16384, 65536)
SEED = 5


def drawn() -> dict[str, Callable[[int, int], Any]]:
    import torch

    own = {"device": "cuda", "generator": torch.Generator("cuda").manual_seed(SEED)}
    normal = lambda rows, columns: torch.randn(rows, columns, **own)  # noqa: E731
    return {
        "normal": normal,
        "from 0 to 1": lambda rows, columns: torch.rand(rows, columns, **own),
        "of very different sizes": lambda rows, columns: normal(rows, columns) * (4 * normal(rows, columns)).exp(),
    }


def errors(found: Any, exact: Any) -> list[float]:
    """By norm, and of the worst element relative to the largest."""
    difference = found.double() - exact
    both = difference.norm() / exact.norm(), difference.abs().max() / exact.abs().max()
    return [float(f"{float(error):.3g}") for error in both]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("bundle", type=Path)
    given = arguments.parse_args()
    import aot_runtime
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    bundle, rows = aot_runtime.load(given.bundle), []
    for k in DEPTHS:
        for name, draw in drawn().items():
            a, b, out = draw(M, k), draw(N, k), torch.empty(M, N, device="cuda")
            bundle["gemm_f32"](a, b, out)
            exact = a.double() @ b.double().T
            rows.append([k, name, *errors(out, exact), *errors(a @ b.T, exact)])
            print(*rows[-1], sep=", ")
    columns = ["k", "numbers", "aot, by norm", "aot, worst", "cuBLAS, by norm", "cuBLAS, worst"]
    report("f32_errors", {"m": M, "n": N, "columns": columns, "rows": rows}, given.out)


if __name__ == "__main__":
    main()
