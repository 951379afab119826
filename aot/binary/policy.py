"""What a finished library may need, export and execute, per host. The facts are in ``data/hosts.json``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot_runtime.errors import AotError

from .disassembly import BASELINES, Guard, Violation, beyond_baseline
from .elf import SharedLibrary, UndefinedSymbol, glibc_version

__all__ = ["CONSTRUCTORS", "HostPolicy", "PolicyError", "load_policies", "load_policy", "violations"]

_DATA = Path(__file__).resolve().parent.parent / "data" / "hosts.json"
_NAMED_AT_MOST = 8  # instructions spelled out in one report; the rest are counted
_SHORTEST_GUARD = 8  # literal characters before a wildcard: no pattern may excuse a whole library


# What the loader runs when it opens a library. A library of kernels has nothing to run then.
CONSTRUCTORS = frozenset({"INIT", "INIT_ARRAY", "FINI", "FINI_ARRAY"})


class PolicyError(AotError):
    """The policy, or what was asked of it, makes no sense."""


@dataclass(frozen=True)
class HostPolicy:
    """The limits of one host. Consistent by construction: a contradiction raises ``PolicyError``."""

    host: str
    machine: str
    baseline: str
    needed: frozenset[str]
    dynamic: frozenset[str]  # what the dynamic segment may hold
    undefined_prefixes: tuple[str, ...]  # symbols that the process supplies, without a library to name
    glibc_default: tuple[int, int]
    glibc_lowest: tuple[int, int]
    run_path: bool
    executable_stack: bool
    text_relocations: bool
    guards: tuple[Guard, ...]

    def __post_init__(self) -> None:
        for wrong in _contradictions(self):
            raise PolicyError(f"policy of host `{self.host}`: {wrong}", hint="correct `aot/data/hosts.json`")

    @classmethod
    def parse(cls, host: str, facts: Mapping[str, Any]) -> HostPolicy:
        """A policy from its JSON object; missing, unknown and mistyped entries are refused."""
        _check_entries(host, facts)
        return cls(
            host=host,
            machine=facts["machine"],
            baseline=facts["baseline"],
            needed=frozenset(facts["needed"]),
            dynamic=frozenset(facts["dynamic"]),
            undefined_prefixes=tuple(facts["undefined_prefixes"]),
            glibc_default=_version(host, facts["glibc_default"]),
            glibc_lowest=_version(host, facts["glibc_lowest"]),
            run_path=facts["run_path"],
            executable_stack=facts["executable_stack"],
            text_relocations=facts["text_relocations"],
            guards=tuple(_guard(host, name, guard) for name, guard in facts["guarded"].items()),
        )


_ENTRIES: dict[str, type] = {
    "machine": str,
    "baseline": str,
    "needed": list,
    "dynamic": list,
    "undefined_prefixes": list,
    "glibc_default": str,
    "glibc_lowest": str,
    "run_path": bool,
    "executable_stack": bool,
    "text_relocations": bool,
    "guarded": dict,
}


def load_policies(path: Path = _DATA) -> dict[str, HostPolicy]:
    """Every host's policy, by host."""
    try:
        facts = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise PolicyError(f"`{path}` cannot be read: {error}", hint="install the package again") from error
    if not isinstance(facts, dict) or not all(isinstance(entry, dict) for entry in facts.values()):
        raise PolicyError(f"`{path}` does not map hosts to their facts", hint="install the package again")
    return {host: HostPolicy.parse(host, entry) for host, entry in facts.items()}


def load_policy(host: str) -> HostPolicy:
    """The policy of one host, such as ``x86_64-linux-gnu``."""
    policies = load_policies()
    if host not in policies:
        known = ", ".join(f"`{name}`" for name in policies)
        raise PolicyError(f"no policy for host `{host}`; known: {known}", hint="name one of the known hosts")
    return policies[host]


