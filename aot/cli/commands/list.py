"""Show the kernels that a folder, file or module declares, and what building them would compile."""

from __future__ import annotations

import argparse

from aot_runtime.arch import Arch

from ...compile.messages import KernelInfo
from ...errors import Failure, counted
from ...pipeline.outlook import foresee
from ...records import encode
from ..build_options import add_build_options
from ..planned import estimate_text, plan_data, print_plan
from ..progress import make_progress
from ..report import first_line, print_failures, print_json, print_wrapped
from ..schema import Key
from ..settings import list_settings
from .build import PLAN_KEYS

__all__ = ["KEYS", "configure_parser", "execute"]

KEYS = (
    Key("kernels", tuple[KernelInfo, ...], "what is declared"),
    *PLAN_KEYS,
    Key("failures", tuple[Failure, ...], "files and declarations that are wrong"),
)


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_build_options(
        parser,
        "--source", "--kernel", "--family", "--arch", "--cuda", "--jobs", "--memory", "--timeout", "--cache", "--trust",
        absent={"--family": "every family", "--arch": "in a kernel project, those of its pyproject.toml; else all"},
    )  # fmt: skip


def execute(arguments: argparse.Namespace) -> int:
    settings = list_settings(arguments)
    with make_progress(arguments) as progress:
        outlook = foresee(settings, progress)
    print_failures(arguments, outlook.failures)
    if arguments.json:
        print_json({"kernels": encode(outlook.kernels), **plan_data(outlook)})
        return 1 if outlook.failures else 0
    for kernel in outlook.kernels:
        _print_kernel(kernel)
    print()
    print_plan(outlook)
    built = counted(outlook.variants, "variant")
    print(f"\n{built}, {outlook.cached} cached; time for the rest: {estimate_text(outlook, settings.worker_count)}")
    return 1 if outlook.failures else 0


def _print_kernel(kernel: KernelInfo) -> None:
    print_wrapped(f"{kernel.name}: {first_line(kernel.doc)}".rstrip(": "))
    for name, text in _facts(kernel).items():
        if text:
            print_wrapped(f"  {name}: {text}", indent="    ")


def _arch_text(kernel: KernelInfo, arch: Arch) -> str:
    return f"{arch} (portable code)" if arch in kernel.portable_archs() else str(arch)


def _facts(kernel: KernelInfo) -> dict[str, str]:
    return {
        "parameters": ", ".join(parameter.name for parameter in kernel.parameters),
        "choices": ", ".join(f"{choice.name}: {'|'.join(choice.values)}" for choice in kernel.choices),
        "axes": ", ".join(f"{axis}: {'|'.join(values)}" for axis, values in kernel.axes.items()),
        "architectures": ", ".join(_arch_text(kernel, arch) for arch in kernel.archs),
        "family": kernel.family,
        "declared in": kernel.origin,
        "contract": "yes" if kernel.has_contract else "none, so `check` and `bench` skip it",
    }
