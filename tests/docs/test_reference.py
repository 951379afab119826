"""The pages name what there is: errors with their bases, arguments of a declaration, architectures, functions."""

from __future__ import annotations

import inspect
import json
import re

import aot_runtime
import pytest
from places import PROJECT

import aot
from aot.declare.declaration import kernel
from aot.targets import accepted_archs

REFERENCE = PROJECT / "docs" / "reference"


def test_every_error_is_listed_with_its_bases() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \|", (REFERENCE / "errors.md").read_text(), re.MULTILINE)
    listed = {name.removeprefix("aot."): set(re.findall(r"[\w.]+", bases.replace("aot.", ""))) for name, bases in rows}
    raised = {
        value.__name__: {base.__name__ for base in value.__bases__}
        for module in (aot_runtime, aot)
        for name in module.__all__
        if isinstance(value := getattr(module, name), type) and issubclass(value, aot_runtime.AotError)
    }
    raised.pop("AotError")
    assert {name: bases for name, bases in listed.items() if name in raised} == raised


def test_everything_that_a_declaration_can_say_is_described() -> None:
    text = (REFERENCE / "declaring.md").read_text()
    for name in inspect.signature(kernel).parameters:
        assert f"`{name}`" in text.partition("## Parameters")[0], f"{name} is not in the table of aot.kernel"
    for name in inspect.signature(aot.Spec).parameters:
        assert name in text.partition("## `aot.Spec`")[2], f"{name} of aot.Spec is not described"
    for kind in (
        "Tensor",
        "Dim",
        "Scalar",
        "Tuple",
        "Pointer",
        "Stream",
        "Constant",
        "Multiprocessors",
        "ActiveClusters",
    ):
        for name in inspect.signature(getattr(aot, kind)).parameters:
            assert re.search(rf"`{kind}\([^`]*", text) and name in text, f"{name} of {kind} is not described"


def test_the_table_of_what_runs_where_is_the_codes() -> None:
    text = (PROJECT / "docs" / "concepts" / "selection.md").read_text()
    rows = re.findall(r"^\| (`sm_.*?) \| (.*?) \|$", text, re.MULTILINE)
    listed = {
        arch: set(re.findall(r"\d+\.\d", where)) for archs, where in rows for arch in re.findall(r"sm_\w+", archs)
    }
    known = {arch.capability for arch in accepted_archs()}
    runs = {
        str(arch): {f"{major}.{minor}" for major, minor in known if arch.runs_on((major, minor))}
        for arch in accepted_archs()
    }
    assert listed == runs


def test_every_spelling_of_an_architecture_is_listed() -> None:
    text = (PROJECT / "docs" / "concepts" / "selection.md").read_text()
    listed = dict(re.findall(r"`(sm\d+)`\s+means\s+`(sm_\w+)`", text))
    spelled = json.loads((PROJECT / "aot" / "data" / "archs.json").read_text())["spellings"]
    assert listed == {short: exact for short, exact in spelled.items() if short not in ("sm86", "sm87", "sm89")}


ARCHITECTURE = (PROJECT / "docs" / "dev" / "architecture.md").read_text()


@pytest.mark.parametrize(
    ("function", "path"), re.findall(r"`(\w+)`\s+in\s+\[`([\w./]+)`\]", ARCHITECTURE), ids=lambda text: str(text)
)
def test_the_architecture_names_functions_where_they_are(function: str, path: str) -> None:
    text = (PROJECT / path).read_text()
    pattern = rf"^(?:    )?(?:def|class) {function}\b" if path.endswith(".py") else rf"^[\w* ]+\b{function}\("
    assert re.search(pattern, text, re.MULTILINE), f"{path} defines no {function}"


def test_the_picture_of_the_stages_shows_every_stage() -> None:
    layers = json.loads((PROJECT / "tests" / "layers.json").read_text())["packages"]
    picture = ARCHITECTURE.partition("## The stages")[2].partition("| step")[0]
    assert {name for name in layers if name} == set(re.findall(r"\b(\w+)/", picture)) - {"aot", "tests"}
