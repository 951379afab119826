"""Show the kernels that a folder, file or module declares."""

from __future__ import annotations

import argparse
import dataclasses

from ...compile.messages import KernelInfo
from ...pipeline.plan import in_families
from ...pipeline.workers import describe
from ...records import encode
from ..options import add_family_argument, add_kernels_argument, parse_families
from ..report import print_failures, print_json, print_wrapped
from ..schema import Key

__all__ = ["KEYS", "configure_parser", "execute"]

KEYS = (
    Key(
        "kernels",
        "list of object",
        "name, documentation, origin, parameters, choices, axes, architectures, has_contract, backward, family",
    ),
    Key("failures", "list of object", "files that cannot be read: message, log"),
)


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_kernels_argument(parser)
    add_family_argument(parser)


def execute(arguments: argparse.Namespace) -> int:
    declared = describe(arguments.kernels)
    if arguments.family:
        kernels = in_families(declared.kernels, parse_families(arguments.family))
        declared = dataclasses.replace(declared, kernels=tuple(kernels))
    print_failures(declared.failures)
    if arguments.json:
        print_json(encode(declared))
    else:
        for kernel in declared.kernels:
            print_wrapped(f"{kernel.name}: {(kernel.doc.splitlines() or [''])[0]}".rstrip(": "))
            for name, text in _facts(kernel).items():
                if text:
                    print_wrapped(f"  {name}: {text}", indent="    ")
    return 1 if declared.failures else 0


def _facts(kernel: KernelInfo) -> dict[str, str]:
    return {
        "parameters": ", ".join(parameter.name for parameter in kernel.parameters),
        "choices": ", ".join(f"{choice.name}: {'|'.join(choice.values)}" for choice in kernel.choices),
        "axes": ", ".join(f"{axis}: {'|'.join(values)}" for axis, values in kernel.axes.items()),
        "architectures": ", ".join(str(arch) for arch in kernel.archs),
        "family": kernel.family,
        "declared in": kernel.origin,
        "contract": "yes" if kernel.has_contract else "none, so that `check` and `bench` pass it over",
    }
