"""What a bundle says of a kernel follows from its declaration."""

from __future__ import annotations

from aot_runtime.arch import Arch
from aot_runtime.kernel_records import Backward, Choice, Parameter

from aot.compile.messages import KernelInfo
from aot.pipeline.compiling import CompiledKernel
from aot.pipeline.linking import _built, _shared, _Source


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
