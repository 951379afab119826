"""The page: what each kernel computes, its plot, where it ran, its declaration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.gallery.comparisons import Comparison, comparisons
from tools.gallery.plot import plot
from tools.kernel_page import PROJECT, TITLES, declared_in, listed, prose

PAGE = PROJECT / "docs" / "gallery.md"
PLOTS = PROJECT / "docs" / "assets" / "gallery"

HEAD = """# Gallery

Every shipped kernel: what it computes, how fast it is beside the best contender, and where that was seen.
`python tools/reference.py` writes this page and its plots from the declarations and from
[`benchmarks/results`](../benchmarks/results).

In a plot each dot is one problem. Right of 1 ours is faster than the fastest contender of that problem; orange dots are more
than 5% behind. The thick line is the geometric mean. [Performance](performance.md) says how it was measured and what the
figures do not say.
"""


def pages() -> dict[Path, str]:
    """Every file of the gallery."""
    by_kernel: dict[str, list[Comparison]] = {}
    for one in comparisons():
        by_kernel.setdefault(one.kernel, []).append(one)
    kernels = listed()
    sections = [
        f"## {title}\n\n" + "\n".join(_entry(own, by_kernel.get(own["name"], ())) for own in members)
        for family, title in TITLES.items()
        if (members := [own for own in kernels if own["family"] == family])
    ]
    plots = {PLOTS / f"{name}.svg": plot(name, own) for name, own in by_kernel.items()}
    return {PAGE: HEAD + "\n" + "\n".join(sections), **plots}


def _entry(kernel: dict[str, Any], compared: Sequence[Comparison]) -> str:
    name, origin = kernel["name"], declared_in(kernel)
    links = f"[Parameters](reference/kernels.md#{name}), [declaration](../{origin})."
    return f"### `{name}`\n\n{prose(kernel['doc'])}\n\n{_speed(name, compared)}\n\n{links}\n"


def _speed(name: str, compared: Sequence[Comparison]) -> str:
    if not compared:
        return "Not timed beside a contender. [What is proven](proven.md) says where it ran."
    lines = [f"![Speed of {name} relative to the best contender](assets/gallery/{name}.svg)\n"]
    lines += [f"* {_sentence(one)}" for one in compared]
    return "\n".join(lines)


def _sentence(one: Comparison) -> str:
    label = f"{one.label}: " if one.label else ""
    behind = sum(ratio < 0.95 for ratio in one.ratios.values())
    return (
        f"{label}{one.mean:.2f} of {' and '.join(one.contenders)} in the mean of {len(one.ratios)} problems, {behind} below 0.95, "
        f"worst {one.ratios[one.worst]:.2f} ({one.worst}). {one.gpu}, "
        f"[`{one.file}`](../benchmarks/results/{one.file}) at {one.commit[:7]}."
    )
