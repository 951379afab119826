"""Digests of JSON's types and of files, and the error of a value that has no form to make one of."""

from __future__ import annotations

import hashlib
import json
from typing import Any

__all__ = ["UnstableError", "digest", "file_digest", "short_digest"]

_LETTERS = 12
# Forms are trees: nothing in them leads back.
_encoded = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False).encode


class UnstableError(ValueError):
    """A value has no form that is the same in every process; the message says where it was met."""


def digest(data: Any) -> str:
    """The digest of JSON's types."""
    return hashlib.sha256(_encoded(data).encode()).hexdigest()


def short_digest(data: Any) -> str:
    """The beginning of a digest: enough against changes by accident, and a record has hundreds."""
    return digest(data)[:_LETTERS]


def file_digest(path: str) -> str:
    """The digest of the content of a file, wherever it lies."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError as error:
        raise UnstableError(f"`{path}` cannot be read: {error.strerror}") from None
