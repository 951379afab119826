"""What is served takes arguments in order without a detour, and names and defaults too."""

from __future__ import annotations

import shutil
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from aot_runtime.errors import ArgumentError, SignatureError
from aot_runtime.serving import server
from aot_runtime.serving.calls import Call
from aot_runtime.serving.captured import CapturedCalls
from aot_runtime.serving.options import Options
from aot_runtime.serving.refusals import in_words_of_cute_dsl
from aot_runtime.serving.server import Serving, _Miss, _positional, serve
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cutlass_double import write_double
from observing import run_python
from without_frameworks import RESULTS as MAY_IMPORT

from aot.bundle.manifest import Manifest
from aot.bundle.writing import table_text


class _Bundle:
    """A bundle of one kernel with three parameters, which notes who is called."""

    def _symbol(self, kernel: str) -> Any:
        return lambda *args: ("entry", *args)

    def __getitem__(self, kernel: str) -> Any:
        return lambda a, b, c=None: ("function", a, b, c)


def test_arguments_in_order_reach_the_entry_and_others_the_function_with_names_and_defaults() -> None:
    served = _positional(_Bundle(), "scale_1", 3)  # type: ignore[arg-type]
    assert served(1, 2, 3) == ("entry", 1, 2, 3)
    assert served(1, 2) == ("function", 1, 2, None)
    assert served(1, b=2, c=3) == ("function", 1, 2, 3)
    assert served.__name__ == "scale_1"


REFUSED = """scale_1: no variant in bundle `rows` takes these arguments on compute capability 9.0
  called as: scale_1(a, b, c) with float16[32, 1024] strides (1024, 1); float32[512] strides (1); None
  sm_90a scale_1: {reason}"""


@pytest.mark.parametrize(
    ("reason", "begins"),
    [
        ("b.shape[0] is 512, must be 1024", "Mismatched b.shape[0] on argument #1, expected to be 1024\nscale_1: no"),
        (
            "c[0].strides[1] is 3, must equal a.strides[1], which is 2",
            "Mismatched c[0].strides[1] on argument #2, expected to match a.strides[1]\n",
        ),
        ("a.shape[1] is 6, must be divisible by 4", "Invalid a.shape[1] on argument #0, expected to be divisible by 4"),
        ("a.dtype is float32, must be float16", "Mismatched Tensor on argument #0, expected dtype=float16\n"),
        (
            "b lies on a device of type 1, must lie on a CUDA device",
            "Mismatched Tensor on argument #1, expected device_type=cuda\n",
        ),
        ("a starts 2 bytes past a multiple of 16, must be aligned", "scale_1: no variant"),
    ],
)
def test_a_wrong_argument_is_refused_in_the_words_of_cute_dsl_too(reason: str, begins: str) -> None:
    class Refusing(_Bundle):
        def _symbol(self, kernel: str) -> Any:
            def refuse(*args: Any) -> Any:
                raise ArgumentError(REFUSED.format(reason=reason))

            return refuse

    with pytest.raises(ValueError) as raised:
        _positional(Refusing(), "scale_1", 3)(1, 2, 3)  # type: ignore[arg-type]
    assert str(raised.value).startswith(begins) and str(raised.value).endswith(reason)


def test_tensors_of_the_cpu_are_refused_in_the_words_of_cute_dsl_too() -> None:
    refused = ArgumentError("scale_1: none of the tensors lies on a CUDA device\nhint: move the tensors to a GPU first")
    error = in_words_of_cute_dsl(refused, ["a", "b"])
    assert error.message.startswith("Mismatched Tensor, expected device_type=cuda\nscale_1: none")
    assert error.hint == "move the tensors to a GPU first"


