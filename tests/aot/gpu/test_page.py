"""The page about a bundle: whole, self-contained, and nothing in it is taken for markup."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest
from aot_runtime.arch import Arch
from aot_runtime.description.kernel_records import KernelRecord
from aot_runtime.description.records import FileRecord, HostRecord

from aot.bundle.comparing.difference import Change
from aot.bundle.details import LaunchDetails, VariantDetails
from aot.bundle.manifest import Manifest
from aot.gpu.bench import Result
from aot.gpu.page import Contents, page

SM80, SM90 = Arch.parse("sm_80"), Arch.parse("sm_90a")
NASTY = "<script src='http://example.com/x.js'></script>&"
VOID = {"meta", "input", "rect", "line", "polyline"}


def contents(**more: object) -> Contents:
    kernel = KernelRecord("add", NASTY, (), (), ("add",), (SM80, SM90), 2)
    hosts = {"x86_64-linux-gnu": HostRecord("entry", "support", "2.28", "static")}
    files = {"lib/x86_64-linux-gnu/sm_80/add.so": FileRecord("0" * 64, 4096), "include/b.h": FileRecord("1" * 64, 100)}
    manifest = Manifest("b", False, {"add": kernel}, hosts, files, [{"kernel": "gemm"}], {"zig": NASTY})
    launch = LaunchDetails("k", 32, 0, 0, (128, 1, 1), None, 0)
    late = LaunchDetails("k", 40, 0, None, None, (2, 1, 1), 16)
    variants = [
        (
            SM80,
            VariantDetails("add__f16", "add", "add", {"dtype": "f16"}, "s", (), 3000, (launch,), (), True, (NASTY,)),
        ),
        (SM90, VariantDetails("add__f32", "add", "add", {"dtype": "f32"}, "s", (), 3000, (late,), (), True)),
    ]
    return Contents(manifest, variants, **more)  # type: ignore[arg-type]


class Balanced(HTMLParser):
    """Collects the texts of cells; every element that is opened is closed, in the right order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        fetching = [(name, value or "") for name, value in attributes if name in ("src", "href", "action", "data")]
        self.links += [value for name, value in fetching if name != "href" or not value.startswith("#")]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "td":
            self.cells[-1] += data


def parsed(text: str) -> Balanced:
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert parser.links == []  # nothing is fetched
    assert not re.search(r"url\(|@import", text)
    return parser


def test_variants_are_rows_with_resources_and_occupancy() -> None:
    found = parsed(page(contents())).cells
    assert found[:11] == ["add", "add__f16", "sm_80", "32", "0", "128", "-", "0", "3000", "100%", NASTY]
    assert found[11:] == ["add", "add__f32", "sm_90a", "40", "at run time", "-", "2", "16", "3000", "-", "never"]


def test_the_summary_says_what_is_missing() -> None:
    text = page(contents())
    assert "<dd>no: 1 failure</dd>" in text
    assert "<dd>1 of 2 variants</dd>" in text
    assert "default-src 'none'" in text


def test_measurements_and_differences_are_shown_if_there_are_any() -> None:
    assert "Measured on" not in page(contents()) and "Differences" not in page(contents())
    times = {"aot": 10.0, "torch": 20.0}
    result = Result("add", "bf16", {}, "x 8x8", "add__v", times, 20_000, 100, 4e9)
    change = Change("code", NASTY, None, "7 bytes")
    text = page(contents(gpu=NASTY, results=[result], other="old", changes=[change]))
    found = parsed(text)
    assert found.cells[-4:] == ["code", NASTY, "-", "7 bytes"]
    assert "times faster than torch: 1 problem" in text and ">2 to 4</text>" in text
    assert "<p>None.</p>" in page(contents(other="old"))


@pytest.fixture
def browser() -> str:
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    found = next((found for name in names if (found := shutil.which(name))), None)
    if found is None:
        pytest.skip("no headless browser is installed")
    return found


# What a reader does: types into the filter, and sorts by a column, twice.
ACTIONS = """
filter.value = 'f32'; filter.dispatchEvent(new Event('input'));
document.querySelectorAll('#variants th button')[1].click();
const sorted = document.querySelectorAll('#variants th button')[3]; sorted.click(); sorted.click();
document.body.dataset.marked = [...document.querySelectorAll('[aria-sort]')].map(th => th.cellIndex + th.ariaSort);
const box = document.querySelector('#variants').parentNode; box.scrollLeft = 1e6;
const last = document.querySelector('#variants th:last-child').getBoundingClientRect();
document.body.dataset.reached = last.right <= box.getBoundingClientRect().right + 1;
document.body.dataset.registers = rows[0].parentNode.rows[0].cells[3].textContent;
document.body.dataset.overflow = document.documentElement.scrollWidth > window.innerWidth;
"""


