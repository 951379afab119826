"""The site: its navigation has every page, its links lead to pages of it, and mkdocs builds it without a warning."""

from __future__ import annotations

import importlib.util
import posixpath
import re
import subprocess
import sys
from pathlib import Path

import pytest
from places import PROJECT

from tools import site_pages

INSTALL = PROJECT / "docs" / "guides" / "install.md"
DOCS = PROJECT / "docs"


def shown() -> set[str]:
    """Every page and file of the site, by its place."""
    inside = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    return inside | {site_pages.place(path) for path in site_pages.outside()}


def test_the_navigation_has_every_page() -> None:
    text = (PROJECT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"(\S+\.md)$", text, re.MULTILINE)
    project = {f"repository/{name}.md" for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY")}
    assert len(listed) == len(set(listed))
    assert set(listed) == {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} | project


def test_links_of_the_site_stay_inside_it() -> None:
    there = shown()
    texts = {page.relative_to(PROJECT).as_posix(): page.read_text() for page in DOCS.rglob("*.md")}
    rewritten = {site_pages.place(path): site_pages.rewritten(text, path) for path, text in texts.items()}
    rewritten |= {site_pages.place(path): text for path, text in site_pages.outside().items() if text is not None}
    for place, text in rewritten.items():
        for target in site_pages.targets(text, place):
            assert target in there, f"{place} links {target}, which the site does not have"


def test_a_file_of_the_repository_is_a_page_of_the_site() -> None:
    text = "[a](../../kernels/elementwise/add.py) [b](cpp.md#errors)\n```text\n[c](d.md)\n```\n[e](../../examples)\n"
    assert site_pages.rewritten(text, "docs/guides/torch.md") == (
        "[a](../repository/kernels/elementwise/add.py.md) [b](cpp.md#errors)\n"
        "```text\n[c](d.md)\n```\n[e](../repository/examples/README.md)\n"
    )
    page = site_pages.outside()["kernels/elementwise/add.py"]
    assert page is not None and "```python\n" in page and "def add(" in page


@pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="mkdocs-material is not installed: `.[docs]`")
def test_mkdocs_builds_the_site_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "guides" / "first-kernel.html").read_text()
    assert 'class="filename">examples/kernel_package/kernels/scale.py<' in text
    assert posixpath.join("search", "search_index.js") in {
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.js")
    }


def test_every_extra_is_listed() -> None:
    text = (PROJECT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    declared = set(re.findall(r"^([\w-]+) = \[", text, re.MULTILINE)) - {"s3-server"}
    rows = re.findall(r"^\| (`.*?) \|", INSTALL.read_text().partition("## Extras")[2], re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row)} == declared
