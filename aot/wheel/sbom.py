"""What a wheel's libraries contain besides the author's kernels: for people (NOTICE) and for tools (an SBOM)."""

from __future__ import annotations

from pathlib import Path

from aot_runtime.description.records import HostRecord

from ..bundle.layout import SBOM
from ..bundle.manifest import Manifest
from ..bundle.sbom import components, sbom_of_host, sbom_text
from .identity import Identity

__all__ = ["notice", "sbom"]


def notice(identity: Identity, manifest: Manifest, host: HostRecord) -> str:
    lines = [
        f"{identity.distribution} {identity.version}",
        "",
        "The native libraries of this package were built by their author with cute-aot. Besides the author's kernels they",
        "contain the following. These terms, not those of cute-aot, apply if you pass them on.",
        "",
    ]
    for item in components(manifest.toolchain, host):
        lines += [f"{item.name} {item.version or ''}".rstrip(), f"  {item.what}", f"  {item.license}, {item.url}", ""]
    if host.cudart != "static":
        lines += [f"{host.cudart} is not contained: the libraries use the one of the machine they run on.", ""]
    return "\n".join(lines)


def sbom(identity: Identity, bundle: Path, manifest: Manifest, host: str) -> str:
    """What the bundle's document says of a host, about the wheel: for ``.dist-info/sboms`` (PEP 770)."""
    purl = f"pkg:pypi/{identity.distribution}@{identity.version}"
    own = {
        "type": "library",
        "bom-ref": purl,
        "name": identity.distribution,
        "version": str(identity.version),
        "purl": purl,
    }
    path = bundle / SBOM
    # Bundles of earlier versions hold no document, and everything that one would be made of.
    text = path.read_text() if path.is_file() else sbom_text(manifest.name, manifest.toolchain, manifest.hosts)
    return sbom_of_host(text, host, own)
