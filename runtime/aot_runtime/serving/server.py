"""Answering ``cute.compile`` from a bundle."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..core.trust import manifest_check
from ..description.manifest import Manifest
from ..description.records import KERNELS_NAME
from ..errors import AotError, ArgumentError, MissError, ServingWarning
from .caches import NO_CACHES_OF_SERVED
from .calls import DATACLASS, Call, bind, describe, jit_function, with_tensors_of_cute_dsl
from .captured import CapturedCalls, Found, holds_calls
from .empty import EmptyKernel, is_empty_kernel
from .hook import Hook, if_host_code, is_compile, is_complete, when_loaded
from .monitor import keep_from_look_ups, tell_of_compile
from .options import prepare_options
from .plain import PlainFunction
from .reading.reads import changes_for_device, stored_for_device
from .values.digests import UnstableError
from .values.libraries import is_of_cute_dsl
from .values.stored import give_stored

if TYPE_CHECKING:
    from ..core.bundle import Bundle
    from ..core.signature import PublicKey

__all__ = ["MISS", "Serving", "check_servable", "is_own", "serve"]

MISS = ("raise", "compile", "warn")
_TVM_FFI, _TORCH, _CUTE_DSL = "tvm_ffi", "torch", "nvidia-cutlass-dsl"
_SHOWN = 6


def serve(
    bundle: str | os.PathLike[str],
    miss: str = "raise",
    *,
    key: PublicKey | Sequence[PublicKey] | None = None,
    name: str | None = None,
) -> Serving:
    """Let ``cute.compile`` answer from a bundle that ``python -m aot capture`` built, for the rest of the process.

    ``miss`` says what becomes of a call that the bundle does not have: ``"raise"`` raises :class:`MissError`,
    ``"warn"`` compiles with a warning, ``"compile"`` compiles. The result undoes it: ``close()``, or a ``with`` block.
    Call this before or after CuTe DSL is imported; it is not imported here. To serve several bundles, call this for each:
    the last one is asked first, and with ``miss="compile"`` it passes on to the one before. ``key`` is a public key, or
    several, as :func:`load` takes it: the bundle must be signed by one of them, and have the ``name`` if one is given.
    Serve before SGLang's kernels are imported: its disk cache is turned off by a variable, unless that is set.
    """
    if miss not in MISS:
        raise ArgumentError(f"miss={miss!r}", hint=f"pass one of {', '.join(map(repr, MISS))}")
    path = Path(os.path.abspath(bundle))
    check_servable(path, key, name)  # a wrong path is reported now, not by the first compile
    for variable, value in NO_CACHES_OF_SERVED.items():
        os.environ.setdefault(variable, value)
    return Serving(path, miss, key, name)


def check_servable(
    bundle: str | os.PathLike[str], key: PublicKey | Sequence[PublicKey] | None = None, name: str | None = None
) -> None:
    """Raise if a folder is no bundle, one that was not captured, or not the one that the caller trusts."""
    if not holds_calls(Manifest.read(bundle, manifest_check(bundle, key), name).kernels_content(verify=False)):
        raise ArgumentError(
            f"`{bundle}` holds no captured call, so that there is nothing to serve",
            hint="pass a bundle that `python -m aot capture` built; `aot_runtime.load` gives the kernels of other bundles",
        )


class Serving:
    """A bundle that is served. ``hits``, ``misses`` and ``seconds`` count look-ups since it began."""

    def __init__(self, path: Path, miss: str, key: Any = None, name: str | None = None) -> None:
        self.path, self.miss, self._key, self._name = path, miss, key, name
        self.asked_before: tuple[Serving, ...] = ()  # bundles that did not have what this one is asked for
        self.hits = self.misses = 0
        self.seconds = 0.0
        self._bundle: Bundle | None = None
        self._calls: CapturedCalls | None = None
        self._functions: dict[str, Callable[..., Any]] = {}
        self._waiting: list[Callable[[], None]] = []  # end the wait for modules
        self._hook = Hook(self._answer, self._prepare)
        self._hook.install()
        self._leave_monitor = keep_from_look_ups()

    def __enter__(self) -> Serving:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Compile again as if nothing had been served. What was handed out stays valid."""
        self._hook.remove()
        self._stop_waiting()
        self._leave_monitor()

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels of the bundle that were served."""
        return tuple(self._functions)

    def report(self) -> str:
        """What was looked up, in a line."""
        looked_up = self.hits + self.misses
        each = f", {self.seconds / looked_up * 1e3:.2f} ms each" if looked_up else ""
        kernels = "1 kernel" if self.hits == 1 else f"{self.hits} kernels"
        return f"aot: {kernels} served from `{self.path}`, {self.misses} not found{each}"

    def _answer(
        self, original: Any, compiler: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if is_empty_kernel(function):
            return EmptyKernel()
        if is_own(function) or "compile_to_precompiled_mlir" in kwargs:
            return original(compiler, function, *args, **kwargs)
        self._open()  # once for all kernels: no part of a look-up
        started = time.perf_counter()
        try:
            found = self._find(compiler, function, args, kwargs)
        finally:
            self.seconds += time.perf_counter() - started
        if not isinstance(found, _Miss):
            self.hits += 1
            return found if compiler is not None else found(*_runtime_arguments(found, function, args, kwargs))
        self.misses += 1
        if self.miss == "raise" and compiler is None:  # it is called, and may be host code, which no bundle holds
            return if_host_code(lambda: original(compiler, function, *args, **kwargs), found.error)
        if self.miss == "raise":
            raise found.error()
        if self.miss == "warn":
            warnings.warn(f"{found.reason}; it is compiled", ServingWarning, stacklevel=4)
        if compiler is not None and is_compile(original):
            tell_of_compile(function)
        return original(compiler, function, *args, **kwargs)

    def _find(self, compiler: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The kernel that a call is answered with, or a :class:`_Miss`."""
        name = getattr(function, "__qualname__", type(function).__qualname__)
        try:
            call = describe(compiler, function, *with_tensors_of_cute_dsl(args, kwargs))
        except UnstableError as error:
            return _Miss(f"`{self.path}` cannot serve {name}: {error}", self.path)
        except Exception as error:  # objects of other libraries are looked at, and these may raise anything
            return _Miss(f"`{self.path}` cannot serve {name}: {type(error).__name__}: {error}", self.path)
        found = self._captured().find(call.key)
        if found is None:
            return self._explained(call)
        if (miss := self._changed(found)) is not None:
            return miss
        if found.kernel not in self._functions:
            self._functions[found.kernel] = _served(self._open(), found.kernel, call, len(found.parameters))
        if stored := stored_for_device(found.record["reads"]):
            give_stored(jit_function(function)[0], stored)
        function = self._functions[found.kernel]
        if call.options.tvm_ffi and compiler is not None:
            return function
        return PlainFunction(function, found.parameters)

    def _changed(self, found: Found) -> _Miss | None:
        """Why a captured kernel cannot be served; None if it can."""
        changed = changes_for_device(found.record["reads"])
        if not changed:
            return None
        lines = "".join(f"\n  {line}" for line in changed[:_SHOWN])
        return _Miss(
            f"`{self.path}` has {found.kernel}, but not as this process would trace it:{lines}", self.path, changed=True
        )

    def _explained(self, call: Call) -> _Miss:
        """Why a call is a miss. The nearest call is looked for only if somebody reads the reason."""
        servings = (self, *self.asked_before)
        names = ", ".join(f"`{serving.path}`" for serving in servings)
        reason = f"{names} {'do' if self.asked_before else 'does'} not have this call of {call.data['callable']}"
        if self.miss == "compile":
            return _Miss(reason, self.path)
        from .nearest import explain_miss, nearest_call  # only a miss that somebody reads needs it

        for serving in servings:
            found = serving._captured().find(call.key)
            if found is not None and (miss := serving._changed(found)) is not None:
                return miss
        calls = {kernel: record["call"] for one in servings for kernel, record in one._captured().calls.items()}
        nearest = nearest_call(call.data, calls)
        owner = next((one for one in servings if nearest in one._captured().calls), self)
        return _Miss(f"{reason}\n{explain_miss(call.data, calls)}", owner.path)

    def _prepare(self) -> None:
        """Open the bundle when somebody imports TVM-FFI or torch, or now if torch is there: TVM-FFI brings torch, which takes
        long.

        Libraries that compile without TVM-FFI never import it, and their first compile would have to.
        """
        prepare_options()
        if is_complete(sys.modules.get(_TORCH)):
            self._open_early()
            return
        self._waiting.append(when_loaded(lambda module: self._open_early(), _TVM_FFI, "__all__"))
        if sys.modules.get(_TORCH) is None:
            self._waiting.append(when_loaded(lambda module: self._open_after_torch(), _TORCH))

    def _stop_waiting(self) -> None:
        while self._waiting:
            self._waiting.pop()()

    def _open_after_torch(self) -> None:
        if _TVM_FFI not in sys.modules or is_complete(sys.modules[_TVM_FFI]):  # else TVM-FFI imports torch just now
            self._open_early()

    def _open_early(self) -> None:
        # The first compile meets the same error. An ImportError: the loader itself is importing TVM-FFI just now.
        with suppress(AotError, ImportError):
            self._open()

    def _captured(self) -> CapturedCalls:
        """The calls of the bundle that is open: records of one state of the directory never answer with code of another."""
        if self._calls is None:
            bundle = self._open()
            self._calls = CapturedCalls(bundle._kernels_content, f"`{self.path}/{KERNELS_NAME}`")
        return self._calls

    def _open(self) -> Bundle:
        if self._bundle is None:
            self._stop_waiting()  # the loader imports TVM-FFI now
            from ..core.bundle import load

            bundle = load(self.path, key=self._key, name=self._name)
            _open_support(bundle)
            self._bundle = bundle
        return self._bundle


