"""Which kernel computes the gradients of another, and whether the two fit together.

    @aot.kernel(
        parameters=(aot.In("x"), aot.Out("out", shape="x.shape", dtype="x.dtype")),
        backward=aot.Backward("double_backward", saves="x", gradients="x"),
        ...
    )

The backward kernel is an ordinary kernel of the same source, and names tie the two together. It reads
``grad_<output>`` and what was saved, and writes ``grad_<input>``. Its other outputs are scratch memory.

If other kernels compute the gradients already, an expression for each of them is enough:

    @aot.kernel(
        parameters=(aot.In("a"), aot.In("b"), aot.Out("out", ...)),
        backward=aot.Composed(a="product(grad_out, b.mT)", b="product(grad_out.mT, a.mT)"),
        ...
    )
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aot_runtime.description import kernel_records
from aot_runtime.description.composed import Expression
from aot_runtime.errors import ManifestError

from ..errors import DeclarationError
from .kernel import Kernel

__all__ = ["GRADIENT", "Backward", "Composed", "check_backward", "check_pairs"]

GRADIENT = "grad_"
MAIN = "main_grad"  # what `adds` add to


def Backward(kernel: str, *, saves: str | Sequence[str], gradients: str | Sequence[str]) -> kernel_records.Backward:
    """The kernel of that name computes the gradients of the listed inputs.

    ``saves`` lists the inputs and outputs of the forward kernel that the backward kernel reads, numbers included.
    """
    return kernel_records.Backward(kernel, _names(saves), _names(gradients))


def Composed(
    *,
    split: str = "",
    whole: Mapping[str, str] | None = None,
    adds: Mapping[str, str] | None = None,
    **gradients: str,
) -> kernel_records.Backward:
    """The gradient of each named input as an expression: calls of kernels with inputs, outputs, ``grad_<output>`` and choices.

    ``x.mT`` swaps the last two dimensions, ``x.rows`` puts the rows of a batch below each other, and ``f(x)[1]`` is the
    second output of a kernel. Neither needs a copy.
    If a kernel does more than its gradients undo, ``split`` says what a call that wants gradients becomes: an expression of
    kernels that have gradients. Calls with the choices of ``whole`` stay whole.
    ``adds`` has, for some of the inputs, a call that adds the gradient to ``main_grad`` and may write its result there.
    """
    kept, added = (tuple(f"{name}={value}" for name, value in (given or {}).items()) for given in (whole, adds))
    return kernel_records.Backward("", (), tuple(gradients), tuple(gradients.values()), split, kept, added)


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
    if not backward.kernel:
        _check_composed(kernel, backward, where)
        return
    if backward.kernel == kernel.name:
        raise DeclarationError(f"{where}: the kernel cannot be its own backward")
    inputs, outputs = _inputs(kernel), _outputs(kernel)
    _refuse(f"{where}: `backward` saves", backward.saves, [*inputs, *outputs])
    _refuse(f"{where}: `backward` has gradients of", backward.gradients, inputs)
    if not backward.gradients:
        raise DeclarationError(
            f"{where}: `backward` computes no gradient", hint=f"name inputs in `gradients`: {', '.join(inputs)}"
        )


def _check_composed(kernel: Kernel, composed: kernel_records.Backward, where: str) -> None:
    inputs, outputs = _inputs(kernel), _outputs(kernel)
    _refuse(f"{where}: `backward` has gradients of", composed.gradients, inputs)
    if not composed.gradients and not composed.split:
        raise DeclarationError(f"{where}: `backward` computes no gradient", hint='write one: aot.Composed(x="...")')
    known = [*inputs, *kernel.choices]
    for text in [composed.split] if composed.split else []:
        _check_names(where, text, known)
    for text in composed.calls:
        _check_names(where, text, [*known, *outputs, *(GRADIENT + name for name in outputs)])
    for name, _, text in (added.partition("=") for added in composed.adds):
        _check_names(where, text, [*known, *outputs, *(GRADIENT + output for output in outputs), MAIN])
        _refuse(f"{where}: `backward` adds up gradients of", [name], composed.gradients)
        last = Expression(text).last
        if not last or [called for called, _, _ in Expression(text).calls].count(last) > 1:
            raise DeclarationError(
                f"{where}: `backward` adds by {text!r}", hint="write a call of one kernel, once, that takes main_grad"
            )
    for choice, _, value in (kept.partition("=") for kept in composed.whole):
        if value not in kernel.choices.get(choice, ()):
            raise DeclarationError(f"{where}: `backward` keeps {choice} = {value} whole, which is not a choice")


def _check_names(where: str, text: str, known: Sequence[str]) -> None:
    try:
        names = Expression(text).names
    except ManifestError as error:
        raise DeclarationError(f"{where}: {error.message}") from None
    _refuse(f"{where}: `backward` reads, in {text!r},", sorted(names), known)


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
        if not forward.backward.kernel:
            _check_calls(forward, forward.backward, kernels, complete)
            continue
        backward = kernels.get(forward.backward.kernel)
        if backward is not None:
            _check_pair(forward, forward.backward, backward)
        elif complete:
            raise DeclarationError(
                f"{forward.origin}: the backward of {forward.name} is {forward.backward.kernel}, which is not declared",
                hint=f"declared are: {', '.join(sorted(kernels))}",
            )


def _check_calls(
    forward: Kernel, composed: kernel_records.Backward, kernels: Mapping[str, Kernel], complete: bool
) -> None:
    added = [text.partition("=")[2] for text in composed.adds]
    for text in (*composed.calls, *([composed.split] if composed.split else []), *added):
        for name, unnamed, named in Expression(text).calls:
            where = f"{forward.origin}: a gradient of {forward.name}, {text!r},"
            if name in kernels:
                called = kernels[name]
                inputs = _inputs(called)
                known = [*inputs[unnamed:], *called.choices]
                _check_listed(where, f"calls {name}, which has no", named, known, "pass another")
                if unnamed > len(inputs):
                    raise DeclarationError(f"{where} passes {unnamed} arguments to {name}", hint=", ".join(inputs))
            elif complete:
                hint = f"declared are: {', '.join(sorted(kernels))}"
                raise DeclarationError(f"{where} calls {name}, which is not declared", hint=hint)


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
