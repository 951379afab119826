"""One plot as SVG: a dot for each problem, along an axis of ratios, with the mean and the line where both are level."""

from __future__ import annotations

import math
from collections.abc import Iterable
from xml.sax.saxutils import escape

from tools.gallery.comparisons import Comparison

WIDTH, STRIP, LEFT, RIGHT, AXIS = 640, 54, 170, 16, 26
_TICKS = (0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0)
_LEAST, _MOST = _TICKS[0], _TICKS[-1]
# A picture is shown on light and on dark pages; a browser tells which through this query.
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f } .level { stroke: #57606a } .grid { stroke: #d0d7de }
circle { fill: #0969da; fill-opacity: .45 } circle.behind { fill: #bc4c00; fill-opacity: .8 } .mean { stroke: #24292f; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .level { stroke: #9198a1 } .grid { stroke: #3d444d } .mean { stroke: #e6edf3 }
  circle { fill: #4493f8 } circle.behind { fill: #f0883e }
}
"""


def plot(kernel: str, compared: Iterable[Comparison]) -> str:
    strips = list(compared)
    height = STRIP * len(strips) + AXIS
    parts = [_axis(height), *(_strip(one, index * STRIP) for index, one in enumerate(strips))]
    title = f"{kernel}: speed relative to the best contender, one dot for each problem; right of 1, ours is faster"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n{''.join(parts)}</svg>\n"
    )


def _axis(height: int) -> str:
    bottom = height - AXIS
    lines = [
        f'<line class="{"level" if tick == 1 else "grid"}" x1="{_x(tick):.1f}" x2="{_x(tick):.1f}" y1="4" y2="{bottom}"/>\n'
        f'<text x="{_x(tick):.1f}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>\n'
        for tick in _TICKS
    ]
    return "".join(lines)


def _strip(one: Comparison, top: int) -> str:
    middle = top + STRIP / 2
    dots = [
        f'<circle{" class=" + chr(34) + "behind" + chr(34) if ratio < 0.95 else ""} cx="{_x(ratio):.1f}"'
        f' cy="{middle + _scatter(index):.1f}" r="3"/>\n'
        for index, ratio in enumerate(sorted(one.ratios.values()))
    ]
    at = f'x1="{_x(one.mean):.1f}" x2="{_x(one.mean):.1f}" y1="{top + 8}" y2="{top + STRIP - 8}"'
    return (
        f'<text x="0" y="{middle - 3:.0f}">{escape(one.label or one.kernel)}</text>\n'
        f'<text x="0" y="{middle + 13:.0f}">mean {one.mean:.2f}, worst {min(one.ratios.values()):.2f}</text>\n'
        f'{"".join(dots)}<line class="mean" {at}/>\n'
    )


def _x(ratio: float) -> float:
    """Ratios are compared by factors, so the axis is logarithmic; what lies outside stands at its end."""
    share = math.log(min(max(ratio, _LEAST), _MOST) / _LEAST) / math.log(_MOST / _LEAST)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _scatter(index: int) -> float:
    """Dots of like ratios lie beside each other, the same way in every run."""
    return (index * 7 % 11 - 5) * 2.4