class _Miss:
    """Why a call is not served, and the bundle that has to be captured again."""

    def __init__(self, reason: str, bundle: Path, changed: bool = False) -> None:
        self.reason, self.bundle, self.changed = reason, bundle, changed

    def error(self) -> MissError:
        captured, here = self._versions()
        other = f"\n  captured with CuTe DSL {captured}, and this process has {here}" if captured != here else ""
        return MissError(f"{self.reason}{other}", hint=self.hint())

    def _versions(self) -> tuple[str, str]:
        """The version of CuTe DSL that the bundle was built with, and that of this process; both empty if one is not known."""
        captured = Manifest.read(self.bundle).toolchain.get(_CUTE_DSL, "")
        here = str(getattr(sys.modules.get("cutlass"), "__version__", ""))
        return (captured, here) if captured and here else ("", "")

    def hint(self) -> str:
        """How to capture what is missing: a command that replaces the bundle. Only the author knows the exercise."""
        from shlex import quote  # only a miss needs it

        manifest = Manifest.read(self.bundle)
        archs, hosts = ",".join(map(str, manifest.archs)), ",".join(manifest.hosts)
        out = quote(os.path.abspath(self.bundle))
        command = f"python -m aot capture EXERCISE --name {manifest.name} --arch {archs} --host {hosts} --out {out}"
        compile_it = 'to compile it, pass `miss="compile"`, or `--miss compile` to `python -m aot_runtime serve`'
        first = "" if self.changed else "make the call in the exercise and "
        captured, here = self._versions()
        other = f"install {_CUTE_DSL}=={captured}, or " if captured != here else ""
        return f"{other}{first}capture again: `{command}`; {compile_it}"


