"""Compiling one variant with CuTe DSL: its types, fake arguments, ``cute.compile``.

Only documented parts of CuTe DSL are used here; what depends on its version is asked of ``dsl``.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import cuda.bindings.driver  # noqa: F401  CuTe DSL's stream types need it, and fail late without it
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor, make_ptr
from cutlass.cute.typing import AddressSpace, SymInt

from ..binary.cubin import Cubin, KernelFacts, cubins_in_llvm_ir
from ..declare.arguments import (
    ActiveClusters,
    Argument,
    Constant,
    Dim,
    Fixed,
    Multiprocessors,
    Pointer,
    Scalar,
    Stream,
    Tensor,
    Tuple,
    compiled_tensor,
    layout_of,
)
from ..declare.kernel import Variant
from ..declare.specs import CapturedSpec, Spec
from ..errors import BuildError
from ..kinds import DTYPES
from ..targets import Target
from . import dsl
from .authors import is_authors
from .dsl import Clusters
from .failures import returning_failures
from .instructions import Lacking, lacking
from .launcher import Launcher, parse_launcher, symbol_prefix
from .messages import Compiled, KernelLaunch, Options
from .sass import disassemble
from .sharing import Last, code_of
from .traced import traced

__all__ = ["backend_version", "compile_variant", "lacking_instruction"]

_UNNAMED = "aot_unnamed_variant"  # stands for the name of a variant in a launcher that several of them share


@dataclass(frozen=True)
class _Code:
    """What came out of the compiler, for all variants that share it."""

    launcher: str  # without the name of a variant
    facts: Launcher
    cubins: tuple[Cubin, ...]
    launches: tuple[KernelLaunch, ...]
    reads: dict[str, Any] | None  # of a captured call


_LAST: Last[_Code] = Last()  # of this worker


def backend_version() -> int:
    """The CUDA major version of the backend that was loaded."""
    module = sys.modules[dsl.installed().BACKEND_MODULE]
    match = re.search(r"\.cu(\d+)\.", Path(str(module.__file__)).name)
    if match is None:
        raise BuildError(f"cannot tell the CUDA version of CuTe DSL's backend from `{module.__file__}`")
    return int(match[1])


def compile_variant(variant: Variant, options: Options, launcher: Path) -> Compiled:
    """Compile a variant and write its launcher; what came out is checked against what was asked."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="aot-dump-", dir=launcher.parent) as dump:
        code = _LAST.get(code_of(variant, options), lambda: _compile(variant, options, Path(dump)))
        if "sass" in options.keep:
            for number, cubin in enumerate(code.cubins):
                Path(dump, f"{number}.sass").write_text(disassemble(cubin.elf))
        _keep(options, dump, launcher)
    _check(variant, code)
    launcher.write_text(code.launcher.replace(_UNNAMED, variant.name))
    return Compiled(
        variant=variant.name,
        launches=code.launches,
        cubin_sha256=tuple(cubin.sha256 for cubin in code.cubins),
        cubin_bytes=sum(len(cubin.elf) for cubin in code.cubins),
        seconds=round(time.perf_counter() - started, 3),
        reads=code.reads,
    )


def lacking_instruction(variant: Variant) -> Lacking | None:
    """Trace a variant once more, for the line of an instruction that its architecture lacks."""
    found: list[Lacking | None] = []

    def look(module: Any) -> None:
        found.append(lacking(module, variant.arch, lambda path: is_authors(path, variant.kernel.origin)))
        raise _TracedError  # there is nothing to compile

    arguments, keywords = _passed(variant.spec)
    flags = f"--enable-tvm-ffi --gpu-arch {variant.arch} {variant.kernel.options} --generate-line-info"
    with suppress(Exception), dsl.installed().when_traced(look):
        cute.compile(variant.spec.function, *arguments, **{**keywords, "options": flags})
    return next((one for one in found if one is not None), None)


class _TracedError(Exception):
    """Ends a compile after it was traced."""


def _compile(variant: Variant, options: Options, dump: Path) -> _Code:
    """Trace and compile a variant, and read what came out."""
    clusters: Clusters = {}
    arguments, keywords = _passed(variant.spec)
    flags = ["--enable-tvm-ffi", f"--gpu-arch {variant.arch}", variant.kernel.options]
    flags += ["--generate-line-info"] if options.line_info else []
    # Dump files of different compilations have the same names: each gets a folder of its own.
    flags += [f"--keep-{kind} --dump-dir={dump}" for kind in options.keep if kind in ("ptx", "cubin")]
    modules = (dump / f"{number}.mlir" for number in count())
    keep_module = dsl.installed().when_traced(lambda module: next(modules).write_text(f"{module}\n"))
    with (
        dsl.installed().quick_tracing(),
        dsl.installed().open_tuples(),
        dsl.installed().note_clusters(clusters),
        keep_module if "mlir" in options.keep else nullcontext(),
    ):
        keywords = {**keywords, **dsl.installed().COMPILE_KEYWORDS, "options": " ".join(filter(None, flags))}
        compile_ = partial(cute.compile, variant.spec.function, *arguments, **keywords)
        function, reads = (
            traced(variant.spec, compile_) if isinstance(variant.spec, CapturedSpec) else (compile_(), None)
        )
    unnamed = returning_failures(dsl.installed().export(function, _UNNAMED, symbol_prefix(_UNNAMED)))
    cubins = cubins_in_llvm_ir(unnamed, source=variant.name)
    if not any(cubin.kernels for cubin in cubins):
        raise BuildError("no GPU code came out", hint="the jit function must launch a kernel")
    facts = parse_launcher(unnamed.replace(_UNNAMED, variant.name), variant.name)
    launches = tuple(_launch(kernel, facts, clusters) for cubin in cubins for kernel in cubin.kernels)
    return _Code(unnamed, facts, cubins, launches, reads)


