"""Kernel files that tests write: the part they share, and the one whose builds are killed."""

# VALUE is what it writes: another one makes it other code.
WRITE = """
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
import aot

@cute.kernel
def write(out: cute.Tensor):
    out[cute.arch.thread_idx()[0]] = out.element_type(VALUE)

@cute.jit
def launch(out: cute.Tensor, stream: CUstream):
    write(out).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)
"""

# One kernel of VARIANTS variants, one for each length.
FILL = f"""{WRITE}
@aot.kernel(parameters=(aot.Out("out", shape="out.shape", dtype="out.dtype"),), archs=("sm_90a",),
            axes={{"n": tuple(range(32, 32 + VARIANTS))}})
def fill(target, n):
    return aot.Spec(launch, {{"out": aot.Tensor("f32", (n,)), "stream": aot.Stream()}})
"""
