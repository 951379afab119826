"""The calls that a bundle was captured from. One is found without reading the others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ..kernel_records import KernelTable, captured_call
from ..records import Reader

__all__ = ["CapturedCalls", "Found", "holds_calls"]

_KEY_LETTERS = 10  # of a call's key, at the end of its kernel's name
_MARK = b'"captured": {'


class Found:
    """A captured call: the kernel that answers it, how many parameters that has, and the record of the call."""

    def __init__(self, kernel: str, parameter_count: int, record: dict[str, Any]) -> None:
        self.kernel, self.parameter_count, self.record = kernel, parameter_count, record


class CapturedCalls:
    """The calls in the content of a ``kernels.json``, which has a line for each kernel."""

    def __init__(self, content: bytes, where: str) -> None:
        self._content, self._where = content, where

    def find(self, key: str) -> Found | None:
        """The call of a key. A bundle may hold thousands: only lines that may be the one are parsed."""
        mark, start = f'_{key[:_KEY_LETTERS]}": {{'.encode(), 0
        while (at := self._content.find(mark, start)) >= 0:
            start = self._content.find(b"\n", at) + 1 or len(self._content)
            line = self._content[self._content.rfind(b"\n", 0, at) + 1 : start].strip().rstrip(b",")
            try:
                ((kernel, data),) = json.loads(b"{" + line + b"}").items()
            except ValueError:
                continue  # the letters stand elsewhere, in a documentation
            record = Reader(data, f"{self._where}: {kernel}")
            call = captured_call(record)
            if call is not None and call["key"] == key:
                return Found(kernel, len(record.get("parameters", list, [])), call)
        return None

    @cached_property
    def calls(self) -> Mapping[str, dict[str, Any]]:
        """All calls by kernel, for who explains a miss."""
        table = KernelTable(self._content, self._where)
        found = {kernel: table.captured(kernel) for kernel in table.names}
        return {kernel: call for kernel, call in found.items() if call is not None}


def holds_calls(content: bytes) -> bool:
    """Whether a ``kernels.json`` has captured calls."""
    return _MARK in content
