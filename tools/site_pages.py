"""A hook of mkdocs: what the documentation links outside ``docs/`` becomes part of the site.

The pages link files of the repository, such as ``../../kernels/elementwise/add.py``. The site has no repository beside
it, so each such file becomes a page below ``repository/``: Markdown as it is, sources as code, folders as their README
or as a list. Data and pictures are copied.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]

_COPIED = (".json", ".svg", ".png")
_TEXTS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_LANGUAGES = {".py": "python", ".c": "c", ".h": "c", ".cpp": "cpp", ".hpp": "cpp", ".sh": "bash", ".toml": "toml"}
_FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")
_PIPE = re.compile(r"`[^`\n]*\\\|[^`\n]*`")
_EXCERPT = re.compile(r"^<!-- (\S+) -->\n( *```\w+)$", re.MULTILINE)


def place(path: str) -> str:
    """Where a file or folder of the repository is in the site."""
    if path == "docs" or path.startswith("docs/"):
        return posixpath.relpath(path, "docs") if (PROJECT / path).is_file() else "README.md"
    if (PROJECT / path / "README.md").is_file():
        return f"repository/{path}/README.md"
    if (PROJECT / path).is_dir():
        return f"repository/{path}/README.md"
    return f"repository/{path}" if path.endswith((".md", *_COPIED)) else f"repository/{path}.md"


def targets(text: str, path: str) -> Iterator[str]:
    """What of the repository a page links, by path."""
    for match in _LINK.finditer(_FENCED.sub("", text)):
        yield posixpath.normpath(posixpath.join(posixpath.dirname(path), match[1]))


def rewritten(text: str, path: str) -> str:
    """The page with its links as the site has them, and with the file that a block was taken from above the block."""
    folder = posixpath.dirname(place(path))

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[1]))
        return f"]({posixpath.relpath(place(target), folder or '.')}{match[2] or ''})"

    parts, end = [], 0
    for fence in _FENCED.finditer(text):
        parts += [_LINK.sub(link, text[end : fence.start()]), fence[0]]
        end = fence.end()
    # In code inside a table, the repository's pages escape a bar that ends no cell. The site would show the escape.
    plain = "".join([*parts, _LINK.sub(link, text[end:])])
    plain = "\n".join(_without_escapes(line) if line.startswith("|") else line for line in plain.split("\n"))
    return _EXCERPT.sub(r'\2 title="\1"', plain)


def _without_escapes(row: str) -> str:
    return _PIPE.sub(lambda code: code[0].replace("\\|", "|"), row)


def source(path: str) -> str:
    """A file or folder of the repository that is not Markdown, as a page."""
    full = PROJECT / path
    if full.is_dir():
        names = sorted(entry.name for entry in full.iterdir() if not entry.name.startswith(("__pycache__", ".")))
        return f"# `{path}/`\n\n" + "".join(f"* `{name}`\n" for name in names)
    text = full.read_text()
    fence = "`" * (3 + max((len(run) for run in re.findall("`{3,}", text)), default=0))
    language = "cmake" if full.name == "CMakeLists.txt" else _LANGUAGES.get(PurePosixPath(path).suffix, "text")
    return f"# `{path}`\n\n{fence}{language}\n{text}\n{fence}\n"


def outside() -> dict[str, str | None]:
    """What the site shows of the repository beside ``docs/``: the text of each page, ``None`` for what is copied."""
    pending = [page.relative_to(PROJECT).as_posix() for page in (PROJECT / "docs").rglob("*.md")]
    pending += ["CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
    found: dict[str, str | None] = {}
    while pending:
        path = pending.pop()
        if path in found:
            continue
        page = f"{path}/README.md" if (PROJECT / path / "README.md").is_file() else path
        if page.endswith(".md"):
            text = (PROJECT / page).read_text()
            found[page] = found[path] = rewritten(text, page)
            pending += targets(text, page)
        else:
            found[path] = None if path.endswith(_COPIED) else source(path)
    return {path: text for path, text in found.items() if not path.startswith("docs")}


_PLOT = re.compile(r'<img [^>]*src="[^"]*(assets/gallery/\w+\.svg)"[^>]*>')
_STYLE = re.compile(r"<style>(.*?)@media \(prefers-color-scheme: dark\) \{(.*)\}\s*</style>", re.DOTALL)
_RULE = re.compile(r"([^{}]+)(\{[^{}]*\})")


def with_plots(html: str) -> str:
    """A page with its plots as parts of it, and no pictures: so they are light or dark as the page's switch says.

    A picture asks the system instead, in all but the newest browsers.
    """
    return _PLOT.sub(lambda match: _inlined((PROJECT / "docs" / match[1]).read_text()), html)


def _inlined(plot: str) -> str:
    def style(match: re.Match[str]) -> str:
        light, dark = _scoped(match[1], ".plot"), _scoped(match[2], '[data-md-color-scheme="slate"] .plot')
        return f"<style>{light} {dark}</style>"

    return _STYLE.sub(style, plot).replace("<svg ", '<svg class="plot" style="max-width: 100%; height: auto" ', 1)


def _scoped(rules: str, scope: str) -> str:
    return " ".join(f"{scope} {selector.strip()} {body}" for selector, body in _RULE.findall(rules))


# What mkdocs calls.


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File  # here, so that tests read this file without mkdocs

    for path, text in outside().items():
        if files.get_file_from_path(place(path)) is None:
            content = {"abs_src_path": str(PROJECT / path)} if text is None else {"content": text}
            files.append(File.generated(config, place(path), **content))
    return files


def search_rank(uri: str) -> dict[str, Any]:
    """How the search ranks a page: the documentation first, then other pages of the repository. It leaves sources out."""
    if not uri.startswith("repository/"):
        return {}
    return {"boost": 0.3} if uri.endswith(_TEXTS) else {"exclude": True}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    uri = page.file.src_uri
    page.meta.setdefault("search", search_rank(uri))
    return markdown if uri.startswith("repository/") else rewritten(markdown, f"docs/{uri}")


def on_page_content(html: str, **_: Any) -> str:
    return with_plots(html)
