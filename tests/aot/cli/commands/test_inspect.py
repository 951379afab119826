"""``inspect``: a table for each kernel, and where the bytes are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from aot_runtime.arch import Arch
from aot_runtime.description.kernel_records import KernelRecord

from aot.bundle.details import LaunchDetails, VariantDetails, shape_text
from aot.cli.commands.inspect import _label, _print_kernel, _value
from aot.cli.main import main
from aot.cli.report import WIDTH, fitted_table


def test_one_kernel_alone(small_bundle_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(small_bundle_path), "--kernel", "fill_epilogue"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("\nfill_epilogue: A compile-time class that the caller names.\n")
    assert len(re.findall(r"^  sm_", out, re.MULTILINE)) == 4
    assert "fill_stream_zero" not in out


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_source_that_is_not_there_is_not_called_current(
    command: str, small_bundle_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(small_bundle_path), "--source", "no/such/kernels"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "`--source no/such/kernels`" in err and "\nhint: " in err


def test_verify_reads_its_options_before_the_bundle(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "nowhere", "--rebuild", "--jobs", "0"]) == 2
    assert "`--jobs` is 0" in capsys.readouterr().err


def test_portable_code_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    launch = LaunchDetails("k", 8, 0, 0, (128, 1, 1), None, 0)
    fields = ("scale", "scale", {}, "s", (), 0, (launch,), (), True)
    portable = VariantDetails("scale", *fields, written_for="sm_80")
    own = VariantDetails("scale", *fields, written_for="sm_90a")
    unknown = VariantDetails("scale", *fields)
    archs = [Arch.parse(text) for text in ("sm_100f", "sm_90a", "sm_80")]
    record = KernelRecord("scale", "", (), (), ("scale",), tuple(archs), 3)
    _print_kernel(record, list(zip(archs, (portable, own, unknown), strict=True)))
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "sm_" in line]
    assert [row[:2] for row in rows] == [["sm_100f", "portable"], ["sm_90a", "-"], ["sm_80", "-"]]
    _print_kernel(record, [(archs[1], own)])
    assert "code" not in capsys.readouterr().out


def test_sizes_by_purpose_architecture_and_kernel(small_bundle_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(small_bundle_path), "--size"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines() if "files" in line and "share" in line] == [
        "purpose", "architecture", "kernel",
    ]  # fmt: skip
    assert re.search(r"^archives for static linking +\d+ +[\d.]+ MB +\d+\.\d%$", out, re.MULTILINE)
    assert re.search(r"^small: [\d.]+ MB in \d+ files$", out, re.MULTILINE)
    assert main(["inspect", str(small_bundle_path), "--size", "--kernel", "fill_epilogue", "--json"]) == 0
    sizes = json.loads(capsys.readouterr().out)["sizes"]
    assert {(share["arch"], share["kernel"]) for share in sizes} == {
        ("sm_80", "fill_epilogue"), ("sm_90a", "fill_epilogue"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("axis", "value", "shown"),
    [("threads", "threads32", "32"), ("bias", "bias", "yes"), ("bias", "not_bias", "no"), ("dtype", "f16", "f16"),
     ("n", None, "-")],
)  # fmt: skip
def test_a_value_is_shown_without_the_name_of_its_axis(axis: str, value: str | None, shown: str) -> None:
    assert _value(axis, value) == shown


def test_a_label_is_what_the_axes_do_not_say() -> None:
    launch = LaunchDetails("k", 8, 0, 0, (128, 1, 1), None, 0)
    variant = VariantDetails("scale__f32__small", "scale", "scale", {"dtype": "f32"}, "s", (), 0, (launch,), (), True)
    assert _label(variant) == "small"
    assert [shape_text(sizes) for sizes in ((128, 1, 1), (16, 8, 1), (1, 1, 4), (1, 1, 1), None)] == [
        "128", "16x8", "1x1x4", "1", "-",
    ]  # fmt: skip


def test_a_table_fits_or_takes_two_lines_for_each_row() -> None:
    columns, row = ("arch", "name", "stack", "registers"), ("sm_80", "x", "-", 8)
    assert "stack" not in fitted_table(columns, [row], optional=["stack"])
    assert "stack" in fitted_table(columns, [(*row[:2], 4, 8)], optional=["stack"])
    wide = fitted_table(columns, [("sm_80", "x" * WIDTH, 16, 8), ("sm_90a", "y", 0, 10)], indent="  ")
    assert wide.splitlines()[2:4] == [f"  sm_80 {'x' * WIDTH}", "         16          8"]
