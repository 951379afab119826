"""Curves of the loss as an SVG."""

from __future__ import annotations

from html import escape
from pathlib import Path

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 900, 420, 60, 40, 30
COLORS = ("#1f6feb", "#d9480f", "#2b8a3e")


def plot(curves: dict[str, list[float]], path: Path) -> None:
    """Write one line per curve, from step 1 on."""
    values = [value for curve in curves.values() for value in curve]
    if not values:
        return
    low, high = min(values), max(values)
    longest = max(map(len, curves.values()))

    def place(step: int, value: float) -> str:
        x = LEFT + (WIDTH - LEFT - 20) * step / max(longest - 1, 1)
        y = TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / max(high - low, 1e-9)
        return f"{x:.1f},{y:.1f}"

    lines = []
    for i, (name, curve) in enumerate(curves.items()):
        color, points = COLORS[i % len(COLORS)], " ".join(place(step, value) for step, value in enumerate(curve))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5" opacity="0.8"/>')
        lines.append(f'<text x="{WIDTH - 200}" y="{TOP + 20 * (i + 1)}" fill="{color}">{escape(name)}</text>')
    for value in (low, (low + high) / 2, high):
        _, y = place(0, value).split(",")
        lines.append(f'<text x="{LEFT - 8}" y="{y}" text-anchor="end">{value:.2f}</text>')
    lines.append(f'<text x="{LEFT}" y="{HEIGHT - 12}">step 1</text>')
    lines.append(f'<text x="{WIDTH - 20}" y="{HEIGHT - 12}" text-anchor="end">step {longest}</text>')
    style = 'font-family="sans-serif" font-size="13"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {style}>'
    body = "\n".join(lines)
    path.write_text(f'{head}\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n')
