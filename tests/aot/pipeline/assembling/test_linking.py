"""What a bundle says of a kernel follows from its declaration."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from aot_runtime.arch import Arch
from aot_runtime.description.kernel_records import Backward, Choice, Parameter

from aot.cache.store import Store
from aot.compile.messages import KernelInfo
from aot.errors import ToolchainError
from aot.hosts import Host
from aot.link.zig import Zig
from aot.pipeline.assembling.linking import _built, _shared, _Source, linkers
from aot.pipeline.executing.compiling import CompiledKernel
from aot.pipeline.settings import Settings


def test_a_built_kernel_has_the_signature_of_its_declaration() -> None:
    backward = Backward("act_backward", ("x",), ("x",))
    parameters, choices = (Parameter("x"), Parameter("out", output=True)), (Choice("op", ("relu",)),)
    sm_90a = Arch(9, 0, "a")
    info = KernelInfo(
        "act", "Text.", "act.py:1", parameters, choices, ("act__relu",), (sm_90a,), {}, backward=backward, family="rows"
    )
    signature = _built(_Source(CompiledKernel(info, sm_90a, (), ()), {}, "", frozenset()), {}).signature
    assert (signature.name, signature.doc, signature.functions) == ("act", "Text.", ("act__relu",))
    assert (signature.parameters, signature.choices, signature.backward) == (parameters, choices, backward)


def test_launchers_that_differ_only_by_their_names_are_linked_once() -> None:
    def text(name: str, grid: int = 1) -> str:
        return f"define i32 @__tvm_ffi_{name}() {{ call @__cute_internal_{name}_launch(i32 {grid}) }}"

    texts = {"act__relu": text("act__relu"), "act__silu": text("act__silu"), "act__gelu": text("act__gelu", grid=2)}
    assert _shared(texts) == {"act__relu": "act__relu", "act__silu": "act__relu", "act__gelu": "act__gelu"}


@pytest.mark.parametrize(
    ("jobs", "memory", "known"), [(2, None, False), (1, None, False), (2, 1 << 33, False), (2, None, True)]
)
def test_zig_prepares_itself_while_kernels_are_compiled(
    jobs: int, memory: int | None, known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its first library. One process at a time, or a limit on memory, leave no room for it."""
    prepared, done = [], threading.Event()

    def prepare(zig: Zig, host: Host, folder: Path) -> None:
        prepared.append((host, folder.parent))
        done.set()
        raise ToolchainError("it is reported when the bundle is linked")

    monkeypatch.setattr(Zig, "prepare", prepare)
    if known:
        (tmp_path / "zig" / "global").mkdir(parents=True)
    settings = Settings("kernels", ("sm90",), jobs=jobs, memory=memory, cache=tmp_path)
    with linkers(tmp_path, tmp_path, 1, None) as linker_for:
        linker_for.prepare(settings)
    runs = jobs == 2 and memory is None and not known
    assert done.wait(30 if runs else 0) == runs
    assert prepared == ([(Host.native(), tmp_path)] if runs else [])


def test_what_every_bundle_has_is_compiled_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def compile_c(zig: Zig, host: Host, source: Path, output: Path, includes: object, **flags: bool) -> None:
        compiled.append(source.name)
        output.write_text(source.name)

    monkeypatch.setattr(Zig, "prepare", lambda zig, host, folder: None)
    monkeypatch.setattr(Zig, "compile_c", compile_c)
    store = Store(tmp_path / "artifacts")
    with linkers(tmp_path, tmp_path, 1, store) as linker_for:
        linker_for(Host.native()).prepare()
        assert {"aot_dispatch.c", "aot_torch_call.c"} <= set(compiled)
        compiled.clear()
        linker = linker_for(Host.native())
        assert all(path.read_text() == f"{path.stem}.c" for path in linker.runtime_objects())
    assert not compiled
