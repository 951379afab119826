"""Running zig, the C compiler and linker for every host.

zig carries clang, lld and the C libraries of all hosts and glibc versions in one PyPI package, so that
a build needs no compiler of the machine and links against an older glibc than the machine has.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ..binary.elf import read_shared_library
from ..errors import ToolchainError, system_hint
from ..files import full_disk, make_marked
from ..hosts import Host
from ..versions import install_extras

__all__ = ["Zig"]

_COMPILE = ("-g0", "-fPIC", "-fvisibility=hidden", "-ffunction-sections", "-fdata-sections")
_C = ("-O2", "-mcpu=baseline", "-std=gnu99", "-Wall", "-Wextra", "-Werror", "-fno-sanitize=all", "-fno-stack-protector")
# A launcher is a row of checks and stores: more optimisation takes a third longer and changes next to nothing. CPUs order
# such instructions themselves: without the compiler's schedulers a launcher takes a sixth less to compile, and as long to run.
_NO_SCHEDULERS = tuple(f"-mllvm=-enable-{name}=false" for name in ("misched", "post-misched"))
_LLVM_IR = ("-O1", "-Wno-override-module", *_NO_SCHEDULERS)
# Local symbols stay where our own code is: `verify` names functions by them, and so do profilers.
_LINK = (
    "-O2",  # of the compiler's support routines: unoptimised, zig takes five times as long to build them
    "-shared",
    "-Wl,--gc-sections",
    # A kernel without axes and its public function have one name: in a program that links the entry library,
    # the kernel library would otherwise find that function instead of its own, which then calls itself for ever.
    "-Wl,-Bsymbolic",
    "-Wl,-z,noexecstack",
    "-Wl,-z,now",
    "-Wl,-z,nodelete",  # graphs and other threads keep using the code
    "-Wl,--build-id=none",
)
# Nearly all libraries need none of the compiler's support routines. zig builds all of them before it links, once for
# libraries with symbols and once for those without, which takes six seconds each time.
_NO_ROUTINES = "-rtlib=none"
_ROUTINE = "__"  # their names begin with it: __divti3


@dataclass(frozen=True)
class Zig:
    """The zig of the ``ziglang`` package, with caches where we want them."""

    executable: Path
    cache: Path

    @classmethod
    def find(cls, cache: Path) -> Zig:
        spec = find_spec("ziglang")
        if spec is None or spec.origin is None:
            raise ToolchainError("ziglang, the compiler for all hosts, is not installed", hint=install_extras("build"))
        return cls(Path(spec.origin).with_name("zig"), cache)

    def compile_c(
        self, host: Host, source: Path, output: Path, includes: Sequence[Path], *, unwinds: bool = False
    ) -> None:
        """``unwinds``: exceptions of C++ may pass through the code."""
        flags = [flag for include in includes for flag in ("-isystem", str(include))]
        flags += ["-fexceptions"] if unwinds else []
        self._cc(host, [*_COMPILE, *_C, *flags, "-c", str(source), "-o", str(output)], source.parent)

    def compile_llvm_ir(self, host: Host, source: Path, output: Path) -> None:
        """Needs no headers and no libc, so that zig's own clang does it alone, without zig's cache around it."""
        flags = ["-target", host.llvm_triple, *_COMPILE, *_LLVM_IR]
        self._run([str(self.executable), "clang", *flags, "-c", str(source), "-o", str(output)], source.parent)

    def link(
        self, host: Host, inputs: Sequence[str], output: Path, *, exports: Sequence[str], strip: bool = False
    ) -> None:
        """Link a shared library that exports just those names, under its own file name."""
        script = output.with_suffix(".map")
        script.write_text("{\n global:\n" + "".join(f"  {name};\n" for name in exports) + " local: *;\n};\n")
        flags = [f"-Wl,--version-script={script}", f"-Wl,-soname,{output.name}", *(["-s"] if strip else [])]
        arguments = [*_LINK, *flags, *inputs, "-o", str(output)]
        self._cc(host, [*arguments, _NO_ROUTINES], output.parent)
        if _lacks_routines(output):
            self._cc(host, arguments, output.parent)
        script.unlink()

    @property
    def is_new(self) -> bool:
        """Whether zig has linked nothing yet: what it links into every library is built with the first one."""
        return not (self.cache / "global").exists()

    def prepare(self, host: Host, folder: Path) -> None:
        """Link a library of nothing, so that the next one takes less time."""
        source, built = folder / "nothing.c", folder / "nothing.o"
        source.write_text("int aot_nothing;\n")
        self.compile_c(host, source, built, [])
        self.link(host, [str(built)], folder / "libnothing.so", exports=["aot_nothing"])

    def archive(self, directory: Path, script: str) -> None:
        """Run a script of ``ar``, whose file names are relative to the directory."""
        self._run([str(self.executable), "ar", "-M"], directory, script)

    def _cc(self, host: Host, arguments: Sequence[str], directory: Path) -> None:
        self._run([str(self.executable), "cc", "-target", host.zig_target, *arguments], directory)

    def _run(self, command: Sequence[str], directory: Path, text: str | None = None) -> None:
        try:
            result = subprocess.run(
                command, cwd=directory, env=self._environment(), input=text, capture_output=True, text=True
            )
        except OSError as error:
            raise ToolchainError(f"cannot run zig: {error.strerror}", hint=system_hint(error)) from None
        if result.returncode != 0:
            # On a full disk the linker, which maps its output into memory, is killed without a word.
            if full := full_disk(directory, *self._caches().values()):
                raise ToolchainError("zig cannot write its output", hint=full)
            shown = " ".join(command)
            message = f"zig failed with exit code {result.returncode}: {shown}\n{result.stderr.strip()}"
            raise ToolchainError(message, hint=_handles_hint(result.stderr))

    def _environment(self) -> Mapping[str, str]:
        caches = self._caches()
        for name, folder in caches.items():
            if not os.environ.get(name):
                make_marked(folder)
        return {**os.environ, **{name: str(folder) for name, folder in caches.items()}}

    def _caches(self) -> dict[str, Path]:
        # Without HOME zig finds no cache of its own and fails. A place that the user chose is left to the user.
        caches = {"ZIG_GLOBAL_CACHE_DIR": self.cache / "global", "ZIG_LOCAL_CACHE_DIR": self.cache / "local"}
        return {name: Path(os.environ.get(name) or folder) for name, folder in caches.items()}


def _lacks_routines(library: Path) -> bool:
    """Whether a library calls routines of the compiler that it does not have: symbols of C libraries have versions."""
    undefined = read_shared_library(library).undefined
    return any(not one.weak and one.version is None and one.name.startswith(_ROUTINE) for one in undefined)


def _handles_hint(said: str) -> str | None:
    """What to do if zig says that it cannot open another file."""
    return system_hint(OSError(errno.EMFILE, "")) if "FdQuotaExceeded" in said else None
