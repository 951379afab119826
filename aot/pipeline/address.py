"""The address of a cluster, as ``--executor`` names it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from ..errors import UsageError

__all__ = ["Address", "parse_address", "parse_cluster"]


@dataclass(frozen=True)
class Address:
    """Where a scheduler listens, and whether it is talked to through TLS."""

    host: str
    port: int
    encrypted: bool = False
    security: Path | None = None  # a file that names certificates for TLS; None: Dask's own configuration

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.encrypted else 'tcp'}://{host}:{self.port}"


def parse_cluster(text: str | None, security: Path | None = None) -> Address | None:
    """The cluster that is named; None if none is. ``security`` names certificates, and asks for TLS."""
    if text is None:
        if security is not None:
            raise UsageError("`--dask-security` needs a cluster", hint="pass `--executor tls://host:8786`")
        return None
    address = parse_address(text)
    return replace(address, encrypted=address.encrypted or security is not None, security=security)


def parse_address(text: str) -> Address:
    """``dask://host:port`` or ``tcp://host:port``, and ``tls://host:port``."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.scheme not in _SCHEMES or parts.path.strip("/") or parts.query:
        raise UsageError(f"not an executor: {text!r}", hint="write it like dask://host:8786 or tls://host:8786")
    return Address(host, port, parts.scheme == "tls")


_SCHEMES = ("dask", "tcp", "tls")
