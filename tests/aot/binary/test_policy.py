"""A host's policy is data that makes sense, and every breach is a sentence with the value seen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from places import PROJECT

from aot.binary.elf import CodeSection, Function, SharedLibrary, Symbol, UndefinedSymbol
from aot.binary.policy import HostPolicy, PolicyError, load_policies, load_policy, violations

HOSTS = ("x86_64-linux-gnu", "aarch64-linux-gnu")
DATA = PROJECT / "aot" / "data" / "hosts.json"
RETURN = {"x86_64": b"\xc3", "aarch64": bytes.fromhex("c0035fd6")}
SHA = {"x86_64": bytes.fromhex("0f38cbc1"), "aarch64": bytes.fromhex("2040025e")}  # sha256rnds2, sha256h
SHA_NAME = {"x86_64": "aot_sha256_blocks_x86_sha", "aarch64": "aot_sha256_blocks_arm_sha2"}


def good(machine: str) -> SharedLibrary:
    return SharedLibrary(
        path="lib.so",
        machine=machine,
        soname=None,
        needed=("libc.so.6",),
        rpath=(),
        runpath=(),
        executable_stack=False,
        text_relocations=False,
        dynamic=("FLAGS_1.NOW", "NEEDED", "SONAME"),
        writable_code=False,
        unmarked_code=(),
        exported=(Symbol("entry", "func", 1),),
        undefined=(
            UndefinedSymbol("strlen", "GLIBC_2.17", "libc.so.6"),
            UndefinedSymbol("TVMFFIErrorSetRaised"),
            UndefinedSymbol("__gmon_start__", weak=True),
        ),
        versions_needed=(("libc.so.6", "GLIBC_2.17"),),
        functions=(Function("entry", 0x1000, 4),),
        code=(CodeSection(".text", 0x1000, RETURN[machine]),),
        local_objects=(),
        stripped=False,
    )


def breaches(library: SharedLibrary, **options: Any) -> list[str]:
    policy = load_policy(f"{library.machine}-linux-gnu")
    return violations(library, policy, **{"exports": frozenset({"entry"}), "glibc": policy.glibc_default, **options})


@pytest.fixture(params=["x86_64", "aarch64"])
def library(request: pytest.FixtureRequest) -> SharedLibrary:
    return good(request.param)


@pytest.fixture
def facts() -> dict[str, Any]:
    entry: dict[str, Any] = json.loads(DATA.read_text())["x86_64-linux-gnu"]
    return entry


def test_both_hosts_have_a_policy_with_floors_of_2_28_and_2_17() -> None:
    policies = load_policies()
    assert sorted(policies) == sorted(HOSTS)
    for policy in policies.values():
        assert (policy.glibc_default, policy.glibc_lowest) == ((2, 28), (2, 17))
        assert not (policy.run_path or policy.executable_stack or policy.text_relocations)


def test_a_good_library_breaks_nothing(library: SharedLibrary) -> None:
    assert breaches(library) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"needed": ("libc.so.6", "libstdc++.so.6")}, "It needs libstdc++.so.6; allowed are"),
        ({"runpath": ("$ORIGIN",)}, "It has RUNPATH '$ORIGIN'; a bundle's libraries have none."),
        ({"rpath": ("/opt",)}, "It has RPATH '/opt'; a bundle's libraries have none."),
        ({"executable_stack": True}, "It asks for an executable stack"),
        ({"text_relocations": True}, "It has text relocations"),
        *(
            ({"dynamic": ("NEEDED", tag)}, f"Its dynamic segment holds {tag}, which no library of a bundle needs.")
            for tag in ("AUXILIARY", "FILTER", "AUDIT", "DEPAUDIT", "PREINIT_ARRAY", "FLAGS_1.INTERPOSE", "0x6000000d")
        ),
        ({"writable_code": True}, "It has a segment that is both writable and executable."),
        (
            {"unmarked_code": ((4096, 8192),)},
            "It makes 0x1000 to 0x2000 executable, which no section of code describes.",
        ),
        ({"exported": ()}, "It does not export entry; it exports nothing."),
        (
            {"versions_needed": (("libc.so.6", "GLIBC_2.34"),)},
            "It needs GLIBC_2.34 of libc.so.6; the limit is 2.28.",
        ),
        (
            {"versions_needed": (("libc.so.6", "GLIBC_PRIVATE"),)},
            "It needs GLIBC_PRIVATE of libc.so.6, which is no",
        ),
        (
            {"versions_needed": (("libgcc_s.so.1", "GCC_3.0"),)},
            "It needs GCC_3.0 of libgcc_s.so.1, which is not an",
        ),
        (
            {"undefined": (UndefinedSymbol("cudaMalloc"),)},
            "It leaves cudaMalloc undefined and no library supplies it",
        ),
    ],
)
def test_each_breach_is_one_sentence(change: dict[str, Any], sentence: str, library: SharedLibrary) -> None:
    (seen,) = breaches(replace(library, **change))
    assert seen.startswith(sentence)
    assert seen.endswith(".")


def test_a_surplus_export_is_named(library: SharedLibrary) -> None:
    more = replace(library, exported=(*library.exported, Symbol("cudaMalloc", "func", 4)))
    assert breaches(more) == ["It exports cudaMalloc, which is not among its 1 entry points."]


def test_the_symbols_that_need_a_newer_glibc_are_named(library: SharedLibrary) -> None:
    newer = UndefinedSymbol("pthread_create", "GLIBC_2.34", "libc.so.6")
    changed = replace(library, undefined=(newer,), versions_needed=(("libc.so.6", "GLIBC_2.34"),))
    assert breaches(changed) == ["It needs GLIBC_2.34 of libc.so.6 for pthread_create; the limit is 2.28."]
    assert breaches(changed, glibc=(2, 34)) == []


def test_versions_of_three_parts_compare_by_number(library: SharedLibrary) -> None:
    assert breaches(replace(library, versions_needed=(("libc.so.6", "GLIBC_2.2.5"),)), glibc=(2, 17)) == []


def test_the_shared_cuda_runtime_is_allowed_when_asked_for(library: SharedLibrary) -> None:
    shared = replace(
        library, needed=("libcudart.so.12", "libc.so.6"), undefined=(UndefinedSymbol("cudaLaunchKernelExC"),)
    )
    assert len(breaches(shared)) == 2
    assert breaches(shared, extra_needed=frozenset({"libcudart.so.12"})) == []


def test_a_symbol_that_nobody_supplies_is_named(library: SharedLibrary) -> None:
    (seen,) = breaches(replace(library, undefined=(UndefinedSymbol("other"),)))
    assert "other" in seen


def test_a_library_for_another_host_says_so_and_nothing_else() -> None:
    policy = load_policy("aarch64-linux-gnu")
    seen = violations(good("x86_64"), policy, exports=frozenset(), glibc=(2, 28))
    assert seen == ["It is for x86_64; host aarch64-linux-gnu runs aarch64."]


def test_instructions_beyond_the_baseline_are_breaches_unless_guarded(library: SharedLibrary) -> None:
    code = (CodeSection(".text", 0x1000, SHA[library.machine]),)
    (seen,) = breaches(replace(library, code=code))
    assert seen.startswith("It executes `sha256")
    assert "in entry" in seen
    guarded = replace(library, code=code, functions=(Function(SHA_NAME[library.machine], 0x1000, 4),))
    assert breaches(guarded) == []


def test_many_instructions_are_counted_not_listed(library: SharedLibrary) -> None:
    code = (CodeSection(".text", 0x1000, SHA[library.machine] * 100),)
    seen = breaches(replace(library, code=code, functions=(Function("entry", 0x1000, 400),)))
    assert len(seen) == 9
    assert seen[-1].startswith("It has 92 more instructions beyond")


def test_a_glibc_below_the_lowest_is_the_callers_mistake(library: SharedLibrary) -> None:
    with pytest.raises(PolicyError, match=r"glibc 2\.12 is below 2\.17"):
        breaches(library, glibc=(2, 12))


def test_an_unknown_host_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PolicyError, match=r"riscv64.*x86_64-linux-gnu"):
        load_policy("riscv64-linux-gnu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"baseline": "x86-64-v3"}, "cannot be checked"),
        ({"machine": "aarch64", "baseline": "ARMv8.0-A"}, "is not this host's"),
        ({"glibc_lowest": "2.31"}, "is above 2.28"),
        ({"glibc_default": "new"}, "not a glibc version"),
        ({"needed": []}, "needed libraries"),
        ({"needed": ["libc.so.6", "../libc.so.6"]}, "needed libraries"),
        ({"dynamic": []}, "dynamic tags"),
        ({"dynamic": ["*"]}, "dynamic tags"),
        ({"undefined_prefixes": [""]}, "every undefined symbol"),
        ({"run_path": "no"}, "of another type"),
        ({"colour": "red"}, "unknown"),
        ({"guarded": {"*": {"extensions": ["avx"], "reason": "all of it"}}}, "before its first wildcard"),
        ({"guarded": {"long_enough_name": {"extensions": [], "reason": "none"}}}, "lacks its extensions"),
        ({"guarded": {"long_enough_name": "why not"}}, "is guarded by"),
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(
    change: dict[str, Any], message: str, facts: dict[str, Any]
) -> None:
    with pytest.raises(PolicyError, match=message):
        HostPolicy.parse("x86_64-linux-gnu", {**facts, **change})


def test_a_missing_entry_is_refused(facts: dict[str, Any]) -> None:
    del facts["needed"]
    with pytest.raises(PolicyError, match="missing"):
        HostPolicy.parse("x86_64-linux-gnu", facts)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"x86_64-linux-gnu": 3}'])
def test_unreadable_data_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts.json"
    path.write_text(text)
    with pytest.raises(PolicyError, match=r"hosts\.json"):
        load_policies(path)
