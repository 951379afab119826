"""Say what a call would run on a GPU, and why not the other variants. Needs no GPU."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot_runtime.arch import parse_capability
from aot_runtime.core.explain import Candidate, Device, TensorInfo
from aot_runtime.description.kernel_records import KernelRecord
from aot_runtime.gpus import NATIVE

from ...bundle.manifest import Manifest
from ...bundle.tables.tuning import TunedDevice, Tuning, bundle_tunings
from ...errors import UsageError, counted
from ...gpu.explaining import Answer, ask, parse_arguments
from ...gpu.machine import read_driver
from ...model.parts import find_part
from ...pipeline.spellings import parse_wanted
from ...records import encode
from ...versions import without_torch
from ..options import add_bundle_argument, add_key_argument, add_old_spelling, read_trusted
from ..report import note, print_json
from ..schema import Key

if TYPE_CHECKING:
    from aot_runtime.core.bundle import Bundle

__all__ = ["KEYS", "configure_parser", "execute"]


KEYS = (
    Key("kernel", str, "name of the kernel"),
    Key("capability", str, "compute capability of the device"),
    Key("arguments", Mapping[str, TensorInfo | Any], "the call: tensors, and other values as they are, by parameter"),
    Key("chosen", Candidate | None, "what would run; null: nothing"),
    Key("written_for", str, "the architecture that the chosen code was written for; empty: not known"),
    Key("eligible", tuple[Candidate, ...], "variants that could run too, with lower priority"),
    Key("refused", tuple[Candidate, ...], "the others, the nearest first"),
)
_SHOWN = 12  # refused variants that are listed; the rest are counted


def configure_parser(parser: argparse.ArgumentParser) -> None:
    add_bundle_argument(parser)
    add_key_argument(parser)
    add = parser.add_argument
    add("kernel", metavar="KERNEL", help="name of the kernel")
    add(
        "arguments",
        nargs="*",
        default=[],  # without one, argparse calls it required
        metavar="NAME=VALUE",
        help="an argument of the call: x=f16[4,8,64], with strides and alignment x=f16[4,8]:(16,1)@16, n=3, "
        "scale=0.5, flag=true, bias=none, pair=(f32[8],2.0), a choice op=relu; outputs may be left out",
    )
    add("--device", metavar="GPU", help="a GPU: 9.0, H100, sm_90a, native (default: this machine's first)")
    add_old_spelling(parser, "--cc", "device")


def execute(arguments: argparse.Namespace) -> int:
    manifest = read_trusted(arguments)
    record = _record(manifest, arguments.kernel)
    tunings = bundle_tunings(arguments.bundle, manifest)
    device = _device(arguments.device, [tuning.device for tuning in tunings])
    call = parse_arguments(arguments.arguments, record)
    answer = ask(_load(arguments.bundle, manifest), record.name, device, call)
    if arguments.json:
        print_json(_data(record, device, answer))
    else:
        _print(arguments, record, device, answer, _tuned_devices(tunings, record))
        if not any(arch.runs_on(parse_capability(device.capability)) for arch in record.archs):
            step = f"python -m aot build --add --arch {_capability(device)}"
            note(arguments, f"hint: build it for this device too: `{step}`")
    return 0 if answer.chosen is not None else 1


def _load(path: Path, manifest: Manifest) -> Bundle:
    """Load a bundle. No call is made, so that torch is not needed, which is slow to import."""
    import aot_runtime

    with without_torch():
        return aot_runtime.load(path, manifest_sha256=manifest.sha256)


def _record(manifest: Manifest, name: str) -> KernelRecord:
    if name not in manifest.kernels:
        close = get_close_matches(name, manifest.kernels, n=1)
        start = f"did you mean `{close[0]}`? " if close else ""
        raise UsageError(f"no kernel is called {name!r}", hint=f"{start}there are: {', '.join(manifest.kernels)}")
    return manifest.kernels[name]


def _tuned_devices(tunings: Sequence[Tuning], record: KernelRecord) -> list[str]:
    return [str(one.device) for one in tunings if any(kernel.kernel == record.name for kernel in one.kernels)]


def _device(text: str | None, tuned: Sequence[TunedDevice]) -> Device:
    """The device to explain for. If the bundle has a table for it, its multiprocessors and bandwidth come from there."""
    for device in tuned:
        if text is not None and device.name.lower().removeprefix("nvidia ") == text.lower().removeprefix("nvidia "):
            return Device(device.capability, device.name, device.multiprocessors, device.bandwidth)
    if text is None:
        devices = read_driver().devices
        if not devices:
            raise UsageError("this machine has no GPU to explain for", hint="pass `--device 9.0` or `--device H100`")
        return Device(devices[0].capability, devices[0].name, devices[0].multiprocessors, devices[0].bandwidth)
    if text == NATIVE:
        return _device(None, tuned)
    part = find_part(text)
    if part is not None:
        return Device(part.capability, part.name, part.multiprocessors, part.bandwidth)
    (wanted,) = parse_wanted([text])[:1]
    if isinstance(wanted, str):
        raise UsageError(f"not a GPU: {text!r}", hint="pass a compute capability such as 9.0, or a name such as H100")
    return Device(wanted.capability, "", 0)


def _print(
    arguments: argparse.Namespace, record: KernelRecord, device: Device, answer: Answer, tuned: Sequence[str]
) -> None:
    call = ", ".join(f"{name}={_text(value)}" for name, value in answer.arguments.items())
    print(f"{record.name}({call})")
    where = f"compute capability {_capability(device)}"
    if answer.chosen is not None:
        print(f"on {where} runs {answer.chosen.arch} {answer.chosen.variant}")
        if answer.written_for not in ("", answer.chosen.arch):
            print(f"portable code, written for {answer.written_for}")
        print(_decided(answer.chosen, tuned), end="")
    else:
        print(f"on {where} nothing runs")
    if answer.eligible:
        print("eligible, but lower priority:")
        for candidate in answer.eligible:
            print(f"  {candidate.arch} {candidate.variant}")
    if answer.refused:
        print("refused, the nearest first:")
        shown = answer.refused if arguments.verbose else answer.refused[:_SHOWN]
        for candidate in shown:
            print(f"  {candidate.arch} {candidate.variant}: {candidate.reason}")
        if len(shown) < len(answer.refused):
            print(f"  and {counted(len(answer.refused) - len(shown), 'variant')} more, which `-v` lists")


def _capability(device: Device) -> str:
    return "{}.{}".format(*parse_capability(device.capability))


def _decided(chosen: Candidate, tuned: Sequence[str]) -> str:
    """Which table decided, if the kernel has tables."""
    if chosen.table:
        return f"decided by the table of {chosen.table}\n"
    return f"decided by guards; tables are for {', '.join(tuned)}\n" if tuned else ""


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))})"
    if not isinstance(value, TensorInfo):
        return str(value)
    shape = f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    return shape if value.strides is None else f"{shape} strides {value.strides}"


def _data(record: KernelRecord, device: Device, answer: Answer) -> dict[str, object]:
    return {
        "kernel": record.name,
        "capability": _capability(device),
        "arguments": encode(answer.arguments),
        "chosen": encode(answer.chosen),
        "written_for": answer.written_for,
        "eligible": encode(answer.eligible),
        "refused": encode(answer.refused),
    }
