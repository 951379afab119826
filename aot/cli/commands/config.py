"""Print what a C or C++ build needs: directories, and the flags to compile and link a bundle."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

import aot_runtime.native
from aot_runtime.arch import Arch

from ...bundle.layout import archive_names, decline_flag
from ...bundle.manifest import Manifest
from ...errors import UsageError
from ...hosts import Host
from ...pipeline.spellings import built_archs, parse_archs, parse_wanted
from ...versions import tvm_ffi_library
from ..report import print_json
from ..schema import Key

__all__ = ["KEYS", "configure_parser", "execute"]

KEYS = (
    Key("cmakedir", str, "folder of cute_aotConfig.cmake", "without --archs"),
    Key("pkgconfigdir", str, "folder of cute-aot.pc", "without --archs"),
    Key("includedir", str, "folder of <aot/aot.h>", "without --archs"),
    Key("cflags", tuple[str, ...], "flags to compile with", "without --archs"),
    Key("ldflags", tuple[str, ...], "flags to link with", "without --archs"),
    Key("libs", tuple[str, ...], "libraries to link", "without --archs"),
    Key("archs", tuple[str, ...], "exact names", "with --archs"),
)

SYSTEM = ("-ldl", "-lrt", "-lm", "-pthread")


def configure_parser(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Example: cc app.c $(python -m aot config --cflags --ldflags --libs --static --arch sm90 dist/kernels). "
        "Several options are printed on one line, in the order that a compiler needs. Flags are quoted only if one of them "
        "contains a space: then pass the line through `eval`."
    )
    add = parser.add_argument
    add(
        "bundle",
        type=Path,
        nargs="?",
        metavar="BUNDLE",
        help="a bundle to link; without it, the flags for a program that opens a bundle at run time",
    )
    add("--cmakedir", action="store_true", help="folder of cute_aotConfig.cmake, for -Dcute_aot_DIR=...")
    add("--pkgconfigdir", action="store_true", help="folder of cute-aot.pc, for PKG_CONFIG_PATH")
    add("--includedir", action="store_true", help="folder of <aot/aot.h>")
    add("--cflags", action="store_true", help="flags to compile with")
    add("--ldflags", action="store_true", help="flags to link with")
    add("--libs", action="store_true", help="libraries to link")
    add(
        "--rpath",
        action="append",
        default=[],
        metavar="DIR",
        help="with --ldflags: where the finished program looks for libraries, such as '$ORIGIN/../lib', instead of where "
        "they are on this machine; repeatable",
    )
    add("--tvm-ffi", action="store_true", help="path of libtvm_ffi.so, to ship beside a program that links a bundle")
    add("--static", action="store_true", help="link the bundle's archives instead of its shared library")
    add("--no-cudart", action="store_true", help="with --static: the program links a CUDA runtime itself")
    add(
        "--arch",
        action="append",
        default=[],
        metavar="ARCH",
        help="with --static: link only these architectures; repeatable (default: all)",
    )
    add("--host", metavar="CPU", help="link for this CPU (default: this machine's)")
    add("--archs", nargs="+", metavar="ARCH", help="only print the exact names of these architectures")


def execute(arguments: argparse.Namespace) -> int:
    if arguments.archs is not None:
        archs = [str(arch) for arch in parse_archs(arguments.archs, ())]
        if arguments.json:
            print_json({"archs": archs})
        else:
            print(" ".join(archs))
        return 0
    bundle = _Bundle.read(arguments) if arguments.bundle is not None else None
    if bundle is None and (arguments.static or arguments.arch):
        raise UsageError("`--static` and `--arch` need a bundle", hint="pass the directory of the bundle")
    if arguments.no_cudart and not arguments.static:
        raise UsageError("`--no-cudart` needs `--static`", hint="pass `--static`, or leave it out")
    if arguments.rpath and (bundle is None or not (arguments.ldflags or arguments.json)):
        raise UsageError("`--rpath` needs `--ldflags` and a bundle", hint="pass both")
    if arguments.json:
        print_json(_data(bundle, arguments.rpath))
        return 0
    words = _wanted(arguments, bundle)
    if not words:
        raise UsageError("no output was requested", hint="pass `--cflags`, `--libs`, ..., or `--help`")
    print(_line(words))
    return 0


def _line(words: Sequence[str]) -> str:
    """For ``$(...)`` of a shell, which splits at spaces and takes quotes literally. Words with spaces need ``eval``.

    A path alone is as it is, for ``"$(...)"``.
    """
    is_path = len(words) == 1 and not words[0].startswith("-")
    spaced = not is_path and any(len(word.split()) != 1 for word in words)
    return shlex.join(words) if spaced else " ".join(words)


def _wanted(arguments: argparse.Namespace, bundle: _Bundle | None) -> list[str]:
    words: list[str] = []
    if arguments.cmakedir:
        words.append(str(aot_runtime.native.cmake_directory()))
    if arguments.pkgconfigdir:
        words.append(str(aot_runtime.native.pkgconfig_directory()))
    if arguments.includedir:
        words.append(str(aot_runtime.native.include_directory()))
    if arguments.tvm_ffi:
        words.append(str(tvm_ffi_library()))
    words += _cflags(bundle) if arguments.cflags else []
    words += _ldflags(bundle, arguments.rpath) if arguments.ldflags else []
    return words + (_libs(bundle) if arguments.libs else [])


class _Bundle:
    """A bundle as a program links it."""

    def __init__(
        self, path: Path, manifest: Manifest, host: Host, archs: Sequence[Arch], *, static: bool, cudart: bool
    ) -> None:
        self.path, self.manifest, self.host = path, manifest, host
        self.archs, self.static, self.cudart = tuple(archs), static, cudart

    @classmethod
    def read(cls, arguments: argparse.Namespace) -> _Bundle:
        path = arguments.bundle.absolute()
        manifest = Manifest.read(path)
        host = Host.parse(arguments.host) if arguments.host else Host.native()
        if host.name not in manifest.hosts:
            raise UsageError(f"`{path}` holds no code for {host}", hint=f"it has: {', '.join(manifest.hosts)}")
        built = manifest.archs
        named = dict.fromkeys(arch for wanted in parse_wanted(arguments.arch) for arch in built_archs(wanted, built))
        archs = tuple(named) or built
        cudart = manifest.hosts[host.name].cudart == "static" and not arguments.no_cudart
        bundle = cls(path, manifest, host, archs, static=arguments.static, cudart=cudart)
        if arguments.static:
            bundle.check_archives()
        return bundle

    @property
    def folder(self) -> Path:
        return self.path / "lib" / self.host.name

    @property
    def archives(self) -> list[Path]:
        return [self.folder / name for name in archive_names(self.manifest.name, self.archs, cudart=self.cudart)]

    def check_archives(self) -> None:
        for archive in self.archives:
            if not archive.is_file():
                raise UsageError(f"`{archive}` is missing", hint="build the bundle without `--no-archives`")

    @property
    def declined(self) -> list[Arch]:
        return [arch for arch in self.manifest.archs if arch not in self.archs]


def _cflags(bundle: _Bundle | None) -> list[str]:
    flags = [f"-I{aot_runtime.native.include_directory()}"]
    return flags if bundle is None else [*flags, f"-I{bundle.path / 'include'}"]


def _ldflags(bundle: _Bundle | None, rpath: Sequence[str] = ()) -> list[str]:
    if bundle is None:
        return []
    places = rpath or [str(place) for place in ([] if bundle.static else [bundle.folder]) + [tvm_ffi_library().parent]]
    paths = [f"-Wl,-rpath,{place}" for place in places]
    if not bundle.static:
        return paths
    return ["-Wl,--gc-sections", *(decline_flag(bundle.manifest.name, arch) for arch in bundle.declined), *paths]


def _libs(bundle: _Bundle | None) -> list[str]:
    if bundle is None:
        return list(SYSTEM)
    # The entry library needs libtvm_ffi but has no NEEDED entry for it, so it is linked even if the program does not call it.
    tvm_ffi = ["-Wl,--push-state,--no-as-needed", str(tvm_ffi_library()), "-Wl,--pop-state"]
    if not bundle.static:
        return [str(bundle.folder / f"lib{bundle.manifest.name}.so"), *tvm_ffi, *SYSTEM]
    entry, *others = map(str, bundle.archives)
    # Whole, so that the linker reports another version of the bundle in the same program instead of picking one.
    return ["-Wl,--whole-archive", entry, "-Wl,--no-whole-archive", *others, *tvm_ffi, *SYSTEM]


def _data(bundle: _Bundle | None, rpath: Sequence[str]) -> dict[str, object]:
    native = aot_runtime.native
    return {
        "cmakedir": str(native.cmake_directory()),
        "pkgconfigdir": str(native.pkgconfig_directory()),
        "includedir": str(native.include_directory()),
        "cflags": _cflags(bundle),
        "ldflags": _ldflags(bundle, rpath),
        "libs": _libs(bundle),
    }
