"""``bench --ncu`` shows what Nsight Compute counted; here a script stands for it, and a text for what it prints."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aot import Cost
from aot.bundle.contracts import Contract
from aot.cli.commands import bench
from aot.cli.main import main
from aot.errors import UsageError
from aot.gpu import bench as measuring
from aot.gpu import ncu
from aot.gpu.contenders import Problem, problems_of, runs_of
from aot.gpu.ncu import METRICS, Call, profile, read_profiles
from aot.gpu.running import Gpu
from tools.json_types import problems

CALLS = [
    Call(0, "aot", "add bf16", 'x 8x8 strides (16, 1), mode "a:b#c"', "add__bf16__t128"),
    Call(0, "torch", "add bf16", "x 8x8", ""),
]
UNITS = ["ns", "%", "%", "%", "register/thread", "byte/block", "byte/block", "hz", "hz"]
RANGES = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
TITLES = ["ID", "Process ID", "Process Name", "Host Name", RANGES, "Kernel Name", "Context", *METRICS]


def printed(*rows: tuple[Call | None, tuple[object, ...]], units: list[str] = UNITS) -> str:
    """As ``ncu --csv --page raw --nvtx --print-units base`` prints it: what it did, titles, units, a row per kernel."""
    text = io.StringIO()
    write = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow
    write(TITLES)
    write([""] * (len(TITLES) - len(units)) + units)
    for at, (call, counts) in enumerate(rows):
        cell = f'1  "<default domain>:{call.range_name()}:none:none:none:none:none:none"' if call else ""
        write([str(at), "7", "python3.12", "127.0.0.1", cell, "kernel(float *, int)", "1", *map(str, counts)])
    return f"==PROF== Connected to process 7 (/usr/bin/python3.12)\n==PROF== Disconnected\n{text.getvalue()}"


OURS = (CALLS[0], (12_340, 40, 80, 50, 168, 1024, 100_000, 1_500_000_000, "3,200,000,000"))
THEIRS = [
    (CALLS[1], (10_000, 0, 90, 30, 32, 0, 0, 1_500_000_000, 3_200_000_000)),
    (CALLS[1], (30_000, 20, 50, 70, 64, 512, 0, 1_500_000_000, 3_200_000_000)),
]


def test_the_kernels_of_a_call_are_added_up() -> None:
    ours, theirs = read_profiles(printed(OURS, (None, OURS[1]), *THEIRS))
    assert ours.call == CALLS[0]
    assert (ours.kernels, ours.microseconds, ours.registers, ours.shared) == (1, 12.34, 168, 101_024)
    assert (ours.sm_megahertz, ours.dram_megahertz) == (1500, 3200)
    assert (theirs.kernels, theirs.microseconds, theirs.registers, theirs.shared) == (2, 40, 64, 512)
    # Weighted by how long each kernel ran: 10 and 30 microseconds.
    assert (theirs.tensor, theirs.dram, theirs.occupancy) == (15, 60, 60)


def test_what_a_chip_does_not_count_is_not_shown_as_zero() -> None:
    (one,) = read_profiles(printed((CALLS[0], (1000, "n/a", *OURS[1][2:]))))
    assert one.tensor is None
    assert "  -  " in bench.profiles_table([one])


def test_the_pipe_of_capability_10_counts_too() -> None:
    extra = "sm__pipe_tc_cycles_active.avg.pct_of_peak_sustained_elapsed"
    lines = printed(OURS).splitlines()
    lines[2:] = [f'{line},"{text}"' for line, text in zip(lines[2:], (extra, "%", "77"), strict=True)]
    (one,) = read_profiles("\n".join(lines))
    assert one.tensor == 77
    assert ncu.ncu_command(["b"], 10)[-2].endswith(f",{extra}")
    assert extra not in " ".join(ncu.ncu_command(["b"], 9))


@pytest.mark.parametrize("unit", ["usecond", "us"])
def test_units_are_read(unit: str) -> None:
    (one,) = read_profiles(printed(OURS, units=[unit, *UNITS[1:-2], "Ghz", "cycle/nsecond"]))
    assert one.microseconds == 12_340
    assert one.sm_megahertz == 1.5e12


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("==PROF== Connected\n==WARNING== No kernels were profiled.\n", "there is no table"),
        ('"ID","Kernel Name"\n"",""\n', "ncu did not count gpu__time_duration.sum"),
        (printed(OURS).replace(RANGES, "Context 2"), "ncu did not count with NVTX ranges"),
        (printed(OURS, units=["fortnight", *UNITS[1:]]), "in 'fortnight', which is not known"),
    ],
)
def test_what_is_no_such_table_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_profiles(text)


def test_the_table_fits_a_terminal() -> None:
    text = bench.profiles_table(read_profiles(printed(OURS, *THEIRS)))
    assert text.splitlines()[0].startswith("add bf16: x 8x8 strides")
    assert text.splitlines()[1] == "  add__bf16__t128"
    assert text.splitlines()[3].split() == ["aot", "12.3", "40%", "80%", "50%", "168", "99", "KB", "1", "1500"]
    assert text.splitlines()[-1] == "DRAM clock: 3200 MHz"
    assert max(map(len, text.splitlines())) <= 80


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A script called ncu that keeps its arguments and writes a log."""

    def install(log: str, code: int = 0) -> Path:
        (tmp_path / "log").write_text(log)
        program = tmp_path / "ncu"
        program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\ncp {tmp_path}/log "$2"\nexit {code}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return tmp_path / "arguments"

    return install