def is_own(function: Any) -> bool:
    """Whether CuTe DSL compiles this for itself."""
    module = getattr(function, "__module__", None) or type(function).__module__
    return is_of_cute_dsl(str(module))


def _open_support(bundle: Bundle) -> None:
    """Open what the first call of any kernel needs: the largest file of a bundle, which that call would have to hash."""
    with suppress(
        AttributeError, AotError
    ):  # an entry library of an older builder; the first call meets the same error
        bundle._call("aot__open_support")


def _served(bundle: Bundle, kernel: str, call: Call, count: int) -> Callable[..., Any]:
    """A function of the bundle that offers what libraries ask of a compiled function."""
    function = _positional(bundle, kernel, count)
    if any(_has_dataclass(argument) for argument in call.data["arguments"].values()):
        function = _taking_dataclasses(function)
    function.__dict__["export_to_c"] = _export_nothing
    return function


def _runtime_arguments(served: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """What of the arguments of a ``@cute.jit`` function its compiled code takes: all but the constants."""
    owner, jit = jit_function(function)
    values = {name: value for name, value, _ in bind(jit, owner, args, kwargs)}
    return [values[name] for name in served.parameters]


def _positional(bundle: Bundle, kernel: str, count: int) -> Callable[..., Any]:
    """A kernel as libraries call it, with all ``count`` arguments in order. The function with names and defaults takes longer to
    make, and is made by the first call that needs it."""
    target = bundle._symbol(kernel)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if len(args) == count and not kwargs:
                return target(*args)
            return bundle[kernel](*args, **kwargs)
        except ArgumentError as error:
            from .refusals import in_words_of_cute_dsl

            raise in_words_of_cute_dsl(error, list(inspect.signature(bundle[kernel]).parameters)) from None

    call.__name__ = call.__qualname__ = kernel
    return call


def _has_dataclass(argument: Any) -> bool:
    return isinstance(argument, list) and str(argument[:1]).startswith(f"['{DATACLASS} ")


def _taking_dataclasses(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*map(_as_tuple, args), **{name: _as_tuple(value) for name, value in kwargs.items()})

    return call


def _as_tuple(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(_as_tuple(getattr(value, field.name)) for field in dataclasses.fields(value))
    return value


def _export_nothing(*args: Any, **kwargs: Any) -> None:
    """Libraries export what they compiled into a disk cache. The bundle takes the place of such a cache."""