def _passed(spec: Spec) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """What the compiler is given for the arguments: what a library passed, or fakes of what is declared."""
    if isinstance(spec, CapturedSpec):
        return spec.args, spec.kwargs
    symbols: dict[str, Any] = {}
    return [_fake(argument, name, symbols) for name, argument in spec.arguments.items()], {}


def _dtype(argument: Tensor | Scalar | Pointer) -> Any:
    return getattr(cutlass, DTYPES[argument.dtype].cutlass)


def _fake(argument: Argument, name: str, symbols: dict[str, Any]) -> Any:
    """What stands for an argument while compiling; symbols of one name are one object."""
    if isinstance(argument, Tensor):
        argument = compiled_tensor(argument)
        # Without elements, an optional tensor has other extents than the tensors it belongs to.
        own = {} if argument.optional else symbols
        shape = tuple(_symbolic(extent, own) for extent in argument.shape)
        strides = tuple(_symbolic(stride, own) for stride in layout_of(argument, name))
        return make_fake_tensor(_dtype(argument), shape, strides, assumed_align=argument.alignment)
    if isinstance(argument, Scalar):
        return _dtype(argument)(0)
    if isinstance(argument, Pointer):
        align = argument.align or _dtype(argument).width // 8
        return make_ptr(_dtype(argument), align, AddressSpace.gmem, assumed_align=align)
    if isinstance(argument, Stream):
        return make_fake_stream(use_tvm_ffi_env_stream=not argument.explicit)
    if isinstance(argument, Tuple):
        elements = [_fake(element, f"{name}[{i}]", symbols) for i, element in enumerate(argument.elements)]
        return argument.type(*elements) if argument.type is not None else tuple(elements)
    if isinstance(argument, (Multiprocessors, ActiveClusters)):
        return cutlass.Int32(1)
    if isinstance(argument, Fixed):
        # Only the type is compiled, but names in the launcher spell the value. All variants that share the code get the
        # same names, whichever of them a worker compiles first.
        return None if argument.value is None else type(argument.value)()
    return argument.value if isinstance(argument, Constant) else argument


def _symbolic(extent: int | Dim, symbols: dict[str, Any]) -> Any:
    if isinstance(extent, int):
        return extent
    if extent.name not in symbols:
        symbols[extent.name] = SymInt(width=extent.bits, divisibility=extent.divisible_by, symbol=extent.name)
    return symbols[extent.name]


def _keep(options: Options, dump: str, launcher: Path) -> None:
    for kind in ("ptx", "cubin", "mlir", "sass"):
        if kind in options.keep:
            for number, path in enumerate(sorted(Path(dump).rglob(f"*.{kind}"))):
                launcher.with_suffix(f".{number}.{kind}" if number else f".{kind}").write_bytes(path.read_bytes())


def _launch(kernel: KernelFacts, facts: Launcher, clusters: Clusters) -> KernelLaunch:
    return KernelLaunch(
        name=kernel.name,
        registers=kernel.registers or 0,
        static_shared_memory=kernel.static_shared_memory,
        dynamic_shared_memory=facts.dynamic_shared_memory,
        block=facts.block or kernel.required_threads,
        cluster=clusters.get(kernel.name),
        local_memory=kernel.stack_bytes or 0,
    )


def _check(variant: Variant, code: _Code) -> None:
    """The compiler accepts kernels that no device can run: refuse them now, with the numbers."""
    target = Target.of(variant.arch)
    passed = [a for a in variant.spec.arguments.values() if not isinstance(a, Constant) and a != Stream()]
    if code.facts.argument_count != len(passed):
        raise BuildError(
            f"the compiled entry takes {code.facts.argument_count} arguments, the declaration passes {len(passed)}",
            hint="the jit function's signature says which: each argument stands for one of its parameters",
        )
    for cubin in code.cubins:
        if cubin.architecture != str(variant.arch):
            raise BuildError(
                f"asked for {variant.arch}, the compiler made {cubin.architecture}",
                hint="this backend does not know the architecture; try `--cuda 13`",
            )
    for launch in code.launches:
        _check_launch(launch, code.facts, target)


def _check_launch(launch: KernelLaunch, facts: Launcher, target: Target) -> None:
    # If launches differ, the text does not tell which kernel each belongs to: the largest is checked for all.
    threads = _product(launch.block) if launch.block else facts.largest_block
    if threads > target.max_threads:
        shape = f" of {launch.block}" if launch.block else ""
        raise BuildError(f"a block{shape} has {threads} threads, {target.arch} allows {target.max_threads}")
    cluster = _product(launch.cluster or (1, 1, 1))
    if cluster > target.max_cluster:
        raise BuildError(
            f"a cluster of {launch.cluster} has {cluster} blocks, {target.arch} allows {target.max_cluster}"
        )
    dynamic = facts.largest_dynamic_shared_memory
    memory = launch.static_shared_memory + dynamic
    if memory > target.shared_memory:
        raise BuildError(
            f"a block needs {memory} bytes of shared memory ({launch.static_shared_memory} static, "
            f"{dynamic} dynamic), {target.arch} has {target.shared_memory}",
            hint="use a smaller tile or fewer stages",
        )
    registers = launch.registers * threads
    if registers > target.max_registers:
        raise BuildError(
            f"{launch.registers} registers x {threads} threads are {registers}, {target.arch} has {target.max_registers} per block",
            hint="use fewer threads, or less per thread",
        )


def _product(sizes: tuple[int, int, int]) -> int:
    return sizes[0] * sizes[1] * sizes[2]
