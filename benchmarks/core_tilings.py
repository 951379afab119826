"""Chooses the tilings of ``gemm`` that a build has without ``--tilings all``. Needs no GPU.

Models of ``kernels/tuning`` predict how long each tiling takes for products that a seed draws, on several Hopper GPUs. From
the general tiling on, the one is added that leaves the fewest products far behind all tilings; then each is exchanged as
long as that helps. The last lines are the labels for ``SM90_CORE`` in ``kernels/products/gemm.py``.

    python benchmarks/core_tilings.py --seed 778 --size 20
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np
from _common import PROJECT
from drawn import draw

GPUS = ("NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe")
GOAL = 0.93  # of the speed of all tilings; what is below counts, by the square and by the fourth power
NEVER = 1e30  # microseconds of a tiling that does not take a product


def predicted(tilings: Any, products: Any, part: Any, measured: Any, numbers: Any) -> Any:
    """Microseconds, by tiling and product."""
    from aot.bundle.details import WorkDetails
    from aot.model.times import counts_of, scaled, times_of
    from kernels.products.gemm import sm90_choice

    rows = []
    for tiling in tilings:
        work = WorkDetails(**vars(sm90_choice(tiling).work))
        times = times_of(scaled(numbers[tiling.label], measured, part), counts_of(work, products, part))
        takes = (products["m"] <= (tiling.rows or np.inf)) & (products["k"] >= tiling.least_k)
        rows.append(np.where(takes, times, NEVER))
    return np.array(rows)


def shortfall(times: Any, chosen: list[int]) -> float:
    """How far the chosen tilings are behind all of them."""
    behind = np.maximum(GOAL - times.min(0) / times[chosen].min(0), 0)
    return float((behind**2).sum() + 1000 * (behind**4).sum())


def choose(times: Any, size: int) -> list[int]:
    """The first tiling, and so many others that the shortfall is small."""
    chosen = [0]
    while len(chosen) < size:
        chosen.append(min(_others(times, chosen), key=lambda one: shortfall(times, [*chosen, one])))
    while (better := _exchanged(times, chosen)) is not None:
        chosen = better
    return sorted(chosen)


def _others(times: Any, chosen: list[int]) -> list[int]:
    return [one for one in range(len(times)) if one not in chosen]


def _exchanged(times: Any, chosen: list[int]) -> list[int] | None:
    now = shortfall(times, chosen)
    for leaving in chosen[1:]:
        rest = [one for one in chosen if one != leaving]
        best = min(_others(times, rest), key=lambda one: shortfall(times, [*rest, one]))
        if shortfall(times, [*rest, best]) < now:
            return [*rest, best]
    return None


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seed", type=int, required=True)
    arguments.add_argument("--count", type=int, default=2500, help="products (default: 2500)")
    arguments.add_argument("--size", type=int, default=20, help="tilings (default: 20)")
    given = arguments.parse_args()
    sys.path.insert(0, str(PROJECT))
    from aot.bundle.tables.models import read_source
    from aot.model.parts import Part, find_part
    from kernels.products.gemm import SM90_TILINGS

    models = read_source(PROJECT / "kernels" / "tuning" / "products.json")
    (numbers,) = (kernel.sets[0].numbers for kernel in models.models if kernel.kernel == "gemm")
    device = models.device
    measured = Part(device.name, device.capability, device.multiprocessors, device.bandwidth, models.clock)
    drawn = np.array([problem[2:] for problem in draw(given.seed, given.count)], dtype=float).T
    products = dict(zip("mnk", drawn, strict=True))
    parts = [find_part(name) for name in GPUS]
    times = np.concatenate([predicted(SM90_TILINGS, products, one, measured, numbers) for one in parts], axis=1)
    chosen = choose(times, given.size)
    ratios = times.min(0) / times[chosen].min(0)
    mean, low, worst = np.exp(np.log(ratios).mean()), np.quantile(ratios, 0.01), ratios.min()
    print(f"of {len(SM90_TILINGS)}: mean {mean:.3f}, 1 of 100 below {low:.3f}, worst {worst:.3f}")
    print("\n".join(SM90_TILINGS[one].label for one in chosen))


if __name__ == "__main__":
    main()
