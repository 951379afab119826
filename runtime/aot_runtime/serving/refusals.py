"""Refusals of arguments in the words of CuTe DSL, which a served library may look for in a message.

A compiled function of CuTe DSL checks its arguments, and so does a bundle. Both raise a ``ValueError``, but some code
reads the text: quack's own tests expect ``Mismatched mW.shape[0]``, and ``expected device_type=cuda``.
"""

from __future__ import annotations

import re

from ..errors import ArgumentError

__all__ = ["in_words_of_cute_dsl"]

_LABEL = r"^  sm_\w+ \w+: (?P<label>(?P<name>\w+)\S*)"
_WORDS = (
    (
        rf"{_LABEL}(?<=\]) is [^,]+, must be (?P<wanted>divisible by \d+)",
        "Invalid {label}{number}, expected to be {wanted}",
    ),
    (rf"{_LABEL}(?<=\]) is [^,]+, must be (?P<wanted>\d+)", "Mismatched {label}{number}, expected to be {wanted}"),
    (
        rf"{_LABEL}(?<=\]) is [^,]+, must equal (?P<wanted>[^,]+)",
        "Mismatched {label}{number}, expected to match {wanted}",
    ),
    (rf"{_LABEL}\.dtype is [^,]+, must be (?P<wanted>\w+)", "Mismatched Tensor{number}, expected dtype={wanted}"),
    (rf"{_LABEL} lies on a device of type", "Mismatched Tensor{number}, expected device_type=cuda"),
    (r": none of the tensors lies on a CUDA device", "Mismatched Tensor{number}, expected device_type=cuda"),
)


def in_words_of_cute_dsl(error: ArgumentError, parameters: list[str]) -> ArgumentError:
    """The same refusal. Its text begins as that of CuTe DSL does, if an extent, a stride, a dtype or a device is wrong."""
    for pattern, words in _WORDS:
        if found := re.search(pattern, error.message, re.MULTILINE):
            facts = found.groupdict()
            number = f" on argument #{parameters.index(facts['name'])}" if facts.get("name") in parameters else ""
            text = words.format(number=number, **facts)
            return type(error)(f"{text}\n{error.message}", hint=error.hint)
    return error
