"""Show the kernels that a folder, file or module declares."""

from __future__ import annotations

import argparse
import dataclasses

from ...compile.messages import KernelInfo
from ...pipeline.plan import in_families
from ...pipeline.workers import describe
from ...records import encode
from ..options import add_family_argument, add_kernels_argument, parse_families
from ..report import print_failures, print_json, print_table
from ..schema import Key

__all__ = ["KEYS", "configure_parser", "execute"]

KEYS = (
    Key(
        "kernels",
        "list of object",
        "name, documentation, origin, parameters, choices, axes, architectures, backward, family",
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
        print_table(
            ("kernel", "parameters", "choices", "axes", "architectures", "family", "what it computes"),
            [_row(kernel) for kernel in declared.kernels],
        )
    return 1 if declared.failures else 0


def _row(kernel: KernelInfo) -> tuple[str, ...]:
    return (
        kernel.name,
        ", ".join(parameter.name for parameter in kernel.parameters),
        ", ".join(f"{choice.name}: {'|'.join(choice.values)}" for choice in kernel.choices),
        ", ".join(f"{axis}: {'|'.join(values)}" for axis, values in kernel.axes.items()),
        ", ".join(str(arch) for arch in kernel.archs),
        kernel.family,
        (kernel.doc.splitlines() or [""])[0],
    )