def _serving(name: str, call: Call, sources: dict[str, str]) -> Serving:
    serving = Serving.__new__(Serving)
    serving.path, serving.miss, serving.asked_before = Path(name), "raise", ()
    read = {
        f"{number:012}": {"module": name, "source": sources[name], "values": {}} for number, name in enumerate(sources)
    }
    reads = {"sm_90a": {"modules": list(read), "environment": {}, "device": []}}
    record = {"captured": {"key": call.key, "call": call.data, "reads": reads}, "parameters": []}
    kernels = {f"{name}_{call.key[:10]}": record}
    serving._calls = CapturedCalls(table_text("kernels", kernels, read=read), name)
    return serving


def test_a_miss_in_several_bundles_names_the_nearest_call_of_all_of_them() -> None:
    def call(callable: str, threads: int) -> Call:
        return Call({"callable": callable, "attributes": {"n": 64, "threads": threads}}, Options({}))

    first, second = (
        _serving("first", call("lib.Other", 32), {}),
        _serving("second", call("lib.Norm", 32), {"gone": "0"}),
    )
    first.asked_before = (second,)
    missed = first._explained(call("lib.Norm", 64))
    lines = missed.reason.splitlines()
    assert lines[:2] == [
        "`first`, `second` do not have this call of lib.Norm",
        f"  the nearest captured call is second_{call('lib.Norm', 32).key[:10]}, which differs:",
    ]
    assert lines[2].strip() == "attributes.threads: captured 32, this call 64"
    changed = first._explained(call("lib.Norm", 32))
    assert changed.reason.startswith("`second` has second_") and "the source of gone changed" in changed.reason
    unknown = first._explained(call("lib.Unknown", 32))
    assert [miss.bundle.name for miss in (missed, changed, unknown)] == ["second", "second", "first"]


def test_the_hint_of_a_miss_is_a_command_that_replaces_the_bundle_and_asks_only_for_what_is_left_to_do(
    small_bundle_path: Path,
) -> None:
    manifest = Manifest.read(small_bundle_path)
    command = f"python -m aot capture EXERCISE --name {manifest.name} --arch {manifest.archs[0]}"
    assert (
        _Miss("", small_bundle_path).hint().startswith(f"make the call in the exercise and capture again: `{command}")
    )
    assert f" --out {small_bundle_path}`; " in _Miss("", small_bundle_path).hint()
    changed = _Miss("", small_bundle_path, changed=True)
    assert changed.hint().startswith(f"capture again: `{command}")


def test_a_miss_names_the_version_of_cute_dsl_if_the_bundle_was_built_with_another(
    small_bundle_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = Manifest.read(small_bundle_path).toolchain["nvidia-cutlass-dsl"]
    for version, said in ((built, False), ("4.5.0", True)):
        cutlass = ModuleType("cutlass")
        cutlass.__version__ = version  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "cutlass", cutlass)
        error = _Miss("a miss", small_bundle_path).error()
        assert (f"with CuTe DSL {built}, and this process has {version}" in error.message) is said
        assert (f"install nvidia-cutlass-dsl=={built}, or " in (error.hint or "")) is said


@pytest.mark.parametrize(("hits", "said"), [(0, "0 kernels served"), (1, "1 kernel served"), (2, "2 kernels served")])
def test_the_report_counts_kernels(hits: int, said: str) -> None:
    serving = Serving.__new__(Serving)
    serving.path, serving.hits, serving.misses, serving.seconds = Path("first"), hits, 0, 0.0
    assert serving.report().startswith(f"aot: {said} from `first`, 0 not found")


def test_what_is_served_must_be_signed_if_a_key_is_given(small_bundle_path: Path, tmp_path: Path) -> None:
    private = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    key = private.public_key().public_bytes_raw()
    signed = Path(shutil.copytree(small_bundle_path, tmp_path / "signed"))
    (signed / "manifest.sig").write_bytes(private.sign((signed / "manifest.json").read_bytes()))
    with Serving(signed, "raise", key, "small") as serving:
        assert serving._open().name == "small"
    for other, name in ((bytes(32), None), (key, "other")):
        with pytest.raises(SignatureError):
            serve(signed, key=other, name=name)
        with Serving(signed, "raise", other, name) as serving, pytest.raises(SignatureError):
            serving._open()


