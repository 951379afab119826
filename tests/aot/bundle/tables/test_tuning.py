"""Tables that were measured: written and read back the same, refused in one line if anything is wrong with them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aot_runtime.arch import Arch

from aot.bundle.details import LaunchDetails, VariantDetails
from aot.bundle.tables.cells import packed
from aot.bundle.tables.tuning import (
    LeftOut,
    TunedDevice,
    TunedKernel,
    TunedSet,
    Tuning,
    check_tuning,
    is_small,
    read_tuning,
    tuning_name,
    tuning_text,
)
from aot.errors import UsageError

SM90 = Arch(9, 0, "a")
H200 = TunedDevice("NVIDIA H200", 132, "9.0")
SET = TunedSet(
    "gemm", {"dtype": "bf16"}, ("gemm__bf16__small", "gemm__bf16__large"), ((17, 65), (100,)), (0, 0, 0, 1, 1, 1)
)
TABLE = TunedKernel("gemm", SM90, ("m", "n * k"), (SET,), (LeftOut("gemm__bf16__wrong", "out: the error is 3"),))
TUNING = Tuning(H200, (TABLE,))
LAUNCH = LaunchDetails("entry", 1, 0, 0, None, None, 0)


def variant(name: str, **more: Any) -> VariantDetails:
    known = VariantDetails(name, "gemm", "gemm", {"dtype": "bf16"}, name, (), 0, (LAUNCH,), (), True)
    return replace(known, tuned_by={"m": "a.shape[0]", "n * k": "b.shape[0] * b.shape[1]"}, **more)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "h200.json"
    path.write_text(tuning_text(TUNING))
    assert read_tuning(path) == TUNING
    assert json.loads(path.read_text())["device"] == {
        "name": "NVIDIA H200",
        "multiprocessors": 132,
        "capability": "9.0",
        "bandwidth": 0,
    }


def test_runs_of_equal_cells_are_written_with_their_length(tmp_path: Path) -> None:
    bins = (tuple(range(1, 200)), tuple(range(1, 200)))
    long = replace(SET, bins=bins, cells=(0,) * 39_990 + (1,) * 7 + (0, 1, 0))
    path = tmp_path / "h200.json"
    path.write_text(tuning_text(Tuning(H200, (replace(TABLE, sets=(long,)),))))
    assert json.loads(path.read_text())["kernels"][0]["sets"][0]["cells"] == "0*39990;1*7;010"
    assert read_tuning(path).kernels[0].sets[0] == long


def test_choices_that_sets_share_are_written_once(tmp_path: Path) -> None:
    other = replace(SET, point={"dtype": "f16"}, variants=("gemm__f16__small", "gemm__f16__large"))
    third = replace(SET, point={"dtype": "f32"}, variants=("gemm__f32__small",), cells=(0,) * 6)
    tuning = Tuning(H200, (replace(TABLE, sets=(SET, other, third)),))
    path = tmp_path / "h200.json"
    path.write_text(tuning_text(tuning))
    first, second, last = json.loads(path.read_text())["kernels"][0]["sets"]
    assert "like" not in first and second["like"] == 0 and not {"bins", "cells"} & set(second) and "like" not in last
    assert read_tuning(path) == tuning


@pytest.mark.parametrize("schema", [1, 2, 3])
def test_a_table_of_an_earlier_schema_is_read(tmp_path: Path, schema: int) -> None:
    path = tmp_path / "h200.json"
    path.write_text(json.dumps({**with_set(cells=[0, 0, 0, 1, 1, 1]), "schema": schema}))
    assert read_tuning(path) == TUNING


@pytest.mark.parametrize(("count", "kind"), [(89, str), (90, list)])
def test_cells_are_a_text_if_there_are_enough_characters(tmp_path: Path, count: int, kind: type) -> None:
    names = tuple(f"gemm__bf16__{index}" for index in range(count))
    many = replace(SET, variants=names, bins=(tuple(range(1, count)), ()), cells=tuple(range(count)))
    tuning = Tuning(H200, (replace(TABLE, sets=(many,)),))
    path = tmp_path / "h200.json"
    path.write_text(tuning_text(tuning))
    assert isinstance(json.loads(path.read_text())["kernels"][0]["sets"][0]["cells"], kind)
    assert read_tuning(path) == tuning


def test_each_device_has_a_file_of_its_own() -> None:
    slice_ = TunedDevice("NVIDIA H200 MIG 1g.18gb", 16, "9.0")
    assert [tuning_name(H200), tuning_name(slice_)] == [
        "tuning/nvidia_h200_132.json",
        "tuning/nvidia_h200_mig_1g_18gb_16.json",
    ]


def with_set(**fields: Any) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(tuning_text(TUNING))
    data["kernels"][0]["sets"][0].update(fields)
    return data


def with_sets(*sets: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(tuning_text(TUNING))
    data["kernels"][0]["sets"] = list(sets)
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param([], "it has schema None, this version reads 1 to 5", id="a list"),
        pytest.param({"schema": 6}, "it has schema 6, this version reads 1 to 5", id="a later schema"),
        pytest.param({"schema": 1, "kernels": []}, "`device` is missing", id="no device"),
        pytest.param({**with_set(), "kernels": [7]}, "expected", id="no kernel"),
        pytest.param({**with_set(), "device": {"name": "", "multiprocessors": 132, "capability": "9.0"}}, "there is no such device", id="no name"),
        pytest.param({**with_set(), "device": {"name": "A\0B", "multiprocessors": 132, "capability": "9.0"}}, "there is no such device", id="a name that C would cut"),
        pytest.param({**with_set(), "device": {"name": "H200", "multiprocessors": 2**31, "capability": "9.0"}}, "there is no such device", id="too many multiprocessors"),
        pytest.param({**with_set(), "schema": True}, "it has schema True", id="a schema that is no number"),
        pytest.param({**with_set(), "kernels": 2 * with_set()["kernels"]}, "two tables for one kernel", id="twice"),
        pytest.param(with_set(bins=[[17, 65]]), "1 lists of bins for 2 extents", id="bins of one extent"),
        pytest.param(with_set(bins=[[65, 17], [100]]), "bins do not ascend", id="bins that descend"),
        pytest.param(with_set(bins=[[17, 2**63], [100]]), "does not fit in 64 bits", id="a bin that is too large"),
        pytest.param(with_set(cells=[0, 0]), "2 cells for 6 combinations", id="too few cells"),
        pytest.param(with_set(bins=[list(range(300)), list(range(300))], cells=[]), "of at most 262144", id="too many"),
        pytest.param(with_set(cells=[0, 0, 0, 1, 1, 2]), "a cell names no variant", id="a cell beyond the variants"),
        pytest.param(with_set(cells=[0, 0, 0, 1, 1, -1]), "a cell names no variant", id="a negative cell"),
        pytest.param(with_set(variants=[]), "0 variants", id="no variants"),
        pytest.param(with_set(variants=["one", "one"]), "2 variants; there must be 1 to 256 different", id="one twice"),
        pytest.param(with_set(cells="0*999999;"), "more than 262144 cells", id="a run without end"),
        pytest.param({**with_set(), "device": {"name": "H200", "multiprocessors": 1, "capability": "9"}}, "there is no such device", id="no capability"),
        pytest.param(with_set(cells="001"), "3 cells for 6 combinations", id="too short a text"),
        pytest.param(with_set(cells="00011*"), "set 0 has a cell '*', which stands for no variant", id="no digit"),
        pytest.param(with_set(cells="000112"), "a cell names no variant", id="a digit beyond the variants"),
        pytest.param(with_set(cells=7), "expected a list", id="a number for cells"),
        pytest.param(with_sets(*[{"cells": "0*65536;"}] * 200), "more than 8388608 cells", id="long runs"),
        pytest.param(with_sets({"cells": "0*65536;"}, *[{"like": 0}] * 200), "more than 8388608 cells", id="many alike"),
        pytest.param(with_sets(*[{"prefix": "x" * 65536, "variants": [""] * 200}]), "letters in names", id="long names"),
        pytest.param(with_set(like=0), "set 0 is like set 0, which is not one before it", id="like itself"),
        pytest.param(with_set(like=-1), "set 0 is like set -1", id="like a negative one"),
        pytest.param(with_set(like=[]), "set 0 is like set []", id="like no number"),
    ],
)  # fmt: skip
def test_a_table_with_a_mistake_is_refused_in_one_line(tmp_path: Path, data: Any, message: str) -> None:
    path = tmp_path / "h200.json"
    path.write_text(json.dumps(data))
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        read_tuning(path)
    assert error.value.message.startswith(f"`{path}` is not what `tune` writes: ")
    assert "\n" not in error.value.message


def test_what_is_no_json_and_what_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not what `tune` writes") as caught:
        read_tuning(tmp_path)  # a folder
    assert "\n" not in caught.value.message and "tune" in (caught.value.hint or "")
    (tmp_path / "text.json").write_text("no JSON")
    with pytest.raises(UsageError, match="is not what `tune` writes"):
        read_tuning(tmp_path / "text.json")
    with pytest.raises(UsageError, match=r"there is no file `.*absent\.json`"):
        read_tuning(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        pytest.param(
            [variant("gemm__bf16__small")],
            "names gemm__bf16__large, a variant that no longer exists",
            id="a spec that is gone",
        ),
        pytest.param(
            [variant("gemm__bf16__small"), variant("gemm__bf16__large", point={"dtype": "f16"})],
            "puts gemm__bf16__large at a point where it is not declared",
            id="another point",
        ),
        pytest.param(
            [replace(variant(name), tuned_by={"m": "a.shape[0]"}) for name in SET.variants],
            "was tuned by m, n * k, the declaration is by m",
            id="other extents",
        ),
    ],
)
def test_a_table_must_fit_the_variants_that_are_there(variants: list[VariantDetails], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"`h200.json`: the table of gemm for sm_90a {message}")):
        check_tuning(TUNING, {("gemm", SM90): variants}, "h200.json")


def test_a_table_that_fits_is_accepted() -> None:
    check_tuning(TUNING, {("gemm", SM90): [variant(name) for name in SET.variants]}, "h200.json")


def test_a_row_of_cells_is_there_once() -> None:
    """Two extents of three and two bins: the first and the last bin of the first one choose alike."""
    rows, cells = packed(((5, 9), (7,)), (0, 1, 1, 1, 0, 1))
    assert (rows, cells) == (bytes([0, 0, 1, 0, 0, 0]), bytes([0, 1, 1, 1]))
    assert packed(((5, 9),), (2, 0, 1)) == (bytes(2), bytes([2, 0, 1]))


def test_rows_have_numbers_of_two_bytes() -> None:
    assert is_small([65536, 4]) and is_small([4, 65536]) and is_small([512, 128, 4])
    assert not is_small([65537, 2]) and not is_small([65537]) and not is_small([512, 256, 4])
