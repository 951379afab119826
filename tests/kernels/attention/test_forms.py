"""Every form of the gradients of attention can be traced: what a form has of its own is reached by no smaller test.

Forms differ in more than a dtype: heads, ragged sequences, sinks, a soft cap. Compiling them all takes minutes.
"""

from __future__ import annotations

from typing import Any

import pytest
from aot_runtime.arch import Arch
from places import PROJECT

from aot.compile.dsl import installed
from aot.declare.discover import discover
from aot.declare.kernel import Variant

# CuTe DSL warns of what takes long to compile.
pytestmark = [
    pytest.mark.compiler,
    pytest.mark.filterwarnings("ignore"),
]

SM90 = Arch.parse("sm_90a")


def forms(name: str) -> list[Variant]:
    """A variant of each tiling in each layout and width, in bf16; with sinks, if there is one."""
    (kernel,) = (one for one in discover(str(PROJECT / "kernels")).kernels if one.name == name)
    found: dict[tuple[str, ...], Variant] = {}
    for one in kernel.variants(SM90):
        if one.point["dtype"] == "bf16":
            found[one.point["layout"], one.point["dims"], one.name.rpartition("__")[2]] = one
    return list(found.values())


class _EndError(Exception):
    """Ends a compile after it was traced."""


def is_traced(variant: Variant) -> bool:
    import cutlass.cute as cute

    from aot.compile.cute_dsl import _passed

    traced: list[Any] = []

    def end(module: Any) -> None:
        traced.append(module)
        raise _EndError

    arguments, keywords = _passed(variant.spec)
    flags = f"--enable-tvm-ffi --gpu-arch {SM90} {variant.kernel.options}"
    with installed().quick_tracing(), installed().open_tuples(), installed().when_traced(end):
        try:
            cute.compile(variant.spec.function, *arguments, **{**keywords, "options": flags})
        except Exception as error:  # CuTe DSL wraps ours
            if not traced:
                raise AssertionError(f"{variant.name}: {error}") from error
    return bool(traced)


def test_every_form_of_the_gradients_of_attention_is_traced() -> None:
    found = forms("attention_backward")
    assert {variant.point["layout"] for variant in found} == {"batch", "ragged"}
    assert all(map(is_traced, found))
