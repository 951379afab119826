"""The calls that a bundle was captured from. One is found without reading the others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from ..description.kernel_records import KernelTable, captured_call
from ..description.records import Reader

__all__ = ["CapturedCalls", "Found", "holds_calls"]

_KEY_LETTERS = 10  # of a call's key, at the end of its kernel's name
_MARK = b'"captured": {'


class Found:
    """A captured call: the kernel that answers it, the names of its parameters and what they accept, and the record of the call."""

    def __init__(self, kernel: str, parameters: dict[str, tuple[str, ...]], record: dict[str, Any]) -> None:
        self.kernel, self.parameters, self.record = kernel, parameters, record


class CapturedCalls:
    """The calls in the content of a ``kernels.json``, which has a line for each kernel."""

    def __init__(self, content: bytes, where: str) -> None:
        self._content, self._where = content, where
        self._known: dict[str, Reader | None] = {}

    def find(self, key: str) -> Found | None:
        """The call of a key. A bundle may hold thousands: only lines that may be the one are parsed."""
        for kernel, record in self._lines(f'_{key[:_KEY_LETTERS]}": {{'):
            call = captured_call(record, self._read)
            if call is not None and call["key"] == key:
                parameters = {one.get("name", str): one.texts("accepts") for one in record.each("parameters")}
                return Found(kernel, parameters, call)
        return None

    def _read(self, name: str) -> Reader | None:
        """What functions of a module read."""
        if name not in self._known:
            self._known[name] = next((record for at, record in self._lines(f'  "{name}": {{') if at == name), None)
        return self._known[name]

    def _lines(self, text: str) -> Iterator[tuple[str, Reader]]:
        """The records whose lines hold a text, with their names."""
        mark, start = text.encode(), 0
        while (at := self._content.find(mark, start)) >= 0:
            start = self._content.find(b"\n", at) + 1 or len(self._content)
            line = self._content[self._content.rfind(b"\n", 0, at + 1) + 1 : start].strip().rstrip(b",")
            try:
                ((name, data),) = json.loads(b"{" + line + b"}").items()
            except ValueError:
                continue  # the letters stand elsewhere, in a documentation
            yield name, Reader(data, f"{self._where}: {name}")

    @cached_property
    def calls(self) -> Mapping[str, dict[str, Any]]:
        """All calls by kernel, for who explains a miss."""
        table = KernelTable(self._content, self._where)
        found = {kernel: table.captured(kernel) for kernel in table.names}
        return {kernel: call for kernel, call in found.items() if call is not None}


def holds_calls(content: bytes) -> bool:
    """Whether a ``kernels.json`` has captured calls."""
    return _MARK in content