def _check_entries(host: str, facts: Mapping[str, Any]) -> None:
    missing, unknown = sorted(_ENTRIES.keys() - facts.keys()), sorted(facts.keys() - _ENTRIES.keys())
    mistyped = sorted(k for k, kind in _ENTRIES.items() if k in facts and not isinstance(facts[k], kind))
    if missing or unknown or mistyped:
        seen = f"missing {missing}, unknown {unknown}, of another type {mistyped}"
        raise PolicyError(f"policy of host `{host}`: entries {seen}", hint="correct `aot/data/hosts.json`")


def _version(host: str, text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,3})\.(\d{1,3})", text)
    if match is None:
        raise PolicyError(f"policy of host `{host}`: not a glibc version: {text!r}", hint="write it like 2.28")
    return int(match[1]), int(match[2])


def _guard(host: str, name: str, facts: Any) -> Guard:
    if not isinstance(facts, dict) or facts.keys() != {"extensions", "reason"}:
        raise PolicyError(
            f"policy of host `{host}`: `{name}` is guarded by {facts!r}",
            hint="give it extensions and a reason",
        )
    return Guard(name, frozenset(facts["extensions"]), facts["reason"])


def _contradictions(policy: HostPolicy) -> list[str]:
    found = []
    if BASELINES.get(policy.machine) != policy.baseline:
        found.append(f"baseline {policy.baseline!r} cannot be checked for {policy.machine!r}; known: {BASELINES}")
    if not policy.host.startswith(f"{policy.machine}-"):
        found.append(f"machine {policy.machine!r} is not this host's")
    if policy.glibc_lowest > policy.glibc_default:
        found.append(
            f"lowest glibc {_dotted(policy.glibc_lowest)} is above {_dotted(policy.glibc_default)}, the default"
        )
    if not policy.needed or not all(re.fullmatch(r"[\w.+-]+\.so\.\d+", name) for name in policy.needed):
        found.append(f"needed libraries {sorted(policy.needed)} are not file names such as libc.so.6")
    if not policy.dynamic or not all(re.fullmatch(r"[A-Z0-9_]+(\.[A-Z0-9_]+)?", name) for name in policy.dynamic):
        found.append(f"dynamic tags {sorted(policy.dynamic)} are not names such as NEEDED or FLAGS_1.NOW")
    if not all(policy.undefined_prefixes):
        found.append("an empty prefix would allow every undefined symbol")
    return found + [text for guard in policy.guards if (text := _loose(guard))]


def _loose(guard: Guard) -> str | None:
    literal = re.split(r"[*?\[]", guard.name)[0]
    if len(literal) < _SHORTEST_GUARD:
        return f"guard `{guard.name}` has fewer than {_SHORTEST_GUARD} characters before its first wildcard"
    return None if guard.extensions and guard.reason else f"guard `{guard.name}` lacks its extensions or its reason"


def violations(
    library: SharedLibrary,
    policy: HostPolicy,
    *,
    exports: frozenset[str],
    glibc: tuple[int, int],
    extra_needed: frozenset[str] = frozenset(),
) -> list[str]:
    """Everything in which the library breaks the policy, one sentence each; empty when it may ship.

    ``extra_needed`` names further libraries that may be needed (libcudart.so.12).
    """
    if glibc < policy.glibc_lowest:
        asked, lowest = _dotted(glibc), _dotted(policy.glibc_lowest)
        raise PolicyError(f"glibc {asked} is below {lowest}, the lowest for {policy.host}", hint=f"ask for {lowest}")
    if library.machine != policy.machine:
        return [f"It is for {library.machine}; host {policy.host} runs {policy.machine}."]
    return [
        *_needed(library, policy.needed | extra_needed),
        *_dynamic(library, policy),
        *_run_paths(library, policy),
        *_memory(library, policy),
        *_exports(library, exports),
        *_versions(library, glibc, policy.needed | extra_needed),
        *_undefined(library, policy, bool(extra_needed)),
        *_instructions(beyond_baseline(library, policy.guards), policy),
    ]


def _needed(library: SharedLibrary, allowed: frozenset[str]) -> list[str]:
    extra = [name for name in library.needed if name not in allowed]
    return [f"It needs {name}; allowed are {', '.join(sorted(allowed))}." for name in extra]


