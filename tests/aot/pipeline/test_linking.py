"""What a bundle says of a kernel follows from its declaration."""

from __future__ import annotations

from aot_runtime.arch import Arch
from aot_runtime.kernel_records import Backward, Choice, Parameter

from aot.compile.messages import KernelInfo
from aot.pipeline.compiling import CompiledKernel
from aot.pipeline.linking import _built


def test_a_built_kernel_has_the_signature_of_its_declaration() -> None:
    backward = Backward("act_backward", ("x",), ("x",))
    parameters, choices = (Parameter("x"), Parameter("out", output=True)), (Choice("op", ("relu",)),)
    sm_90a = Arch(9, 0, "a")
    info = KernelInfo(
        "act", "Text.", "act.py:1", parameters, choices, ("act__relu",), (sm_90a,), {}, backward=backward, family="rows"
    )
    signature = _built(CompiledKernel(info, sm_90a, (), ()), {}).signature
    assert (signature.name, signature.doc, signature.functions) == ("act", "Text.", ("act__relu",))
    assert (signature.parameters, signature.choices, signature.backward) == (parameters, choices, backward)
