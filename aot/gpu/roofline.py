"""A roofline as plain SVG: how fast each problem ran, against what the memory allows for its operations per byte."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10

from .bench import Result

__all__ = ["roofline"]

_WIDTH, _HEIGHT = 720, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 30, 14, 46


class _Axis:
    """Powers of ten between two ends of a line."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low, self.high = floor(log10(min(values))), ceil(log10(max(values)))
        self.high += self.high == self.low
        self.start, self.end = start, end

    def place(self, value: float) -> float:
        return self.start + (log10(value) - self.low) / (self.high - self.low) * (self.end - self.start)

    @property
    def ticks(self) -> list[int]:
        return list(range(self.low, self.high + 1))


def roofline(results: Sequence[Result]) -> str:
    """Empty if no problem has both operations and bytes.

    The slope is the bandwidth of a copy, measured beside the kernels. The flat roof of the arithmetic units is not
    measured; the fastest kernel stands for it.
    """
    shown = [result for result in results if result.operations > 0 and result.bytes > 0]
    if not shown:
        return ""
    # Terabytes per second: TFLOP/s by operations per byte.
    bandwidth = max(result.copy_bandwidth for result in shown) / 1e12
    best = max(result.teraflops for result in shown)
    x = _Axis([result.operations / result.bytes for result in shown], _LEFT, _WIDTH - _RIGHT)
    y = _Axis([result.teraflops for result in shown] + [bandwidth * 10**x.low], _HEIGHT - _BOTTOM, _TOP)
    parts = [*_grid(x, y), *_roof(x, y, bandwidth, best)]
    for result in shown:
        at = (x.place(result.operations / result.bytes), y.place(result.teraflops))
        text = f"{result.label}: {result.arguments}: {result.teraflops:.3g} TFLOP/s, {result.bandwidth / 1e9:.0f} GB/s"
        parts.append(f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="4"><title>{escape(text)}</title></circle>')
    return f'<svg class="roofline" role="img" viewBox="0 0 {_WIDTH} {_HEIGHT}">{"".join(parts)}</svg>'


def _grid(x: _Axis, y: _Axis) -> list[str]:
    parts = []
    for power in x.ticks:
        at = x.place(10.0**power)
        parts.append(f'<line class="grid" x1="{at:.1f}" y1="{y.start}" x2="{at:.1f}" y2="{y.end}"/>')
        parts.append(f'<text x="{at:.1f}" y="{y.start + 18}" text-anchor="middle">{_power(power)}</text>')
    for power in y.ticks:
        at = y.place(10.0**power)
        parts.append(f'<line class="grid" x1="{x.start}" y1="{at:.1f}" x2="{x.end}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{x.start - 6}" y="{at + 4:.1f}" text-anchor="end">{_power(power)}</text>')
    middle = (x.start + x.end) / 2
    parts.append(f'<text x="{middle:.0f}" y="{y.start + 38}" text-anchor="middle">operations per byte</text>')
    parts.append(
        f'<text transform="translate(14 {(y.start + y.end) / 2:.0f}) rotate(-90)" text-anchor="middle">TFLOP/s</text>'
    )
    return parts


def _power(power: int) -> str:
    return f"{10.0**power:g}"


def _roof(x: _Axis, y: _Axis, bandwidth: float, best: float) -> list[str]:
    """The slope of the memory up to where it meets the fastest kernel, and a flat line from there."""
    knee = min(max(best / bandwidth, 10.0**x.low), 10.0**x.high)
    points = [(10.0**x.low, bandwidth * 10.0**x.low), (knee, bandwidth * knee)]
    if knee < 10.0**x.high:
        points.append((10.0**x.high, best))
    path = " ".join(f"{x.place(a):.1f},{y.place(min(b, 10.0**y.high)):.1f}" for a, b in points)
    label = f"a copy: {bandwidth:.2f} TB/s; fastest kernel: {best:.3g} TFLOP/s"
    return [
        f'<polyline class="roof" points="{path}"/>',
        f'<text x="{x.start + 10}" y="{y.end + 14}">{escape(label)}</text>',
    ]
