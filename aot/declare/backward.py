"""Which kernel computes the gradients of another, and whether the two fit together.

    @aot.kernel(
        parameters=(aot.In("x"), aot.Out("out", shape="x.shape", dtype="x.dtype")),
        backward=aot.Backward("double_backward", saves="x", gradients="x"),
        ...
    )

The backward kernel is an ordinary kernel of the same source, and names tie the two together. It reads
``grad_<output>`` and what was saved, and writes ``grad_<input>``. Its other outputs are scratch memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aot_runtime.description import kernel_records

from ..errors import DeclarationError
from .kernel import Kernel

__all__ = ["GRADIENT", "Backward", "check_backward", "check_pairs"]

GRADIENT = "grad_"


def Backward(kernel: str, *, saves: str | Sequence[str], gradients: str | Sequence[str]) -> kernel_records.Backward:
    """The kernel of that name computes the gradients of the listed inputs.

    ``saves`` lists the inputs and outputs of the forward kernel that the backward kernel reads, numbers included.
    """
    return kernel_records.Backward(kernel, _names(saves), _names(gradients))


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def check_backward(kernel: Kernel, where: str) -> None:
    """What can be checked of a declaration while the backward kernel may not be declared yet."""
    backward = kernel.backward
    if backward is None:
        return
    if not isinstance(backward, kernel_records.Backward):
        raise DeclarationError(
            f"{where}: `backward` is {backward!r}", hint='pass aot.Backward("name", saves=..., gradients=...)'
        )
    if backward.kernel == kernel.name:
        raise DeclarationError(f"{where}: the kernel cannot be its own backward")
    inputs, outputs = _inputs(kernel), _outputs(kernel)
    _refuse(f"{where}: `backward` saves", backward.saves, [*inputs, *outputs])
    _refuse(f"{where}: `backward` has gradients of", backward.gradients, inputs)
    if not backward.gradients:
        raise DeclarationError(
            f"{where}: `backward` computes no gradient", hint=f"name inputs in `gradients`: {', '.join(inputs)}"
        )


def _refuse(what: str, named: Sequence[str], known: Sequence[str]) -> None:
    unknown = [name for name in named if name not in known]
    if unknown:
        raise DeclarationError(f"{what} {', '.join(unknown)}", hint=f"known: {', '.join(known) or 'none'}")
    if len(set(named)) < len(named):
        raise DeclarationError(f"{what} a parameter twice: {', '.join(named)}")


def check_pairs(kernels: Mapping[str, Kernel], *, complete: bool) -> None:
    """Compare each kernel with its backward. A kernel may be missing only if ``complete`` is false."""
    for forward in kernels.values():
        if forward.backward is None:
            continue
        backward = kernels.get(forward.backward.kernel)
        if backward is not None:
            _check_pair(forward, forward.backward, backward)
        elif complete:
            raise DeclarationError(
                f"{forward.origin}: the backward of {forward.name} is {forward.backward.kernel}, which is not declared",
                hint=f"declared are: {', '.join(sorted(kernels))}",
            )


def _check_pair(forward: Kernel, named: kernel_records.Backward, backward: Kernel) -> None:
    where = f"{forward.origin}: {backward.name}, the backward of {forward.name} ({backward.origin}),"
    arriving = [GRADIENT + name for name in _outputs(forward)]
    taken = _inputs(backward)
    if not set(arriving) & set(taken):
        raise DeclarationError(f"{where} takes no gradient", hint=f"add an input called {' or '.join(arriving)}")
    of_its_own = _of_its_own(forward, backward)
    for name in taken:
        if name not in arriving and name not in named.saves and name not in of_its_own:
            raise DeclarationError(
                f"{where} takes {name}, which is neither saved nor a gradient",
                hint=f"add it to `saves` if it is a parameter of {forward.name}; gradients are {', '.join(arriving)}",
            )
    _check_listed(where, "takes no", named.saves, taken, "take it out of `saves`")
    computed = [GRADIENT + name for name in named.gradients]
    _check_listed(where, "has no output", computed, _outputs(backward), "take the input out of `gradients`")
    for name in _inputs(forward):
        if GRADIENT + name in _outputs(backward) and name not in named.gradients:
            raise DeclarationError(f"{where} computes {GRADIENT}{name}", hint=f"add {name!r} to `gradients`")
    _check_choices(where, forward, backward)


def _of_its_own(forward: Kernel, backward: Kernel) -> set[str]:
    """Inputs of a backward that autograd may leave out: they have a default, and the forward knows nothing of that name."""
    known = {parameter.name for parameter in forward.parameters}
    return {parameter.name for parameter in backward.parameters if parameter.has_default} - known


def _check_listed(where: str, lacks: str, wanted: Iterable[str], known: Sequence[str], hint: str) -> None:
    for name in wanted:
        if name not in known:
            raise DeclarationError(f"{where} {lacks} {name}", hint=f"{hint}; there are: {', '.join(known) or 'none'}")


def _check_choices(where: str, forward: Kernel, backward: Kernel) -> None:
    """A call of the backward repeats the choices of the forward call."""
    for choice, values in backward.choices.items():
        missing = [value for value in forward.choices.get(choice, ()) if value not in values]
        if choice not in forward.choices:
            raise DeclarationError(f"{where} has a choice {choice}, which {forward.name} does not have")
        if missing:
            raise DeclarationError(f"{where} lacks {choice} = {', '.join(missing)}")


def _inputs(kernel: Kernel) -> list[str]:
    return [parameter.name for parameter in kernel.parameters if not parameter.output and parameter.workspace is None]


def _outputs(kernel: Kernel) -> list[str]:
    return [parameter.name for parameter in kernel.parameters if parameter.output]