def test_ncu_profiles_the_same_benchmark(
    installed: Callable[..., Path], small_bundle_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = installed(printed(OURS, *THEIRS))
    assert main(["bench", str(small_bundle_path), "--ncu", "--kernel", "add", "--against", "torch", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert problems(data, bench.KEYS, partly=True) == []
    assert [one["call"]["contender"] for one in data["profiles"]] == ["aot", "torch"]
    words = arguments.read_text().split()
    assert words[0] == "--log-file"
    assert words[-7:] == [str(small_bundle_path), "--kernel", "add", "--against", "torch", "--profile", "--quiet"]
    assert ",".join(METRICS) in words


@pytest.mark.parametrize(
    ("log", "hint"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "run this as root"),
        ("==ERROR== Failed to find metric sm__x", "Failed to find metric sm__x"),
    ],
)
def test_what_ncu_says_of_its_failure_is_shown(
    installed: Callable[..., Path], small_bundle_path: Path, log: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(log, 1)
    assert main(["bench", str(small_bundle_path), "--ncu"]) == 2
    assert hint in capsys.readouterr().err


def test_without_ncu_the_command_is_shown(
    small_bundle_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert main(["bench", str(small_bundle_path), "--ncu", "--kernel", "fill*"]) == 2
    err = capsys.readouterr().err
    profiled = [
        sys.executable,
        "-m",
        "aot",
        "bench",
        str(small_bundle_path),
        "--kernel",
        "fill*",
        "--profile",
        "--quiet",
    ]
    command = shlex.join(ncu.ncu_command(profiled))
    assert f"with it, run `{command} > profile.csv`" in err
    assert f"then `python -m aot bench {small_bundle_path} --ncu-csv profile.csv`" in err


def test_what_ncu_wrote_elsewhere_is_shown(
    small_bundle_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profile.csv").write_text(printed(OURS))
    assert main(["bench", str(small_bundle_path), "--ncu-csv", str(tmp_path / "profile.csv")]) == 0
    assert "add__bf16__t128" in capsys.readouterr().out
    assert main(["bench", str(small_bundle_path), "--ncu-csv", str(tmp_path / "none.csv")]) == 2


class Played:
    """A bundle whose one kernel notes that it was called."""

    def __init__(self, name: str, notes: list[str], variant: str | None = "add__v", parameters: str = "x") -> None:
        self.note = lambda **_: notes.append(name)
        named = [SimpleNamespace(name=one, output=False) for one in parameters.split()]
        record = SimpleNamespace(name="add", choices=(), parameters=named, functions=("add",))
        self.manifest = SimpleNamespace(kernels={"add": record})
        self.chosen = None if variant is None else SimpleNamespace(variant=variant)

    def __getitem__(self, kernel: str) -> Any:
        return self.note

    def explain(self, *args: Any, **arguments: Any) -> Any:
        return SimpleNamespace(chosen=self.chosen)


def problem() -> Problem:
    def unused(*_: object, **__: object) -> None:
        raise AssertionError

    return Problem("add", "bf16", {}, {"x": 1}, Contract(unused, unused))


def test_another_bundle_takes_part_if_it_takes_the_call() -> None:
    notes: list[str] = []
    others = {
        "same": Played("same", notes),
        "refusing": Played("refusing", notes, variant=None),
        "other signature": Played("other", notes, parameters="y"),
        "torch": None,
    }
    runs = runs_of(problem(), Played("aot", notes), Gpu("a GPU", (9, 0)), others, [{"x": 1}], [{}])
    assert list(runs) == ["aot", "same"]
    runs["same"](0)
    assert notes == ["same"]


@pytest.mark.parametrize(
    ("taken", "wanted", "measured"),
    [
        pytest.param({"f16", "bf16", "f32"}, (), ["bf16"], id="bf16 first"),
        pytest.param({"f16", "f32"}, (), ["f16"], id="no bf16"),
        pytest.param({"f32"}, (), ["f32"], id="f32 alone"),
        pytest.param({"i8"}, (), ["bf16"], id="none of them: the call is refused"),
        pytest.param({"f16"}, ("f32", "f16"), ["f32", "f16"], id="as asked for"),
    ],
)
def test_calls_are_measured_in_a_dtype_that_the_kernel_takes(
    taken: set[str], wanted: tuple[str, ...], measured: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Choosy(Played):
        def explain(self, *args: Any, **arguments: Any) -> Any:
            return SimpleNamespace(chosen=self.chosen if arguments["x"] in taken else None)

    def unused(*_: object, **__: object) -> None:
        raise AssertionError

    def inputs(make: object, dtype: str) -> Iterator[dict[str, str]]:
        yield {"x": dtype}

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    monkeypatch.setattr("aot.gpu.running.InputMaker", lambda device: None)
    contract = Contract(unused, unused, cost=lambda x: Cost(operations=1, bytes=1), bench_inputs=inputs)
    found = problems_of(Choosy("aot", []), {"add": contract}, ["add"], Gpu("a GPU", (9, 0)), wanted)
    assert [one.dtype for one in found] == measured


def test_bench_measures_every_contender_that_takes_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """What times them is played: a call takes 2 microseconds, a copy 1."""
    notes: list[str] = []

    def unused(*_: object, **__: object) -> None:
        raise AssertionError

    def inputs(make: object, dtype: str) -> Iterator[dict[str, int]]:
        yield {"x": 8 if dtype == "bf16" else 4}

    def equivalent(x: int) -> None:
        notes.append(f"torch {x}")

    cost = lambda x: Cost(operations=x, bytes=16)  # noqa: E731
    contract = Contract(unused, unused, cost=cost, bench_inputs=inputs, torch_equivalent=equivalent)
    memory = SimpleNamespace(copy_=lambda source: None)
    torch = SimpleNamespace(empty=lambda *_, **__: memory, empty_like=lambda tensor: tensor, uint8=None)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr("aot.gpu.running.InputMaker", lambda device: None)
    monkeypatch.setattr(measuring, "cache_bytes", lambda device: 16)
    monkeypatch.setattr(measuring, "graph_timer", lambda run, sets: lambda: (run(sets - 1), 2.0)[1])
    monkeypatch.setattr(measuring, "_events_around", lambda run, calls: lambda: 1.0)
    others = {"torch": None, "other": Played("other", notes), "refusing": Played("refusing", notes, variant=None)}
    bundle, gpu = Played("aot", notes), Gpu("a GPU", (9, 0))
    (result,) = measuring.bench(bundle, {"add": contract}, ["add", "fill"], gpu, against=others, rounds=1)
    assert (result.label, result.arguments, result.variant) == ("add bf16", "x 8", "add__v")
    assert result.microseconds == {"aot": 2.0, "torch": 2.0, "other": 2.0}
    assert (result.bytes, result.operations) == (16, 8)
    assert sorted(notes) == ["aot", "other", "torch 8"]


def test_each_call_is_made_once_in_a_range_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []

    def noting(text: str) -> Callable[..., None]:
        return lambda *given: notes.append(" ".join((text, *given)))

    profiler = SimpleNamespace(start=noting("start"), stop=noting("stop"))
    nvtx = SimpleNamespace(range_push=noting("push"), range_pop=noting("pop"))
    cuda = SimpleNamespace(synchronize=lambda: None, profiler=profiler, nvtx=nvtx)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))

    def one() -> Iterator[Problem]:
        yield problem()

    others = {"other": Played("other", notes)}
    made = list(profile(one(), Played("aot", notes), Gpu("a GPU", (9, 0)), others))
    assert [(call.contender, call.variant) for call in made] == [("aot", "add__v"), ("other", "")]
    for name, call in zip(("aot", "other"), made, strict=True):
        own, notes = notes[:7], notes[7:]
        assert own == [name, name, "start", f"push {call.range_name()}", name, "pop", "stop"]
