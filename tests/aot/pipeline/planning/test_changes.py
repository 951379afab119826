"""What a build may do to the bundle at its destination is decided from manifests and plans, before anything is compiled."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from aot_runtime.arch import Arch
from aot_runtime.description.kernel_records import KernelRecord
from aot_runtime.description.records import HostRecord

from aot.bundle.manifest import Manifest
from aot.bundle.publish import Destination
from aot.compile.messages import EXERCISE, KernelInfo, Options
from aot.errors import Failure, UsageError
from aot.hosts import Host
from aot.pipeline.plan import KernelPlan, Plan
from aot.pipeline.planning.changes import check_replaceable, hosts_with_kept, kept_pairs, made_changes
from aot.pipeline.settings import Changes, Settings
from aot.pipeline.sources import toolchain

SM80, SM90, SM100 = (Arch.parse(text) for text in ("sm_80", "sm_90a", "sm_100f"))
OUT = Path("dist/b")


def bundle(captured: bool = False, **kernels: tuple[Arch, ...]) -> Manifest:
    host = Host.native().name
    call = {"callable": "f", "sources": {}} if captured else None
    records = {name: KernelRecord(name, "", (), (), (name,), archs, 1, None, call) for name, archs in kernels.items()}
    built = {name: {"archs": [*map(str, archs)], "files": {}, "modules": {}} for name, archs in kernels.items()}
    return Manifest(
        "b", True, records, {host: HostRecord("e", "s", "2.28", "static")}, toolchain=toolchain(12),
        provenance=({"source": {"files": {}}, "options": {}, "versions": {}, "built": built},),
    )  # fmt: skip


def at(manifest: Manifest | None) -> Destination:
    return Destination(OUT, manifest)


def plan(*pairs: tuple[str, Arch], declared: dict[str, tuple[Arch, ...]] | None = None) -> Plan:
    kernels = [
        KernelPlan(KernelInfo(name, "", f"{name}.py:1", (), (), (name,), (arch,), {}), arch, (), ())
        for name, arch in pairs
    ]
    return Plan(12, tuple(kernels), declared or {name: (SM80, SM90, SM100) for name, _ in pairs})


def settings(**changes: Any) -> Settings:
    return replace(Settings("kernels", ("sm_80",)), **changes)


def test_a_build_of_all_that_is_there_keeps_nothing_and_so_does_one_over_nothing() -> None:
    there, asked = bundle(add=(SM80, SM90)), plan(("add", SM80), ("add", SM90))
    assert kept_pairs(at(there), asked, (), settings()) == kept_pairs(at(None), asked, (), settings()) == frozenset()
    assert kept_pairs(at(there), plan(("mul", SM80)), (), settings(replace=True)) == frozenset()


def test_what_the_source_does_not_declare_any_more_may_go() -> None:
    there = bundle(add=(SM80, SM90), mul=(SM80,))
    kept_pairs(at(there), plan(("add", SM80), ("add", SM90)), (), settings())  # mul is gone
    kept_pairs(at(there), plan(("add", SM80), declared={"add": (SM80,)}), (), settings())  # and add for sm_90a
    asked = plan(("add", SM80), ("add", SM90), declared={"add": (SM80, SM90), "mul": (SM80,)})
    with pytest.raises(UsageError, match="mul for sm_80"):
        kept_pairs(at(there), asked, (), settings())


def test_what_was_asked_for_and_failed_is_not_left_out() -> None:
    there, failure = bundle(add=(SM80, SM90)), Failure("", "wrong", "", "add", "sm_90a")
    kept_pairs(at(there), plan(("add", SM80)), [failure], settings())
    assert kept_pairs(at(there), plan(("add", SM80)), [failure], settings(add=True)) == frozenset()


def test_add_keeps_what_is_neither_asked_for_nor_out_of_date() -> None:
    there = bundle(add=(SM80, SM90), mul=(SM80,))
    asked = plan(("add", SM80), declared={"add": (SM80, SM90), "mul": (SM80,)})
    assert kept_pairs(at(there), asked, (), settings(add=True)) == {("add", SM90), ("mul", SM80)}
    other = there.replace(toolchain={**there.toolchain, "ziglang": "0.1"})
    with pytest.raises(UsageError, match=r"built with ziglang 0\.1"):
        kept_pairs(at(other), asked, (), settings(add=True))
    foreign = Host("x86_64" if Host.native().cpu == "aarch64" else "aarch64", (2, 28))
    with pytest.raises(UsageError, match=f"it has no code for {foreign.name}") as caught:
        kept_pairs(at(there), asked, (), settings(add=True, hosts=(foreign,)))
    assert "--host aarch64,x86_64" in str(caught.value.hint)


def test_an_exercise_is_asked_for_whole_architectures() -> None:
    there = bundle(captured=True, call_1=(SM80,), call_2=(SM90,))
    captured = settings(options=Options(source=EXERCISE))
    with pytest.raises(UsageError, match="call_2 for sm_90a") as caught:
        kept_pairs(at(there), Plan(0, ()), (), captured)
    assert "`--update`" in str(caught.value.hint)
    assert kept_pairs(at(there), Plan(0, ()), (), replace(captured, add=True)) == {("call_2", SM90)}
    kept_pairs(at(there), Plan(0, ()), (), replace(captured, archs=("sm_80,sm_90a",)))  # call_1 may be gone by now


def test_captured_and_declared_kernels_do_not_replace_each_other() -> None:
    asked = plan(("add", SM80))
    for add in (False, True):
        with pytest.raises(UsageError, match="a bundle of captured kernels"):
            kept_pairs(at(bundle(captured=True, add=(SM80,))), asked, (), settings(add=add))
        with pytest.raises(UsageError, match="a bundle of declared kernels"):
            kept_pairs(at(bundle(add=(SM80,))), asked, (), settings(add=add, options=Options(source=EXERCISE)))


def joined(*bundles: Manifest) -> Manifest:
    """What ``merge`` makes of bundles."""
    kernels = {name: kernel for one in bundles for name, kernel in one.kernels.items()}
    return bundles[0].replace(kernels=kernels, provenance=[record for one in bundles for record in one.provenance])


def from_source(manifest: Manifest, name: str, *files: str) -> Manifest:
    """A bundle that was built from a source with these files, all of one content."""
    digests = {file: sha256(b"x").hexdigest() for file in files}
    built = {kernel: {**one, "files": digests} for kernel, one in manifest.provenance[0]["built"].items()}
    record = {**manifest.provenance[0], "source": {"name": name, "files": digests}, "built": built}
    return manifest.replace(provenance=[record])


def test_what_another_source_put_into_a_joined_bundle_does_not_go_unnamed(tmp_path: Path) -> None:
    there = joined(from_source(bundle(add=(SM80,)), "mine", "add.py"), from_source(bundle(mul=(SM80,)), "b", "mul.py"))
    (tmp_path / "add.py").write_text("y")
    mine = settings(kernels=str(tmp_path))
    for add in (False, True):
        with pytest.raises(UsageError, match=r"another source than `.*`: mul\n"):
            kept_pairs(at(there), plan(("add", SM80)), (), replace(mine, add=add))
    kept_pairs(at(there), plan(("add", SM80)), (), replace(mine, replace=True))


def test_a_kernel_that_an_earlier_state_of_the_source_declared_may_go(tmp_path: Path) -> None:
    (tmp_path / "add.py").write_text("x")  # as it was when `mul` was built: only the file of `mul` was removed
    before = from_source(bundle(mul=(SM80,)), "mine", "mul.py", "add.py")
    there = joined(from_source(bundle(add=(SM80,)), "mine", "add.py"), before)
    kept_pairs(at(there), plan(("add", SM80)), (), settings(kernels=str(tmp_path)))


def test_an_exercise_does_not_replace_what_another_one_or_a_declaration_made(tmp_path: Path) -> None:
    captured = settings(kernels=str(tmp_path / "mine.py"), options=Options(source=EXERCISE))
    (tmp_path / "mine.py").touch()
    mine = from_source(bundle(captured=True, call_1=(SM80,)), "mine.py", "mine.py")
    kept_pairs(at(mine), Plan(0, ()), (), captured)
    with pytest.raises(UsageError, match=r"another source than `.*`: call_1\n"):
        kept_pairs(at(from_source(mine, "yours.py", "yours.py")), Plan(0, ()), (), captured)
    for add in (False, True):
        with pytest.raises(UsageError, match="a bundle of declared and captured kernels"):
            kept_pairs(at(joined(mine, bundle(add=(SM80,)))), Plan(0, ()), (), replace(captured, add=add))


def test_nothing_can_be_added_to_a_bundle_that_cannot_be_read() -> None:
    check_replaceable(Destination(OUT), settings(add=True))  # there is none
    check_replaceable(Destination(OUT, is_damaged=True), settings())
    with pytest.raises(UsageError, match="is damaged") as caught:
        check_replaceable(Destination(OUT, is_damaged=True), settings(add=True))
    assert "`--replace`" in str(caught.value.hint)


def test_what_was_dropped_is_named_with_its_architectures() -> None:
    before = bundle(add=(SM80, SM90), mul=(SM80, SM90), sub=(SM80,))

    def dropped(after: Manifest) -> tuple[str, ...]:
        return made_changes(before, after).dropped

    assert dropped(before) == ()
    assert dropped(bundle(add=(SM80, SM90), sub=(SM80,))) == ("mul for sm_80, sm_90a",)
    assert dropped(bundle(add=(SM80,), mul=(SM80,), sub=(SM80,))) == ("every kernel for sm_90a",)
    assert dropped(before.replace(hosts={})) == (f"host {Host.native().name}",)


def test_variants_that_were_neither_compiled_nor_in_the_cache_were_kept() -> None:
    after = bundle(add=(SM80,), mul=(SM80,), sub=(SM80,))  # a variant each
    assert made_changes(None, after, compiled=1, cached=1) == Changes(compiled=1, cached=1, kept=1)
    assert made_changes(after, after) == Changes(kept=3)


def test_a_bundle_that_is_added_to_keeps_its_hosts_with_their_glibc() -> None:
    foreign = "aarch64-linux-gnu" if Host.native().cpu == "x86_64" else "x86_64-linux-gnu"
    there = bundle(add=(SM80,)).replace(hosts={foreign: HostRecord("e", "s", "2.31", "static")})
    assert hosts_with_kept(at(there), settings()) == (Host.native(),)
    assert hosts_with_kept(at(None), settings(add=True)) == (Host.native(),)
    kept = hosts_with_kept(at(there), settings(add=True))
    assert [(host.name, host.glibc_text) for host in kept[1:]] == [(foreign, "2.31")]
