"""Failures that a launcher would end the process for: the function that asserts success returns the code instead.

Tensor maps of ``cutlass.experimental.cuda`` are made by a call of the driver whose result is asserted. The function around it
returns an ``i32`` that its caller checks, as launches do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from . import dsl

__all__ = ["returning_failures"]

# A function that returns a code, with its parameters and its body. LLVM prints an end of a body at the start of a line.
_FUNCTION = re.compile(r"(?<=\n)define (?:[a-z_]+ )*i32 @[^\n]* \{\n(?:[^}\n][^\n]*\n|\n)*?\}\n")
_LABEL = re.compile(r"([\w$.-]+):")
_COUNTED = re.compile(r"%(\d+)(?=[,)])")
_PHI = re.compile(r"  %[\w$.-]+ = phi ")
_FROM = re.compile(r"(, )%([\w$.-]+)(?= \])")


def returning_failures(text: str) -> str:
    """The text of a launcher in which no function asserts, as far as functions can return what failed."""
    name = dsl.installed().LAUNCHER.asserting
    asserted = re.compile(rf"  call void @{name}\(i32 (%[\w.]+)\)(?:, !dbg !\d+)?")
    if asserted.search(text) is None:
        return text
    text = _FUNCTION.sub(lambda match: _returning(match[0], asserted), text)
    return (
        text
        if f"call void @{name}(" in text
        else re.sub(rf"declare (?:!dbg !\d+ )?void @{name}\(i32\)[^\n]*\n", "", text)
    )


def _returning(function: str, asserted: re.Pattern[str]) -> str:
    head, *lines = function.splitlines()
    moved: dict[str, str] = {}  # a block, and the block that its end is in now
    body = list(_checked(head, lines, asserted, moved))
    return "\n".join([head, *(_from_moved(line, moved) for line in body)]) + "\n"


def _checked(head: str, lines: list[str], asserted: re.Pattern[str], moved: dict[str, str]) -> Iterator[str]:
    """The lines of a function with a branch for each assertion: names, since numbers would have to be in order."""
    block = str(len(set(_COUNTED.findall(head))))  # the first has no label; parameters are counted before it
    for number, line in enumerate(lines):
        if (label := _LABEL.match(line)) is not None:
            block = label[1]
        if (match := asserted.fullmatch(line)) is None:
            yield line
            continue
        moved[block] = f"aot_succeeded_{number}"
        yield f"  %aot_success_{number} = icmp eq i32 {match[1]}, 0"
        yield f"  br i1 %aot_success_{number}, label %{moved[block]}, label %aot_failed_{number}"
        yield f"aot_failed_{number}:"
        yield f"  ret i32 {match[1]}"
        yield f"{moved[block]}:"


def _from_moved(line: str, moved: dict[str, str]) -> str:
    if not moved or _PHI.match(line) is None:
        return line
    return _FROM.sub(lambda match: f"{match[1]}%{moved.get(match[2], match[2])}", line)
