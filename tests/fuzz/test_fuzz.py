"""A short seeded run of the fuzzers finds nothing; planted defects are found."""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

import fuzz.command
import fuzz.engine
import fuzz.forks
from fuzz import binaries, bundles, descriptions, dispatch, entries, flips, overlap, races, worlds
from fuzz.command import corpus_and_folder, run_all
from fuzz.corpus import Corpus, make_corpus, make_kinds, read_corpus
from fuzz.engine import Target, Undetected, run_target
from fuzz.forks import forks
from fuzz.mutate import changed_bytes, changed_json, flipped
from fuzz.sanitized import SanitizerMissing

SEED = 2026
# What takes long; others have 400
CASES = {
    "libraries": 60,
    "launchers": 60,
    "bundles": 40,
    "kept books": 40,
    "stored entries": 200,
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus")
    make_corpus(folder, cache)
    make_kinds(folder / "kinds", cache)
    return read_corpus(folder)


def test_the_corpus_has_bundles_of_every_kind(corpus: Corpus) -> None:
    assert {kind.path.name for kind in corpus.kinds} == {"captured", "signed", "split", "tuned"}
    assert [kind.path.name for kind in corpus.kinds if kind.key] == ["signed"]


@pytest.mark.parametrize("module", [binaries, entries, descriptions, bundles], ids=lambda module: module.__name__)
def test_a_short_run_finds_nothing(module: object, corpus: Corpus, tmp_path: Path) -> None:
    for target in module.make(corpus, tmp_path):  # type: ignore[attr-defined]
        outcome = run_target(target, SEED, range(CASES.get(target.name, 400)))
        assert outcome.findings == [], target.name
        assert outcome.seen["refused"] > 0, target.name


def test_bits_that_are_flipped_one_by_one_are_all_noticed(corpus: Corpus, tmp_path: Path) -> None:
    for name in flips.FILES:
        outcome = flips.flip_all(corpus.bundle, tmp_path, name, every=307)
        assert outcome.findings == [], name
        assert outcome.seen[flips.NOTICED] + outcome.seen[flips.WHEN_READ] == sum(outcome.seen.values()) > 10, name
        if name in ("manifest.json", "kernels.json"):
            assert outcome.seen[flips.NOTICED] > outcome.seen[flips.WHEN_READ], name


@pytest.mark.parametrize("kind", ["entry", "kernel"])
def test_a_library_that_is_replaced_at_random_moments_never_runs(corpus: Corpus, tmp_path: Path, kind: str) -> None:
    outcome = races.Races(corpus, tmp_path).run("Python", kind, 10)
    assert outcome["found"] == 0
    assert outcome["accepted"] + outcome["refused"] == 10
    assert outcome["renames"] > 10


def test_children_forked_during_first_calls_end_well(cpp_bundle: Path, standin_directory: Path, tmp_path: Path) -> None:
    outcome = forks(cpp_bundle, standin_directory, tmp_path, 30)
    assert outcome["findings"] == []
    assert outcome["cases"] == 30


def test_forks_go_on_from_what_an_earlier_run_has_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    firsts = []

    def played(*arguments: object) -> dict[str, object]:
        firsts.append(arguments[-1])
        return {"cases": arguments[3], "found": 0, "findings": []}

    monkeypatch.setattr(fuzz.forks, "forks", played)
    out = tmp_path / "forks.json"
    for count, resume in ((2000, False), (3000, True)):
        options = argparse.Namespace(forks=count, jobs=1, seconds=1e9, resume=resume, out=out)
        run_all("forks", fuzz.forks.in_parts(tmp_path, tmp_path, tmp_path, options), out)
        assert json.loads(out.read_text())["results"]["cases"] == count
    assert firsts == [0, 1200, 2000]


def test_a_corpus_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fuzz.command, "make_corpus", cut)
    with pytest.raises(KeyboardInterrupt), corpus_and_folder(tmp_path / "corpus"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_overlap_check_agrees_with_brute_force(tmp_path: Path) -> None:
    outcome = overlap.run(overlap.compile_program(tmp_path), SEED, 50_000)
    assert outcome.findings == []
    assert outcome.seen["overlapping"] > 10_000
    assert outcome.seen["apart or absurd"] > 10_000


def test_an_overlap_check_that_misses_some_is_found(tmp_path: Path) -> None:
    check = tmp_path / "check.c"
    check.write_text(
        '#include "aot_overlap.h"\n'
        "int64_t aot_overlap(const aot_region_t* regions, uint32_t count, const aot_arguments_t* arguments) {\n"
        "  (void)regions; (void)count; (void)arguments; return 0;\n}\n"
    )
    outcome = overlap.run(overlap.compile_program(tmp_path, check), SEED, 1000)
    assert outcome.seen["found"] > 100
    assert "an overlap was missed" in outcome.findings[0].message


PLANTED = "".join(
    '__attribute__((visibility("default"))) int __tvm_ffi_NAME(void* self, const TVMFFIAny* args, int32_t count, '
    "TVMFFIAny* result) { (void)self; (void)args; (void)result; return ANSWER; }\n".replace("NAME", name).replace(
        "ANSWER", answer
    )
    for name, answer in {
        "silent": "-(count >= 0)",
        "beyond": "args[count].type_index == 12345 ? -2 : 0",
        "undefined": "1 << (32 + count) == 7 ? -2 : 0",
    }.items()
)


@pytest.fixture(scope="module")
def dispatch_program(
    cpp_bundle: Path, standin_directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> dispatch.Program:
    try:
        return dispatch.compile_program(cpp_bundle, standin_directory, tmp_path_factory.mktemp("dispatch"), PLANTED)
    except SanitizerMissing as error:
        pytest.skip(f"the sanitizers do not work here: {error}")


def test_dispatch_answers_every_call_under_the_sanitizers(dispatch_program: dispatch.Program) -> None:
    outcome = dispatch.run(dispatch_program, SEED, 50_000, leaks=False)
    assert outcome.findings == []
    assert min(outcome.seen["accepted"], outcome.seen["refused"]) > 100


@pytest.fixture(scope="module")
def worlds_program(standin_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        # Half the CPU time of -O1
        return worlds.compile_program(tmp_path_factory.mktemp("worlds"), standin_directory, "-O0")
    except SanitizerMissing as error:
        pytest.skip(f"the sanitizers do not work here: {error}")


def test_dispatch_agrees_with_its_model(worlds_program: Path) -> None:
    outcome = worlds.run(worlds_program, SEED, 10_000, leaks=False)
    assert outcome.findings == []
    assert min(outcome.seen["accepted"], outcome.seen["refused"]) > 1000


@pytest.mark.parametrize(
    ("function", "kind", "said"),
    [
        ("silent", "wrong answer", "silent: the call failed without an error"),
        ("beyond", "sanitizer", "heap-buffer-overflow"),
        ("undefined", "sanitizer", "shift exponent"),
    ],
)
def test_a_call_that_goes_wrong_is_found(
    dispatch_program: dispatch.Program, function: str, kind: str, said: str
) -> None:
    outcome = dispatch.run(replace(dispatch_program, functions=(function,)), SEED, 100, leaks=False)
    assert outcome.findings[0].kind == kind
    assert said in outcome.findings[0].message + outcome.findings[0].trace


# Planted defects.


def outcome_of(case: object, cases: int = 3) -> fuzz.engine.Outcome:
    return run_target(Target("planted", 1, case), SEED, range(cases))  # type: ignore[arg-type]


def test_an_exception_that_is_not_ours_is_a_finding_that_can_be_repeated() -> None:
    def case(rng: random.Random) -> str:
        raise KeyError(rng.random())

    first, again = outcome_of(case), outcome_of(case)
    assert [finding.kind for finding in first.findings] == ["KeyError"] * 3
    assert first.findings == again.findings
    assert len({finding.message for finding in first.findings}) == 3


def test_a_case_without_an_end_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz.engine, "CPU_SECONDS", 0.05)

    def case(rng: random.Random) -> str:
        while True:
            pass

    assert [finding.kind for finding in outcome_of(case, 1).findings] == ["Hang"]


def test_a_flip_that_passes_is_a_finding(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that checks nothing."""
    damaged = next(target for target in entries.make(corpus, tmp_path) if target.name == "damaged entries")
    monkeypatch.setattr(entries, "checked", lambda kind, key, content: content)
    assert {finding.kind for finding in run_target(damaged, SEED, range(5)).findings} == {"Undetected"}


def test_a_flip_that_verify_does_not_name_is_a_finding(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flips, "verify", lambda bundle: [])
    outcome = flips.flip_all(corpus.bundle, tmp_path, "kernels.json", every=999)
    assert {finding.kind for finding in outcome.findings} == {"Undetected"}
    assert outcome.seen["found"] == 4


CARELESS = """
import ctypes, pathlib, sys
print("ready", flush=True)
for line in sys.stdin:
    for path in pathlib.Path(line.split()[1]).glob("lib/*/libsmall.so"):
        try:
            ctypes.CDLL(str(path))
        except OSError:
            pass
    print("accepted", flush=True)
"""


def test_a_library_that_ran_though_it_was_not_hashed_is_a_finding(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loader that opens whatever lies there."""
    monkeypatch.setattr(races, "_PYTHON", CARELESS)
    outcome = races.Races(corpus, tmp_path).run("Python", "entry", 10)
    assert outcome["found"] > 0
    assert [finding["kind"] for finding in outcome["findings"]] == ["Race"]


def test_a_name_that_is_a_path_is_a_finding() -> None:
    from aot.cache.links import PackedLibrary

    with pytest.raises(Undetected):
        entries._check_names(PackedLibrary(b"", (("../x", b""),)))


def test_mutations_are_repeated_by_their_seed_and_change_something() -> None:
    data = bytes(range(256))
    for change in (flipped, changed_bytes):
        seen = {change(data, random.Random(number)) for number in range(50)}
        assert len(seen) > 40
        assert change(data, random.Random(1)) == change(data, random.Random(1))
    document = b'{"a": [1, {"b": "text"}], "c": null}'
    assert len({changed_json(document, random.Random(number)) for number in range(100)}) > 50
