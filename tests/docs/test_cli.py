"""``docs/reference/cli.md`` lists what the command line takes, and the keys that ``--json`` prints, with their types."""

from __future__ import annotations

import ast
import inspect
import json
import math
import re
import shutil
from importlib import import_module
from pathlib import Path

import aot_runtime
import pytest
from aot_runtime.arch import Arch
from places import EXAMPLE

import aot
from aot.bundle.manifest import Manifest
from aot.bundle.tables.tuning import LeftOut, TunedDevice, TunedKernel, TunedSet, Tuning
from aot.cli.commands import bench, build, capture, check, tune
from aot.cli.main import COMMANDS, main
from aot.errors import Failure
from aot.gpu.bench import Result, results_data
from aot.gpu.check import Outcome, Report, finite, report_data
from aot.gpu.running import Gpu, GpuFacts, variants_of
from aot.gpu.tune import Measured, TuneReport
from aot.pipeline.events import Clock
from aot.pipeline.settings import BuildResult
from tools import api, c_api, cpp_api, json_page, kernel_page, reference
from tools.json_types import fields, problems, records

TEXT = reference.PAGE.read_text()


def test_every_option_is_listed() -> None:
    assert reference.rewritten(TEXT) == TEXT, "run `python tools/reference.py`"
    assert set(re.findall(r"<!-- command: (\w+) -->", TEXT)) == {*COMMANDS, "errors", "version"}


def test_everything_public_in_python_is_described_as_it_is() -> None:
    assert api.page() == api.PAGE.read_text(), "run `python tools/reference.py`"
    described = set(re.findall(r"^### `(.*)`$", api.PAGE.read_text(), re.MULTILINE))
    for module in (aot, aot_runtime):
        for name in module.__all__:
            is_error = isinstance(value := getattr(module, name), type) and issubclass(value, Exception)
            assert is_error != (f"{module.__name__}.{name}" in described), name
    assert {"aot_runtime.torch.register", "aot_runtime.jax.register", "aot_runtime.serve"} <= described


def test_every_function_of_the_c_header_is_described() -> None:
    assert c_api.page() == c_api.PAGE.read_text(), "run `python tools/reference.py`"
    described = set(re.findall(r"^### `(\w+)`$", c_api.PAGE.read_text(), re.MULTILINE))
    header = c_api.HEADER.read_text().partition("/* ---- errors ---- */")[0]
    declared = set(re.findall(r"^(?:static inline )?[\w* ]+\b(aot_\w+[a-z])\(", header, re.MULTILINE))
    assert declared <= described and "aot_open" in declared
    codes = set(re.findall(r"^\s*(AOT_OK|AOT_ERROR_\w+) = \d+", c_api.HEADER.read_text(), re.MULTILINE))
    assert codes and codes == set(re.findall(r"^\| `(AOT_\w+)` \| \d+ \|", c_api.PAGE.read_text(), re.MULTILINE))


def test_every_structure_of_the_protocol_is_described() -> None:
    described = set(re.findall(r"^### `(\w+)`$", c_api.PAGE.read_text(), re.MULTILINE))
    defined = re.findall(r"^\} (aot_\w+);$", c_api.PROTOCOL.read_text(), re.MULTILINE)
    assert {*defined, "aot_options", "aot_entry"} <= described and "aot_interface" in defined


def test_everything_public_in_cpp_is_described_without_what_is_private() -> None:
    page = cpp_api.page()
    assert page == cpp_api.PAGE.read_text(), "run `python tools/reference.py`"
    header = cpp_api.HEADER.read_text()
    described = set(re.findall(r"^### `(\w+)`$|^\| `AOT_\w+` \| `(\w+)`", page, re.MULTILINE))
    names = {name for pair in described for name in pair if name}
    assert {*re.findall(r"^(?:class|struct) (\w+)", header, re.MULTILINE), "tensor", "dtype_of"} == names - {"DType"}
    assert not re.search(r"detail::|\w_[;({,]|private:|return ", page)
    for member in ("workspace_size(const Arguments&... arguments) const;", "void preload(int device = 0) const;"):
        assert member in page


