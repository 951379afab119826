"""The page ``docs/reference/kernels.md``: every shipped kernel, from its declaration."""

from __future__ import annotations

import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

from aot.compile.messages import Options
from aot.pipeline.executing.executor import Session
from aot.pipeline.executing.workers import open_source
from aot.records import encode

PROJECT = Path(__file__).resolve().parents[1]
PAGE = PROJECT / "docs" / "reference" / "kernels.md"

HEAD = """# Shipped kernels

`python tools/reference.py` writes this page from the declarations in [`kernels/`](../../kernels); a test compares the two. In
Python, `help(bundle.rmsnorm)` says the same. [What is proven](../proven.md) says where the kernels ran, and
[Performance](../performance.md) how fast.

`python -m aot build` builds the core families, {core}. `--family all` builds the others too,
`--family attention` just one. `--tilings all` builds every tiling of a product, and not only those that serve most shapes well.
A call that no variant takes is refused with the reason.
"Portable code" was written for an earlier architecture: it runs there, and nothing in it was made for that chip.
"""
TITLES = {
    "elementwise": "Elementwise",
    "rows": "Rows",
    "gemm": "Matrix products",
    "f32": "Matrix products in f32",
    "fp8": "Matrix products in f8",
    "experts": "Products of experts",
    "attention": "Attention",
    "backward": "Gradients",
    "training": "Steps of training",
}


def page() -> str:
    kernels = listed()
    core = {kernel["family"] for kernel in kernels if kernel["core"]}
    families = {family: [own for own in kernels if own["family"] == family] for family in TITLES}
    missing = {kernel["family"] for kernel in kernels} - families.keys()
    assert not missing, f"families without a title: {missing}"
    sections = [
        f"## {TITLES[family]}\n\nThe family `{family}`.\n\n" + "\n".join(entry(own) for own in members)
        for family, members in families.items()
    ]
    return HEAD.format(core=_words([f"`{family}`" for family in TITLES if family in core])) + "\n" + "\n".join(sections)


@cache
@cache
def listed() -> list[dict[str, Any]]:
    """Every shipped kernel, as ``list --json`` describes it. Nothing is planned, so that this takes a second."""
    with tempfile.TemporaryDirectory() as folder:
        worker, failures = open_source(Session(str(PROJECT / "kernels"), Options()), None, Path(folder, "log"))
        with closing(worker):
            assert not failures and not worker.declared.failures
            kernels: list[dict[str, Any]] = encode(worker.declared.kernels)
    return kernels


def declared_in(kernel: dict[str, Any]) -> Path:
    return Path(kernel["origin"].rpartition(":")[0]).relative_to(PROJECT)


def entry(kernel: dict[str, Any]) -> str:
    called = [own for own in kernel["parameters"] if own["workspace"] is None]
    shown = [f"{own['name']}={own['default']}" if own["has_default"] else own["name"] for own in called]
    shown += [
        own["name"] if own["default"] is None else f'{own["name"]}="{own["default"]}"' for own in kernel["choices"]
    ]
    rows = [f"| `{own['name']}` | {_meaning(own)} |\n" for own in called]
    rows += [f"| `{own['name']}` | {_choice(own)} |\n" for own in kernel["choices"]]
    origin = declared_in(kernel)
    return (
        f"### `{kernel['name']}`\n\n```text\n{kernel['name']}({', '.join(shown)})\n```\n\n{prose(kernel['doc'])}\n\n"
        f"| parameter | |\n| --- | --- |\n{''.join(rows)}\n"
        f"{_built(kernel)} Declared in [`{origin}`](../../{origin}).\n"
    )


def _meaning(parameter: dict[str, Any]) -> str:
    words = [prose(parameter["doc"])] if parameter["doc"] else []
    if parameter["output"]:
        words.append("written" + (f"; may be `{parameter['may_be'][0]}`" if parameter["may_be"] else ""))
        if parameter["shape"]:
            words.append(f"shape `{parameter['shape']}`")
        if parameter["dtype"]:
            words.append(f"dtype `{parameter['dtype']}`")
    return "; ".join(words).replace("|", "\\|") or "read"


def _choice(choice: dict[str, Any]) -> str:
    values = _words([f'`"{value}"`' for value in choice["values"]], "or")
    return "; ".join(filter(None, (prose(choice["doc"]), values)))


def _built(kernel: dict[str, Any]) -> str:
    archs = _words([_arch(arch, kernel["written_for"].get(arch, arch)) for arch in kernel["archs"]])
    axes = [f"{name} {', '.join(values)}" for name, values in kernel["axes"].items()]
    return f"Built for {archs}" + (f", by {'; '.join(axes)}" if axes else "") + "." + _gradients(kernel["backward"])


def _gradients(backward: dict[str, Any] | None) -> str:
    if not backward:
        return ""
    if backward["kernel"]:
        return f" Its gradient is `{backward['kernel']}`."
    pairs = zip(backward["gradients"], backward["calls"], strict=True)
    calls = [f"by `{name}` `{call}`" for name, call in pairs]
    text = f" Its gradient is {_words(calls)}." if calls else ""
    kept = f" unless {_words([f'`{choice}`' for choice in backward['whole']])}" if backward["whole"] else ""
    return text + (f" A call that wants gradients becomes `{backward['split']}`{kept}." if backward["split"] else "")


def _arch(arch: str, written_for: str) -> str:
    return f"`{arch}`" if arch == written_for else f"`{arch}` (portable code)"


def prose(text: str) -> str:
    return text.strip().replace("``", "`")


def _words(items: list[str], last: str = "and") -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {last} {items[-1]}"
