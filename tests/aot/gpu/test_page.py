"""The page about a bundle: whole, self-contained, and nothing in it is taken for markup."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from aot_runtime.arch import Arch
from aot_runtime.manifest import FileRecord, HostRecord, KernelRecord, Manifest

from aot.bundle.details import LaunchDetails, VariantDetails
from aot.bundle.difference import Change
from aot.gpu.bench import Result
from aot.gpu.page import Contents, page

SM80, SM90 = Arch.parse("sm_80"), Arch.parse("sm_90a")
NASTY = "<script src='http://example.com/x.js'></script>&"
VOID = {"meta", "input", "rect", "line"}


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
            VariantDetails("add__f16", "add", "add", {"dtype": NASTY}, "s", (), 3000, (launch,), (), True, ("A100",)),
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
        self.links += [name for name, _ in attributes if name in ("src", "href", "action", "data")]
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
    assert found[:12] == [
        "add", "add__f16", "sm_80", f"dtype {NASTY}", "32", "0", "128x1x1", "-", "0", "3000", "100%", "A100",
    ]  # fmt: skip
    assert found[12:] == [
        "add", "add__f32", "sm_90a", "dtype f32", "40", "at run time", "-", "2x1x1", "16", "3000", "-", "never",
    ]  # fmt: skip


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


def test_a_browser_runs_its_script(tmp_path: Path) -> None:
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    browser = next((found for name in names if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no headless browser is installed")
    (tmp_path / "page.html").write_text(page(contents()))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", str(tmp_path / "page.html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert '<output id="shown">2 of 2</output>' in done.stdout, done.stderr