def show(browser: str, path: Path, *options: str) -> str:
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", *options, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


def full_page() -> str:
    times = {"aot": 10.0, "torch": 20.0}
    results = [
        Result("add", "bf16", {}, "x 8x8", "add__v", times, 20_000, 100 * scale, 4e9) for scale in (1, 10, 10_000)
    ]
    return page(contents(gpu="a GPU", results=results, other="old", changes=[Change("code", "add", None, "7 bytes")]))


@pytest.mark.parametrize("width", [1280, 420])
def test_a_browser_filters_sorts_and_fits_the_width(browser: str, tmp_path: Path, width: int) -> None:
    (tmp_path / "page.html").write_text(full_page().replace("</script>", f"{ACTIONS}</script>"))
    text = show(browser, tmp_path / "page.html", f"--window-size={width},1600", "--dump-dom")
    shown = re.search(r'<output id="shown">(\d) of 2</output>', text)
    assert shown is not None, text[-2000:]
    body = re.search(r"<body ([^>]*)>", text)
    assert body is not None
    assert f'data-registers="{max(one.launches[0].registers for _, one in contents().variants)}"' in body[1]
    assert 'data-overflow="false"' in body[1]
    assert 'data-marked="3descending"' in body[1]  # the column that is sorted, and no other
    assert 'data-reached="true"' in body[1]  # by scrolling


def test_columns_of_resources_name_their_units() -> None:
    head = re.findall(r"<button type=\"button\">([^<]*)</button>", page(contents()))
    assert {name for name in head if name.startswith(("shared", "stack", "cubin"))} == {
        name for name in head if name.endswith(", bytes")
    }
    assert len([name for name in head if "/ thread" in name or ", threads" in name or ", blocks" in name]) == 3


def test_a_browser_draws_it(browser: str, tmp_path: Path) -> None:
    """Bars, the roof and points are seen as pixels of their colours."""
    (tmp_path / "page.html").write_text(full_page())
    show(browser, tmp_path / "page.html", "--window-size=600,1000", f"--screenshot={tmp_path / 'page.png'}")
    seen = colours((tmp_path / "page.png").read_bytes())
    assert {(0x2B, 0x6C, 0xB0), (0xDD, 0x6B, 0x20), (0xFF, 0xFF, 0xFF), (0x1A, 0x20, 0x2C)} <= seen


def colours(png: bytes) -> set[tuple[int, int, int]]:
    """The colours of a picture of 8 bits per channel, without interlacing, as browsers write them."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height, depth, kind = struct.unpack(">IIBB", png[16:26])
    size = {2: 3, 6: 4}[kind]
    assert depth == 8
    data, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        data += png[at + 8 : at + 8 + length] if png[at + 4 : at + 8] == b"IDAT" else b""
        at += length + 12
    rows, above = zlib.decompress(data), bytearray(width * size)
    found: set[tuple[int, int, int]] = set()
    for number in range(height):
        start = number * (width * size + 1)
        above = _unfiltered(rows[start], bytearray(rows[start + 1 : start + 1 + width * size]), above, size)
        found.update(zip(above[::size], above[1::size], above[2::size], strict=True))
    return found


def _unfiltered(kind: int, row: bytearray, above: bytearray, size: int) -> bytearray:
    """A row of pixels: PNG keeps differences to what is on the left and above."""
    if kind == 0:
        return row
    if kind == 2:
        return bytearray([(a + b) & 0xFF for a, b in zip(row, above, strict=True)])
    row[:0], above = bytes(size), bytes(size) + above  # a pixel before the first: the rest needs no exceptions
    for i in range(size, len(row)):
        left, up, corner = row[i - size], above[i], above[i - size]
        if kind == 4:
            to_left, to_up, to_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
            best = left if to_left <= to_up and to_left <= to_corner else up if to_up <= to_corner else corner
        else:
            best = left if kind == 1 else (left + up) // 2
        row[i] = (row[i] + best) & 0xFF
    return row[size:]
