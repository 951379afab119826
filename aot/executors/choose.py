"""From the text of ``--executor`` to an executor."""

from __future__ import annotations

from urllib.parse import urlsplit

from ..errors import UsageError
from .jobs import Executor

__all__ = ["open_executor", "parse_address"]


def open_executor(text: str | None) -> Executor | None:
    """Connect to the cluster that is named; None where none is."""
    if text is None:
        return None
    host, port = parse_address(text)
    from .dask import DaskExecutor

    return DaskExecutor.connect(host, port)


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``dask://host:port``."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if host is None or port is None or parts.scheme != "dask" or parts.path.strip("/") or parts.query:
        raise UsageError(f"not an executor: {text!r}", hint="write it like dask://host:8786")
    return host, port
