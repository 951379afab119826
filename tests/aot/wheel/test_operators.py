"""The module ``torch`` of a generated package: what its stub says, and that it works with torch."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import aot_runtime
import pytest
from aot_runtime.description.kernel_records import Choice, KernelRecord, Parameter

from aot.bundle.manifest import Manifest
from aot.errors import UsageError
from aot.wheel.identity import Identity
from aot.wheel.operators import operators_module, operators_stub

X = Parameter("x", type="tensor")
OUT = Parameter("out", output=True, shape="x.shape", dtype="x.dtype", type="tensor")
SCALE = Parameter("scale", output=True, shape="(x.shape[0],)", dtype="f32", type="tensor")
EPS = Parameter("eps", has_default=True, default=1e-6, type="float")
BIAS = Parameter("bias", has_default=True, default=None, type="tensor?")


def record(name: str, *parameters: Parameter, op: tuple[str, ...] = (), default: str | None = None) -> KernelRecord:
    choices = (Choice("op", op, default),) if op else ()
    return KernelRecord(name, "", parameters, choices, tuple(f"{name}__{o}" for o in op) or (name,), (), 1)


KERNELS = {
    kernel.name: kernel
    for kernel in (
        record("act", X, OUT, op=("relu", "silu"), default="relu"),
        record("norm", X, OUT, EPS, BIAS),
        record("quantize", X, OUT, SCALE),
        record("pointed", X, OUT, Parameter("p", type="pointer")),
    )
}
MANIFEST = Manifest("kernels", True, KERNELS, {})
IDENTITY = Identity.parse("my_kernels", "1.0")


def test_the_stub_has_types_defaults_and_both_forms_of_every_operator() -> None:
    stub = operators_stub(MANIFEST)
    ast.parse(stub)
    for line in (
        "    def __call__(self, x: Tensor, eps: float = 1e-06, bias: Tensor | None = None) -> Tensor: ...",
        "    def out(x: Tensor, eps: float = 1e-06, bias: Tensor | None = None, *, out: Tensor) -> None: ...",
        "    def __call__(self, x: Tensor, *, op: Literal['relu', 'silu'] = 'relu') -> Tensor: ...",
        "    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]: ...",
        "    def out(x: Tensor, *, out: Tensor, scale: Tensor) -> None: ...",
        "norm: _norm",
    ):
        assert f"\n{line}\n" in stub
    assert "pointed" not in stub  # a kernel that cannot be an operator


def test_a_kernel_may_not_hide_the_module() -> None:
    with pytest.raises(UsageError, match=r"a kernel called torch would hide `my_kernels\.torch`"):
        IDENTITY.check_kernels(["torch"])


BUNDLE = '''\
"""In place of a generated package's own file: its bundle is played."""

from pathlib import Path


class _Played:
    name, path, kernels = "kernels", Path("here"), ("norm", "pointed")

    def _replace(self, functions):
        self.__dict__.update(functions)

    def _record(self, name):
        from ._aot_runtime.description.kernel_records import KernelRecord, Parameter

        out = Parameter("out", output=True, shape="x.shape", dtype="x.dtype", type="tensor")
        parameters = (Parameter("x", type="tensor"), out)
        if name == "pointed":
            parameters += (Parameter("p", type="pointer"),)
        return KernelRecord(name, "", parameters, (), (name,), (), 1)

    def _call(self, name):
        return 1005

    def _symbol(self, name):
        return lambda x, out: out.copy_(2 * x)


_loaded = _Played()
norm = _loaded._symbol("norm")  # as a generated package keeps it after its first use


def _bundle():
    return _loaded


def __getattr__(name):
    return _loaded.__dict__[name]
'''
PROGRAM = """\
import torch, my_kernels.torch
x = torch.ones(3)
assert torch.equal(my_kernels.torch.norm(x), 2 * x)
assert str(torch.ops.my_kernels.norm.default._schema) == "my_kernels::norm(Tensor x) -> Tensor"
assert "norm" in dir(my_kernels.torch) and set(my_kernels.torch.__all__) == {"GradientError", "norm"}
try:
    my_kernels.torch.norm(x.requires_grad_())
except my_kernels.torch.GradientError:
    pass
else:
    raise AssertionError
try:
    my_kernels.norm(x, torch.empty(3))
except my_kernels.torch.GradientError:
    pass
else:
    raise AssertionError
try:
    my_kernels.torch.pointed
except Exception as error:
    assert "pointed cannot be offered here" in str(error)
"""


@pytest.mark.torch
def test_the_module_registers_the_operators_of_its_package(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="operators of torch need torch")
    package = tmp_path / "my_kernels"
    shutil.copytree(
        Path(aot_runtime.__file__).parent, package / "_aot_runtime", ignore=shutil.ignore_patterns("__pycache__")
    )
    (package / "__init__.py").write_text(BUNDLE)
    (package / "torch.py").write_text(operators_module(IDENTITY))
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
