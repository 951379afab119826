"""``requirements/build.txt`` pins what builds need, with hashes, and names no index."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from places import PROJECT

from aot.versions import extra_requirements

PINNED = (PROJECT / "requirements" / "build.txt").read_text()


def entries() -> Iterator[tuple[Requirement, list[str]]]:
    """Each pinned package, and the hashes of its files."""
    lines = "\n".join(line for line in PINNED.splitlines() if not line.startswith("#"))
    for entry in re.sub(r"\\\n", " ", lines).splitlines():
        requirement, *hashes = entry.split(" --hash=")
        yield Requirement(requirement), [text.strip() for text in hashes]


def wanted() -> list[Requirement]:
    own = re.findall(r"^[^#\s].*", (PROJECT / "requirements" / "build.in").read_text(), re.MULTILINE)
    return [Requirement(text) for text in (*extra_requirements("build"), *own)]


def test_every_package_has_one_version_and_hashes_of_its_files() -> None:
    for need, hashes in entries():
        assert [part.operator for part in need.specifier] == ["=="], need
        assert hashes and all(re.fullmatch(r"sha256:[0-9a-f]{64}", text) for text in hashes), need


@pytest.mark.parametrize("need", wanted(), ids=lambda need: need.name)
def test_what_builds_require_is_pinned_in_a_version_that_will_do(need: Requirement) -> None:
    pinned = [pin for pin, _ in entries() if canonicalize_name(pin.name) == canonicalize_name(need.name)]
    versions = [Version(part.version) for pin in pinned for part in pin.specifier]
    assert versions and all(need.specifier.contains(version) for version in versions)


def test_no_index_and_no_file_is_named() -> None:
    assert not re.search(r"://|^-|cute[-_]aot", PINNED, re.MULTILINE)
