"""The site: its navigation has every page, its links lead to pages of it, and mkdocs builds it without a warning."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
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
    inside = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*") if path.is_file()}
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


def test_a_bar_in_code_of_a_table_is_shown_without_its_escape() -> None:
    table = "| a | b |\n| --- | --- |\n| `--cuda 12\\|13` | x \\| y |\n\n`not\\|here`\n"
    shown = site_pages.rewritten(table, "docs/README.md")
    assert "| `--cuda 12|13` | x \\| y |" in shown, "a bar outside of code would end the cell"
    assert "`not\\|here`" in shown


def test_plots_are_light_or_dark_as_the_page_is_and_not_as_the_system_is() -> None:
    page = '<p><img alt="Speed" src="../assets/gallery/gemm.svg" /> and <img src="assets/path.svg" /></p>'
    shown = site_pages.with_plots(page)
    assert "gemm.svg" not in shown and "assets/path.svg" in shown
    style = shown.partition("<style>")[2].partition("</style>")[0]
    selectors = [rule.partition("{")[0].strip() for rule in style.split("}") if rule.strip()]
    dark = [one for one in selectors if one.startswith('[data-md-color-scheme="slate"] .plot ')]
    assert dark and all(one.startswith(".plot ") for one in selectors if one not in dark)
    assert "@media" not in style


def test_a_file_of_the_repository_is_a_page_of_the_site() -> None:
    text = "[a](../../kernels/elementwise/add.py) [b](cpp.md#errors)\n```text\n[c](d.md)\n```\n[e](../../examples)\n"
    assert site_pages.rewritten(text, "docs/guides/torch.md") == (
        "[a](../repository/kernels/elementwise/add.py.md) [b](cpp.md#errors)\n"
        "```text\n[c](d.md)\n```\n[e](../repository/examples/README.md)\n"
    )
    page = site_pages.outside()["kernels/elementwise/add.py"]
    assert page is not None and "```python\n" in page and "def add(" in page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed: `.[docs]`")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_mkdocs_builds_the_site_without_a_warning(site: Path) -> None:
    text = (site / "guides" / "first-kernel.html").read_text()
    assert 'class="filename">examples/kernel_package/kernels/scale.py<' in text


def test_what_runs_the_search_from_a_folder_is_in_the_folder() -> None:
    (script,) = re.findall(
        r"^  polyfills: \[(\S+iframe-worker\.js)\]", (PROJECT / "mkdocs.yml").read_text(), re.MULTILINE
    )
    assert (DOCS / script).is_file()


def test_pages_fetch_nothing(site: Path) -> None:
    """Links may lead elsewhere. Scripts, styles, pictures and frames come from the folder."""
    fetched = re.compile(
        r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//|<link\b[^>]*\bhref=["']?(?:https?:)?//"""
    )
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    assert [page for page in pages if fetched.search(page.read_text())] == []


def test_the_search_leaves_sources_out(site: Path) -> None:
    places = {
        entry["location"].partition("#")[0]
        for entry in json.loads((site / "search" / "search_index.json").read_text())["docs"]
    }
    assert "guides/install.html" in places
    assert [place for place in places if re.search(r"\.(?:py|c|h|cpp|hpp|toml|yml)\.html$", place)] == []


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_the_search_works_from_a_folder(site: Path, tmp_path: Path) -> None:
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    page = f"{(site / 'index.html').as_uri()}?q=reproducible"
    command = [*browser, "--virtual-time-budget=20000", "--dump-dom", page]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.findall(r'href="([^"?]*)[^"]*" class="md-search-result__link"', shown)
    assert found and found[0].startswith(site.as_uri()) and "/repository/" not in found[0]


@pytest.mark.parametrize(
    ("uri", "rank"),
    [
        ("guides/install.md", {}),
        ("repository/examples/README.md", {"boost": 0.3}),
        ("repository/kernels/elementwise/add.py.md", {"exclude": True}),
    ],
)
def test_the_documentation_leads_the_search(uri: str, rank: dict[str, object]) -> None:
    assert site_pages.search_rank(uri) == rank


def test_every_extra_is_listed() -> None:
    text = (PROJECT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    declared = set(re.findall(r"^([\w-]+) = \[", text, re.MULTILINE)) - {"s3-server"}
    rows = re.findall(r"^\| (`.*?) \|", INSTALL.read_text().partition("## Extras")[2], re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row)} == declared
