"""A bundle as one page of HTML that needs nothing else: no network, no fonts, no libraries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from aot_runtime.arch import Arch

from ..bundle.comparing.difference import Change
from ..bundle.comparing.occupancy import occupancy
from ..bundle.comparing.sizes import Share, shares
from ..bundle.details import VariantDetails, shape_text
from ..bundle.manifest import Manifest
from ..errors import counted
from .bench import Result
from .plot import plot
from .roofline import roofline
from .style import SCRIPT, STYLE

__all__ = ["Contents", "page"]

_BAR_WIDTH = 420
_BINS = (0.0, 0.5, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)


@dataclass(frozen=True)
class Contents:
    """What a page shows."""

    manifest: Manifest
    variants: Sequence[tuple[Arch, VariantDetails]]
    gpu: str = ""  # the one that the results are of
    results: Sequence[Result] = ()
    other: str = ""  # the bundle that the changes are to
    changes: Sequence[Change] = ()


def page(contents: Contents) -> str:
    name = escape(contents.manifest.name)
    sections = [
        _summary(contents),
        _links(contents),
        _measured(contents),
        _variants(contents),
        _sizes(contents.manifest),
        _changed(contents),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        # Nothing is fetched, whatever a name or a text of the bundle says.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{name}</h1>\n"
        + "\n".join(filter(None, sections))
        + f"\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _summary(contents: Contents) -> str:
    manifest = contents.manifest
    size = sum(record.size for record in manifest.files.values())
    ran = sum(bool(variant.verified_on) for _, variant in contents.variants)
    tiles = {
        "kernels": str(len(manifest.kernels)),
        "variants": str(len(contents.variants)),
        "architectures": ", ".join(map(str, manifest.archs)),
        "size": f"{size / (1 << 20):.2f} MB in {counted(len(manifest.files), 'file')}",
        "hosts": ", ".join(f"{host}, glibc {record.glibc} or newer" for host, record in manifest.hosts.items()),
        "complete": "yes" if manifest.complete else f"no: {counted(len(manifest.failures), 'failure')}",
        "ran on a GPU": f"{ran} of {counted(len(contents.variants), 'variant')}",
    }
    shown = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in tiles.items())
    built = ", ".join(f"{name} {version}" for name, version in manifest.toolchain.items())
    return f"<dl>{shown}</dl>\n<p>Built with {escape(built)}.</p>"


def _links(contents: Contents) -> str:
    """To the sections that there are: a page about a large bundle is long."""
    names = {
        "measured": bool(contents.results),
        "variants": True,
        "sizes": True,
        "differences": bool(contents.other),
    }
    links = [f'<a href="#section-{name}">{name}</a>' for name, there in names.items() if there]
    return f"<nav>{' '.join(links)}</nav>"


def _variants(contents: Contents) -> str:
    columns = (
        "kernel", "variant", "arch", "registers / thread", "shared memory, bytes", "block, threads", "cluster, blocks",
        "stack, bytes", "cubin, bytes", "occupancy at most", "ran on",
    )  # fmt: skip
    rows = [_variant_row(arch, variant) for arch, variant in contents.variants]
    return (
        '<h2 id="section-variants">Variants</h2>\n<p><input type="search" id="filter" placeholder="filter: words that a row must have" '
        'aria-label="filter"> <output id="shown"></output></p>\n' + _table(columns, rows, "variants")
    )


def _variant_row(arch: Arch, variant: VariantDetails) -> list[object]:
    launch = variant.launches[0]
    dynamic = launch.dynamic_shared_memory
    share = occupancy(arch, launch)
    return [
        variant.kernel,
        variant.name,
        str(arch),
        launch.registers,
        "at run time" if dynamic is None else launch.static_shared_memory + dynamic,
        shape_text(launch.block),
        shape_text(launch.cluster),
        launch.local_memory,
        variant.cubin_bytes,
        _Share(share) if share is not None else "-",
        ", ".join(variant.verified_on) or "never",
    ]


@dataclass(frozen=True)
class _Share:
    """A part of a whole, which a bar behind the number shows."""

    value: float


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]], identity: str) -> str:
    head = "".join(f'<th scope="col"><button type="button">{escape(column)}</button></th>' for column in columns)
    body = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    # Wider than a narrow window: the table scrolls in its box, with the keyboard too.
    box = f'<div class="wide" tabindex="0" role="region" aria-label="{identity}">'
    return f'{box}<table id="{identity}"><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _cell(value: object) -> str:
    if isinstance(value, _Share):
        return f'<td class="number share" style="--share:{value.value:.1%}">{value.value:.0%}</td>'
    number = isinstance(value, int)
    return f'<td class="number">{value}</td>' if number else f"<td>{escape(str(value))}</td>"


def _sizes(manifest: Manifest) -> str:
    found = shares(manifest)
    kernels = [share for share in found if share.kernel]
    return '<h2 id="section-sizes">Where the bytes are</h2>\n' + _beside(
        f"<h3>by {title}</h3>\n{_bars(values)}"
        for title, values in (
            ("purpose", _summed(found, "purpose")),
            ("architecture", _summed(found, "arch")),
            ("kernel", _summed(kernels, "kernel")),
        )
    )


def _beside(charts: Iterable[str]) -> str:
    """Next to each other, if there is room."""
    return '<div class="charts">' + "\n".join(f"<div>{chart}</div>" for chart in charts) + "</div>"


def _summed(found: Sequence[Share], key: str) -> dict[str, int]:
    sums: dict[str, int] = {}
    for share in found:
        name = getattr(share, key) or "all"
        sums[name] = sums.get(name, 0) + share.size
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def _bars(values: Mapping[str, float], unit: str = "KB", scale: float = 1024) -> str:
    """Horizontal bars with their numbers, as SVG."""
    largest = max(values.values(), default=1) or 1
    parts = []
    for at, (name, value) in enumerate(values.items()):
        y, width = at * 22, _BAR_WIDTH * value / largest
        parts.append(f'<text x="210" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="218" y="{y + 3}" width="{width:.1f}" height="16" rx="2"/>')
        parts.append(f'<text x="{224 + width:.1f}" y="{y + 15}">{f"{value / scale:.0f} {unit}".strip()}</text>')
    height = 22 * len(values) + 4
    return f'<svg class="bars" role="img" viewBox="0 0 {_BAR_WIDTH + 320} {height}">{"".join(parts)}</svg>'


def _measured(contents: Contents) -> str:
    if not contents.results:
        return ""
    contenders = sorted({name for result in contents.results for name in result.microseconds} - {"aot"})
    columns = ("kernel", "arguments", "time, us", "GB/s", "TFLOP/s", *(f"x {name}" for name in contenders), "variant")
    rows = [
        [
            result.label,
            result.arguments,
            f"{result.microseconds['aot']:.1f}",
            f"{result.bandwidth / 1e9:.0f}",
            f"{result.teraflops:.1f}",
            *("-" if ratio is None else f"{ratio:.2f}" for ratio in map(result.speedup, contenders)),
            result.variant,
        ]
        for result in contents.results
    ]
    roof = roofline(contents.results)
    charts = [_distribution(contents.results, name) for name in contenders]
    charts += [f"<h3>roofline</h3>\n{roof}"] if roof else []
    bars = f'<details><summary>every problem as a bar</summary><div class="wide paper">{plot(contents.gpu, contents.results)}</div></details>'
    title = f'<h2 id="section-measured">Measured on {escape(contents.gpu)}</h2>'
    return f"{title}\n{_beside(charts)}\n{bars}\n{_table(columns, rows, 'results')}"


def _distribution(results: Sequence[Result], contender: str) -> str:
    """How many problems fall into each bin of the speed relative to the contender."""
    ratios = [ratio for result in results if (ratio := result.speedup(contender)) is not None]
    counts = {
        f"{low:g} to {high:g}": sum(low <= ratio < high for ratio in ratios)
        for low, high in zip(_BINS, (*_BINS[1:], float("inf")), strict=True)
    }
    shown = {name.replace(" to inf", " and more"): float(number) for name, number in counts.items() if number}
    title = f"times faster than {contender}: {counted(len(ratios), 'problem')}"
    return f"<h3>{escape(title)}</h3>\n{_bars(shown, '', 1)}"


def _changed(contents: Contents) -> str:
    if not contents.other:
        return ""
    title = f'<h2 id="section-differences">Differences from {escape(contents.other)}</h2>\n'
    if not contents.changes:
        return title + "<p>None.</p>"
    rows = [[change.kind, change.what, change.before or "-", change.after or "-"] for change in contents.changes]
    return title + _table(("kind", "what", "before", "after"), rows, "changes")