def test_signatures_are_those_of_the_code() -> None:
    """The page is made from the text of the sources; Python's own view of two functions must be the same."""
    for function in (aot_runtime.load, aot.Out):
        found = api.find(api.PROJECT / inspect.getsourcefile(function), function.__name__)
        shown = ast.parse(f"def {api.signature(found, function.__name__)}: ...").body[0]
        assert isinstance(shown, ast.FunctionDef)
        names = [argument.arg for argument in (*shown.args.args, *shown.args.kwonlyargs)]
        assert names == list(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("list", ["--source", str(EXAMPLE / "kernels"), "--arch", "sm90"]),
        ("inspect", ["BUNDLE"]),
        ("verify", ["BUNDLE"]),
        ("sign", ["BUNDLE", "--key", "release", "--new-key"]),
        ("prune", ["BUNDLE", "--kernel", "fill_epilogue"]),
        ("merge", ["BUNDLE", "--out", "joined"]),
        ("wheel", ["BUNDLE", "--version", "1.0"]),
        ("config", ["BUNDLE"]),
        ("config", ["--archs", "sm90", "H100"]),
        ("doctor", []),
        ("report", ["BUNDLE", "--diff", "BUNDLE"]),
        ("new", ["my_kernels", "--cpp", "--torch"]),
        ("diff", ["BUNDLE", "BUNDLE"]),
        ("explain", ["BUNDLE", "fill_stream_zero", "out=f32[8]", "--device", "8.0"]),
        ("inspect", ["BUNDLE", "--size"]),
        ("cache", ["--cache", "."]),
    ],
)
def test_json_has_the_keys_that_are_listed(
    command: str,
    arguments: list[str],
    small_bundle_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if "BUNDLE" in arguments:
        shutil.copytree(small_bundle_path, tmp_path / "bundle")
    words = ["bundle" if word == "BUNDLE" else word for word in arguments]
    assert main([command, *words, "--json"]) == 0
    keys = import_module(f"aot.cli.commands.{command}").KEYS
    assert problems(json.loads(capsys.readouterr().out), keys, partly=True) == []


class PlayedGpu(Gpu):
    """A GPU whose facts need no torch."""

    def facts(self) -> GpuFacts:
        return {"gpu": self.name, "capability": "9.0", "date": "2026-11-16", "torch": "2.11"}


GPU = PlayedGpu("NVIDIA H200", (9, 0), multiprocessors=132)
FAILED = Failure("add__f32", "does not compile", "line 1", "add", "sm_80")


def built(manifest: Manifest) -> dict[str, object]:
    return build.result_data(BuildResult(Path("dist/small"), manifest, (FAILED,)), Clock())


def captured(manifest: Manifest) -> dict[str, object]:
    call = {"call": {"callable": "quack.rmsnorm"}, "called_from": "quack.compile"}
    kernels = {name: record.replace(captured=call) for name, record in manifest.kernels.items()}
    result = BuildResult(Path("dist/small"), manifest.replace(kernels=kernels), ())
    return {**built(manifest), "captured": capture._captured(result)}


def checked(manifest: Manifest, bundle: Path) -> dict[str, object]:
    (variant, *_) = [(str(arch), one.name) for arch, own in variants_of(bundle, manifest).items() for one in own]
    passed = Outcome("add", "f16", {"op": "relu"}, "x 8", *variant, "", 0.1, 0.2, 0.5)
    refused = Outcome("add", "f16", {}, "x 8", "", "", "RuntimeError: no", finite(math.inf), finite(math.nan))
    return report_data(bundle, manifest, Report(GPU, (passed, refused), (("sm_80", "add__f32"),), ("scale",)))


def measured() -> dict[str, object]:
    times = {"aot": 2.0, "torch": 4.0}
    return results_data(GPU, [Result("add", "f16", {}, "x 8", "add__f16", times, 4096, 512, 3e12)])


def tuned() -> dict[str, object]:
    cells = TunedSet("gemm", {"dtype": "f16"}, ("gemm__a", "gemm__b"), ((64,),), (0, 1))
    kernel = TunedKernel("gemm", Arch.parse("sm_90a"), ("m",), (cells,), (LeftOut("gemm__c", "differs"),))
    call = Measured("gemm", "sm_90a", "gemm", {"dtype": "f16"}, (64,), "gemm__a", {"gemm__a": 2.0, "gemm__b": 1.0})
    report = TuneReport(Tuning(TunedDevice("NVIDIA H200", 132, "9.0"), (kernel,)), (call,), ("add",))
    return tune._data(report)


def test_json_of_what_takes_long_or_a_gpu_is_as_it_is_listed(small_bundle_path: Path) -> None:
    manifest = Manifest.read(small_bundle_path)
    printed = {
        build: built(manifest),
        capture: captured(manifest),
        check: checked(manifest, small_bundle_path),
        bench: measured(),
        tune: tuned(),
    }
    for command, data in printed.items():
        # Infinity and NaN are not JSON.
        text = json.dumps(data, allow_nan=False)
        assert problems(json.loads(text), command.KEYS, partly=True) == [], command.__name__


def test_every_shipped_kernel_is_described() -> None:
    assert kernel_page.page() == kernel_page.PAGE.read_text(), "run `python tools/reference.py`"


def test_every_record_is_described() -> None:
    assert json_page.page() == json_page.PAGE.read_text(), "run `python tools/reference.py`"
    kinds = records([key.kind for _, keys in json_page.keys_by_user() for key in keys])
    assert {"KernelInfo", "KernelOutlook", "Failure", "ErrorData", "VariantDetails", "Candidate"} - kinds.keys() == {
        "VariantDetails"  # `inspect` prints it with its architecture
    }
    assert [f"{name}.{field.name}" for name, kind in kinds.items() for field in fields(kind) if not field.meaning] == []
