"""The worker process: reads one JSON request per line, answers one JSON line each.

Requests come on the file descriptor given first, answers go to the second; standard output and error
belong to the author's code and are sent to the log that each request names.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

from aot_runtime.arch import Arch

from ..declare.arguments import Tensor, compiled_tensor
from ..declare.contracts import contract_file
from ..declare.discover import Family, Found, discover
from ..declare.kernel import Kernel, Variant
from ..declare.specs import CapturedSpec
from ..errors import (
    NO_MEMORY,
    NOTHING_LEFT,
    AotError,
    BuildError,
    DeclarationError,
    Failure,
    ToolchainError,
    system_hint,
)
from ..records import decode, encode
from ..selection.requirements import variant_table
from ..selection.subjects import VariantTable
from ..versions import install_extras, without_torch
from . import dsl
from .authors import check_decorated, compile_message, is_raised_by_author
from .backend import select_backend
from .device.devices import Device
from .device.hardware_info import answer_for
from .messages import Declared, KernelInfo, Options, VariantInfo
from .objects import trust
from .origins.closure import Watch, closure_of
from .reading.watching import loads_seen
from .signature import fitted

__all__ = ["RequestHandler", "main"]


class RequestHandler:
    """Answers requests over a source that holds declarations; what a source is may differ in a subclass."""

    passes_tensors_of_torch = False

    def __init__(self, say: Callable[[dict[str, Any]], None]) -> None:
        self.say = say
        self.kernels: tuple[Kernel, ...] = ()
        self.variants: dict[str, Variant] = {}
        self.options = Options()
        self.watch = Watch()

    def answer(self, request: dict[str, Any]) -> Any:
        return getattr(self, f"do_{request['do']}")(request)

    def do_open(self, request: dict[str, Any]) -> Any:
        """Execute the author's files; the answer is what they declare."""
        self.options = decode(Options, request["options"])
        select_backend(self.options.cuda)
        with nullcontext() if self.passes_tensors_of_torch else without_torch():
            _import_cute_dsl()
        trust(self.options.trust)
        if request["arch"]:
            answer_for(Device.of(Arch.parse(request["arch"])))
        loads_seen()
        with self.watch:
            found = self.read(request)
        self.kernels = found.kernels
        failures = tuple(Failure("", str(error)) for error in found.failures)
        infos = tuple(_info(kernel, found.families[kernel.name]) for kernel in found.kernels)
        return encode(Declared(infos, failures, found.notes))

    def read(self, request: dict[str, Any]) -> Found:
        """The kernels of the source."""
        return discover(request["source"], request["skip"], lambda path: self.say({"reading": path}))

    def do_expand(self, request: dict[str, Any]) -> Any:
        """The variants of a kernel for an architecture; if ``core``, only the names of those that are not."""
        kernel = self._kernel(request["kernel"])
        variants, core = self._variants(request), request.get("core", False)
        left_out = [variant.name for variant in variants if core and not variant.spec.core]
        taken = [variant for variant in variants if not core or variant.spec.core]
        with _blaming(kernel, request["arch"]):
            described = [encode(_variant_info(variant, variant_table(variant))) for variant in taken]
        return {"variants": described, "left_out": left_out}

    def do_prepare(self, request: dict[str, Any]) -> Any:
        """Get ready to compile the variants of a kernel, which another worker has described."""
        self._variants(request)

    def _variants(self, request: dict[str, Any]) -> list[Variant]:
        arch = Arch.parse(request["arch"])
        kernel = self._kernel(request["kernel"])
        with self.watch, _blaming(kernel, arch):
            variants = _expand(kernel, arch)
        self.variants.update({variant.name: variant for variant in variants})
        return variants

    def _kernel(self, name: str) -> Kernel:
        """Workers read the source on their own, which should give all of them the same kernels."""
        found = next((kernel for kernel in self.kernels if kernel.name == name), None)
        if found is None:
            raise DeclarationError(
                f"kernel {name} is not there when the source is read again",
                hint="the source must give the same kernels in every process: let it not depend on time, on addresses of "
                "objects, or on files that it writes",
            )
        return found

    def do_closure(self, request: dict[str, Any]) -> Any:
        """What the kernels came from; asked after they were expanded."""
        return encode(closure_of(self.kernels, self.watch))

    def origin_of(self, request: dict[str, Any]) -> str:
        """Where the kernel is declared that a request would compile; empty if it compiles none."""
        variant = self.variants.get(request.get("variant", "")) if request["do"] == "compile" else None
        return variant.kernel.origin if variant is not None else ""

    def do_compile(self, request: dict[str, Any]) -> Any:
        from .cute_dsl import compile_variant, lacking_instruction

        variant = self.variants[request["variant"]]
        try:
            return encode(compile_variant(variant, self.options, Path(request["launcher"])))
        except Exception as error:
            # What ptxas refuses has the line of the kernel, not that of the instruction.
            lacking = None if is_raised_by_author(error, variant.kernel.origin) else lacking_instruction(variant)
            if lacking is None:
                raise
            raise BuildError(
                lacking.message(variant.arch), hint=f"leave {variant.arch} out of `archs`, or return no spec for it"
            ) from error

    def do_backend(self, request: dict[str, Any]) -> Any:
        from .cute_dsl import backend_version

        return backend_version()