def test_who_opens_the_bundle_no_longer_waits_for_somebody_to_import_tvm_ffi(
    small_bundle_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader imports it, and would be asked to open the bundle in the middle of that."""
    stopped: list[bool] = []
    monkeypatch.setattr(server, "prepare_options", lambda: None)
    monkeypatch.setattr(server, "when_loaded", lambda *_: lambda: stopped.append(True))
    with Serving(small_bundle_path, "raise") as serving:
        serving._prepare()
        serving._open()
        assert stopped == [True, True], "for torch, too"


def test_records_of_calls_are_those_of_the_code_that_is_open(small_bundle_path: Path, tmp_path: Path) -> None:
    served = Path(shutil.copytree(small_bundle_path, tmp_path / "served"))
    with Serving(served, "raise") as serving:
        content = serving._open()._kernels_content
        (served / "kernels.json").unlink()  # a build replaces the bundle
        (served / "kernels.json").write_text('{"kernels": {}}')
        assert serving._captured()._content == content
        assert serving._open() is serving._open(), "the code stays the same too"


def test_a_bundle_is_opened_once_torch_is_imported(tmp_path: Path) -> None:
    """Most programs import CuTe DSL before torch. The first compile would wait for TVM-FFI, and for the bundle."""
    write_double(tmp_path)
    (tmp_path / "torch.py").write_text("import cutlass.base_dsl.compiler\n__version__ = '2'\n")
    code = """
    import sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from aot_runtime.serving.server import Serving
    opened = []
    Serving._open = lambda self: opened.append(True) or self._stop_waiting()
    for half_imported in sys.argv[2:]:
        serving = Serving(Path("nowhere"), "raise")
        import cutlass.base_dsl.compiler
        assert not opened and len(serving._waiting) == 2
        if half_imported == "half":
            import tvm_ffi
        else:
            import torch
        print(len(opened), type(sys.modules["torch"].__spec__.loader).__name__, len(serving._waiting))
    """
    (tmp_path / "tvm_ffi.py").write_text("import torch\nfrom aot_runtime.serving import server\n__all__ = ['done']\n")
    variables = {MAY_IMPORT: "this is such a process"}
    for half_imported in ("half", "not"):  # TVM-FFI imports torch: the loader would find half of it
        assert run_python(code, tmp_path, half_imported, variables=variables) == "1 SourceFileLoader 0"


def test_the_library_that_all_kernels_need_is_opened_with_the_bundle(small_bundle_path: Path) -> None:
    code = """
    import sys
    from pathlib import Path
    from aot_runtime.serving.server import Serving
    with Serving(Path(sys.argv[1]), "raise") as serving:
        serving._open()
    print(any(line.rstrip().endswith("_cuda.so") for line in open("/proc/self/maps")))
    """
    assert run_python(code, small_bundle_path) == "True"


@pytest.mark.parametrize(("state", "opened"), [("there", [True]), ("being imported", []), ("absent", [])])
def test_a_bundle_is_opened_before_the_first_compile_if_torch_is_there(
    state: str, opened: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    torch = ModuleType("torch")
    torch.__spec__ = ModuleSpec("torch", None)
    torch.__spec__._initializing = state == "being imported"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch) if state != "absent" else monkeypatch.delitem(
        sys.modules, "torch", raising=False
    )
    monkeypatch.setattr(server, "prepare_options", lambda: None)
    monkeypatch.setattr(server, "when_loaded", lambda *_: lambda: None)  # nobody imports TVM-FFI
    monkeypatch.setattr(Serving, "_open", lambda self: seen.append(True))
    serving = Serving(Path("nowhere"), "raise")
    try:
        serving._prepare()
    finally:
        serving.close()
    assert seen == opened
