"""The roofline: points lie under the slope of the memory as far as their bandwidth is below that of a copy."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

from aot.gpu.bench import Result
from aot.gpu.roofline import roofline

# 1 operation per byte at the bandwidth of a copy, 1 TB/s: 1 TFLOP/s.
COPYING = Result("copy", "bf16", {}, "x", "v", {"aot": 1.0}, 1_000_000, 1_000_000, 1e12)


def points(*results: Result) -> list[tuple[float, float]]:
    circles = [e.attrib for e in ElementTree.fromstring(roofline(results)).iter() if e.tag.endswith("circle")]
    return [(float(one["cx"]), float(one["cy"])) for one in circles]


def roof(*results: Result) -> list[tuple[float, float]]:
    (path,) = re.findall(r'class="roof" points="([^"]*)"', roofline(results))
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in path.split())]


def test_a_kernel_as_fast_as_a_copy_is_on_the_slope() -> None:
    fast = replace(COPYING, operations=100_000_000)  # 100 operations per byte, at the same bandwidth
    (first, last), line = points(COPYING, fast), roof(COPYING, fast)
    (x1, y1), (x2, y2) = line[0], line[1]
    for x, y in (first, last):
        assert abs(y - (y1 + (x - x1) * (y2 - y1) / (x2 - x1))) < 0.2


def test_a_slower_one_is_below_and_the_fastest_is_the_flat_roof() -> None:
    slow = replace(COPYING, microseconds={"aot": 10.0})
    product = replace(COPYING, operations=1_000_000_000, microseconds={"aot": 5.0})
    first, second, third = points(COPYING, slow, product)
    assert first[0] == second[0] and first[1] < second[1]  # y grows downwards
    assert roof(COPYING, slow, product)[-1][1] == third[1]


def test_what_has_no_operations_has_no_place() -> None:
    assert roofline([replace(COPYING, operations=0)]) == ""
    assert len(points(COPYING, replace(COPYING, operations=0))) == 1


def test_names_are_text() -> None:
    assert "<title>&lt;b&gt; bf16: x: 1 TFLOP/s, 1000 GB/s</title>" in roofline([replace(COPYING, kernel="<b>")])