def _dynamic(library: SharedLibrary, policy: HostPolicy) -> list[str]:
    """The loader follows some tags to other libraries, so that only known tags are allowed."""
    extra = [name for name in library.dynamic if name not in policy.dynamic and name not in _TOLD_ELSEWHERE]
    return [f"Its dynamic segment holds {name}, which no library of a bundle needs." for name in extra]


_TOLD_ELSEWHERE = frozenset({"RPATH", "RUNPATH", "TEXTREL", "FLAGS.TEXTREL"})  # by the next two checks


def _run_paths(library: SharedLibrary, policy: HostPolicy) -> list[str]:
    if policy.run_path:
        return []
    paths = [("RPATH", p) for p in library.rpath] + [("RUNPATH", p) for p in library.runpath]
    return [f"It has {kind} {path!r}; a bundle's libraries have none." for kind, path in paths]


def _memory(library: SharedLibrary, policy: HostPolicy) -> list[str]:
    found = []
    if library.executable_stack and not policy.executable_stack:
        found.append("It asks for an executable stack, or says nothing about it; the stack must not be executable.")
    if library.text_relocations and not policy.text_relocations:
        found.append("It has text relocations, which make the loader write to its code; compile it with -fPIC.")
    if library.writable_code:
        found.append("It has a segment that is both writable and executable.")
    for start, end in library.unmarked_code[:_NAMED_AT_MOST]:
        found.append(f"It makes {start:#x} to {end:#x} executable, which no section of code describes.")
    return found


def _exports(library: SharedLibrary, expected: frozenset[str]) -> list[str]:
    seen = {symbol.name for symbol in library.exported}
    surplus = [f"It exports {name}, which is not among its {len(expected)} entry points." for name in seen - expected]
    missing = [f"It does not export {name}; it exports {_listed(seen)}." for name in expected - seen]
    return sorted(surplus) + sorted(missing)


def _versions(library: SharedLibrary, limit: tuple[int, int], allowed: frozenset[str]) -> list[str]:
    found = []
    for supplier, version in library.versions_needed:
        number = glibc_version(version)
        if number is not None and number > limit:
            found.append(
                f"It needs {version} of {supplier}{_because(library, version)}; the limit is {_dotted(limit)}."
            )
        elif number is None and version.startswith("GLIBC_"):
            found.append(f"It needs {version} of {supplier}{_because(library, version)}, which is no numbered release.")
        if supplier not in allowed:
            found.append(f"It needs {version} of {supplier}, which is not an allowed library.")
    return found


def _because(library: SharedLibrary, version: str) -> str:
    names = [symbol.name for symbol in library.undefined if symbol.version == version]
    return f" for {_listed(names)}" if names else ""


def _undefined(library: SharedLibrary, policy: HostPolicy, has_more_libraries: bool) -> list[str]:
    # A symbol without a version names no library. With further libraries allowed, one of them may supply it.
    if has_more_libraries:
        return []
    lost = [s for s in library.undefined if not _is_supplied(s, policy)]
    prefixes = ", ".join(f"{prefix}*" for prefix in policy.undefined_prefixes)
    return [f"It leaves {s.name} undefined and no library supplies it; allowed are {prefixes}." for s in lost]


def _is_supplied(symbol: UndefinedSymbol, policy: HostPolicy) -> bool:
    return symbol.weak or symbol.version is not None or symbol.name.startswith(policy.undefined_prefixes)


def _instructions(found: list[Violation], policy: HostPolicy) -> list[str]:
    more = len(found) - _NAMED_AT_MOST
    named = [f"It executes {violation}." for violation in found[:_NAMED_AT_MOST]]
    return named + ([f"It has {more} more instructions beyond {policy.baseline}."] if more > 0 else [])


def _listed(names: set[str] | list[str]) -> str:
    shown = sorted(names)[:5]
    more = len(names) - len(shown)
    return (", ".join(shown) or "nothing") + (f" and {more} more" if more else "")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