def _import_cute_dsl() -> None:
    """Import CuTe DSL before the author's files do, so that its time is not that of the first of them."""
    try:
        dsl.check()
        import_module(".cute_dsl", __package__)
    except ImportError as error:
        raise ToolchainError(
            f"CuTe DSL {dsl.version()} cannot be imported: {type(error).__name__}: {error}",
            hint=install_extras("build"),
        ) from error


def _info(kernel: Kernel, family: Family) -> KernelInfo:
    return KernelInfo(
        name=kernel.name,
        doc=kernel.doc,
        origin=kernel.origin,
        parameters=kernel.parameters,
        choices=kernel.public_choices(),
        functions=kernel.functions(),
        archs=kernel.archs,
        axes={axis: tuple(values) for axis, values in kernel.axes.items()},
        contract=contract_file(kernel),
        has_contract=kernel.reference is not None and kernel.inputs is not None,
        backward=kernel.backward,
        family=family.name,
        core=family.core,
        captured=kernel.captured,
        is_tuned=bool(kernel.tuned_by),
        variant_budget=kernel.variant_budget,
        written_for={str(arch): str(code) for arch, code in kernel.written_for.items()},
    )


def _variant_info(variant: Variant, table: VariantTable) -> VariantInfo:
    return VariantInfo(
        variant.kernel.name,
        variant.point,
        table,
        _compiled_with(variant),
        variant.spec.guards,
        variant.written_for,
        variant.spec.core,
    )


def _expand(kernel: Kernel, arch: Arch) -> list[Variant]:
    variants = kernel.variants(arch)
    for variant in variants:
        if not isinstance(variant.spec, CapturedSpec):
            check_decorated(variant.spec.function, f"{kernel.origin}: kernel {kernel.name}")
    return list(map(fitted, variants))


@contextmanager
def _blaming(kernel: Kernel, arch: object) -> Iterator[None]:
    """The author's function may raise anything; blame its line, not ours."""
    try:
        yield
    except DeclarationError:
        raise
    except (Exception, SystemExit) as error:
        raise DeclarationError(
            f"{kernel.origin}: kernel {kernel.name} raises for {arch}: {compile_message(error, kernel.origin)}"
        ) from error


def _compiled_with(variant: Variant) -> str:
    """What a variant is compiled with, as text that is the same in every process."""
    spec = variant.spec
    if isinstance(spec, CapturedSpec):
        return f"{variant.kernel.options} | {spec.identity()}"
    owner = getattr(spec.function, "__self__", spec.function)
    settings = {name: value for name, value in getattr(owner, "__dict__", {}).items() if not name.startswith("_")}
    arguments = {
        name: compiled_tensor(item) if isinstance(item, Tensor) else item for name, item in spec.arguments.items()
    }
    return _ADDRESS.sub("", f"{variant.kernel.options} | {arguments} | {settings}")


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def _log_to(path: str) -> None:
    """Send standard output and error to a file, so that a crash leaves its last words."""
    sys.stdout.flush()
    sys.stderr.flush()
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _dump_stack_on_crash() -> None:
    """Name the Python line that crashed; libraries loaded meanwhile may have put their own handlers first."""
    for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
        signal.signal(number, signal.SIG_DFL)
    faulthandler.disable()
    faulthandler.enable(all_threads=False)


def _failure(request: dict[str, Any], error: BaseException, origin: str) -> dict[str, Any]:
    """What to answer; ``origin`` is that of the kernel whose compilation failed, if it was one."""
    # An error that we raised ourselves needs no stack.
    trace = "" if isinstance(error, AotError) else "".join(traceback.format_exception(error))
    hint = error.hint if isinstance(error, AotError) else None
    message = error.message if isinstance(error, AotError) else f"{type(error).__name__}: {error}"
    if origin and not isinstance(error, AotError):
        message = compile_message(error, origin)
    spent = _is_spent(error)
    if spent and not isinstance(error, AotError):
        message += f"\nhint: {system_hint(error) if isinstance(error, OSError) else NO_MEMORY}"
    failure = Failure(request.get("variant", ""), message, trace=trace)
    return {"failure": encode(failure), "hint": hint, "kind": type(error).__name__, "spent": spent}


def _is_spent(error: BaseException) -> bool:
    """Whether memory or file handles ran out: what took them may hold on to them."""
    cause: BaseException | None = error
    seen: list[BaseException] = []  # libraries that raise an error again can close the chain to a circle
    while cause is not None and not any(cause is other for other in seen):
        seen.append(cause)
        if isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno in NOTHING_LEFT):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _end_with_parent(answers: int) -> None:
    """End with a parent that was killed: nobody reads the answers, and the work may never come to an end."""
    hang_up = select.poll()
    hang_up.register(answers, 0)  # it is always reported
    hang_up.poll()
    os._exit(1)


def main(handler: type[RequestHandler] = RequestHandler) -> None:
    """Answer the requests of the parent process until it closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which ends us
    requests = os.fdopen(int(sys.argv[1]), "r")
    answers = os.fdopen(int(sys.argv[2]), "w")
    threading.Thread(target=_end_with_parent, args=[answers.fileno()], daemon=True).start()

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    worker = handler(say)
    for line in requests:
        request = json.loads(line)
        _dump_stack_on_crash()
        try:
            _log_to(request["log"])
            answer = {"answer": worker.answer(request)}
        except (Exception, SystemExit) as error:
            answer = _failure(request, error, worker.origin_of(request))
        sys.stdout.flush()
        sys.stderr.flush()
        say(answer)


if __name__ == "__main__":
    main()
