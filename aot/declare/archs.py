"""Which code serves which architecture: data of a declaration.

    archs=("sm_80", "sm_90a")                                            each has code of its own
    archs={"sm_80": "sm_80", "sm_90a": "sm_90a", "sm_100f": "sm_80"}     sm_100f runs the code that was written for sm_80

Code that serves another architecture than the one that it was written for is *portable code*: it runs there, and
nothing in it was made for that chip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aot_runtime.arch import Arch

from ..errors import DeclarationError
from ..targets import accepted_archs, parse_arch, serves

__all__ = ["code_for", "parse_code", "parse_served"]


def parse_served(archs: Any, origin: str) -> dict[Arch, Arch]:
    """What ``archs`` of a declaration says: by architecture, the one that its code was written for."""
    if isinstance(archs, str):
        raise DeclarationError(f"{origin}: archs is the text {archs!r}", hint=f'write it like archs=("{archs}",)')
    if not isinstance(archs, (Mapping, Sequence)) or not archs:
        raise _unknown(origin, [archs] if archs else [])
    pairs = archs.items() if isinstance(archs, Mapping) else [(arch, arch) for arch in archs]
    known = {text: parse_arch(text) if isinstance(text, str) else None for pair in pairs for text in pair}
    unknown = [text for text, arch in known.items() if arch is None]
    if unknown:
        raise _unknown(origin, unknown)
    return {arch: parse_code(code, arch, origin) for text, code in pairs if (arch := known[text]) is not None}


def parse_code(text: Any, arch: Arch, where: str) -> Arch:
    """The architecture that code was written for, which has to run on ``arch``."""
    code = parse_arch(text) if isinstance(text, str) else None
    if code is None:
        raise _unknown(where, [text])
    if not serves(code, arch):
        raise DeclarationError(
            f"{where}: code that was written for {code} does not run as {arch}",
            hint="portable code is written for an architecture without a letter, and no later one: sm_80, sm_90",
        )
    return code


def code_for(served: Mapping[Arch, Arch], arch: Arch) -> Arch:
    """The architecture whose code serves another. One that the declaration does not name gets its last portable code."""
    earlier = [own for own in served if not own.suffix and own.capability <= arch.capability]
    return served.get(arch) or (served[max(earlier)] if earlier else arch)


def _unknown(where: str, given: Sequence[Any]) -> DeclarationError:
    return DeclarationError(
        f"{where}: unknown architectures: {', '.join(map(str, given)) or 'none given'}",
        hint=f"pass a list of {', '.join(map(str, accepted_archs()))}; or of sm90, H100, 9.0 for the best code of a chip",
    )
