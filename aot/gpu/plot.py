"""Draws results of ``bench`` as bars in plain SVG, without a plotting library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .bench import Result

__all__ = ["plot"]

_BAR, _GAP, _LEFT, _WIDTH, _TOP = 11, 9, 330, 420, 44
_COLOURS = {"aot": "#2b6cb0", "torch": "#dd6b20", "torch.compile": "#a0aec0"}


def plot(gpu: str, results: Sequence[Result]) -> str:
    """Bandwidth relative to a copy; for kernels that are measured by operations, speed relative to torch."""
    of_bytes = [result for result in results if not result.counts_operations]
    of_operations = [result for result in results if result.counts_operations and "torch" in result.microseconds]
    parts = _legend(gpu, results)
    y = float(_TOP)
    for title, chosen, measure in (
        ("bandwidth as a fraction of a copy's", of_bytes, _of_copy),
        ("speed as a multiple of torch's own", of_operations, _of_torch),
    ):
        if chosen:
            drawn, y = _section(title, chosen, measure, y)
            parts += drawn
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 60}" height="{y:.0f}" '
        'font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join((head, *parts, "</svg>")) + "\n"


def _of_copy(result: Result) -> dict[str, float]:
    return {name: result.bytes / time * 1e6 / result.copy_bandwidth for name, time in _shown(result).items()}


def _of_torch(result: Result) -> dict[str, float]:
    return {name: result.microseconds["torch"] / time for name, time in _shown(result).items()}


def _shown(result: Result) -> Mapping[str, float]:
    return {name: result.microseconds[name] for name in _COLOURS if name in result.microseconds}


def _legend(gpu: str, results: Sequence[Result]) -> list[str]:
    names = [name for name in _COLOURS if any(name in result.microseconds for result in results)]
    parts = [_text(8, 18, gpu, "start", 13)]
    for i, name in enumerate(names):
        parts.append(_rectangle(_LEFT + i * 110, 9, 10, name))
        parts.append(_text(_LEFT + i * 110 + 14, 18, name, "start"))
    return parts


def _section(
    title: str, results: Sequence[Result], measure: Callable[[Result], dict[str, float]], y: float
) -> tuple[list[str], float]:
    """A title, its bars and a line at 1; also returns the y coordinate of the next section."""
    measured = [(result, measure(result)) for result in results]
    scale = _WIDTH / max(1.0, *(value for _, values in measured for value in values.values()), 1.0)
    parts, top = [_text(8, y, title, "start", 12)], y + 6
    y = top + 6
    for result, values in measured:
        label = f"{result.label}, {result.arguments.split(',')[0]}"
        parts.append(_text(_LEFT - 8, y + len(values) * _BAR / 2 + 4, label, "end"))
        for name, value in values.items():
            parts.append(_rectangle(_LEFT, y, value * scale, name))
            parts.append(_text(_LEFT + value * scale + 4, y + _BAR - 2, f"{value:.2f}", "start"))
            y += _BAR
        y += _GAP
    x = _LEFT + scale
    line = f'<line x1="{x:.1f}" y1="{top:.1f}" x2="{x:.1f}" y2="{y:.1f}" stroke="#718096" stroke-dasharray="3 3"/>'
    return [*parts, line], y + 20


def _rectangle(x: float, y: float, width: float, name: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_BAR - 1}" fill="{_COLOURS[name]}"/>'


def _text(x: float, y: float, text: str, anchor: str, size: int = 10) -> str:
    safe = text.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{safe}</text>'
