"""Regions of sources that a tool writes from a table: between a comment that names the tool, and ``end of <what>``.

/* dtypes: written by tools/dtypes.py */
...
/* end of dtypes */
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path

__all__ = ["PROJECT", "Regions", "rewritten", "run"]

PROJECT = Path(__file__).resolve().parents[1]
Regions = Mapping[Path, Mapping[str, str]]  # what each source has in its regions, by their names


def rewritten(text: str, regions: Mapping[str, str]) -> str:
    """A source with these regions."""
    for what, region in regions.items():
        pattern = rf"(?P<head>^ *(?:/\*|<!--) {what}: .*\n)(?:.*\n)*?(?P<tail>^ *(?:/\*|<!--) end of {what}\b)"
        assert len(re.findall(pattern, text, re.MULTILINE)) == 1, f"a source has one region `{what}`"
        text = re.sub(pattern, lambda match, new=region: match["head"] + new + match["tail"], text, flags=re.MULTILINE)
    return text


def run(doc: str | None, regions: Regions) -> int:
    """Rewrite the sources; with ``--check``, exit code 1 if one of them differs."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a source differs")
    check = parser.parse_args().check
    changed = {
        path: after
        for path, listed in regions.items()
        if (after := rewritten(before := path.read_text(), listed)) != before
    }
    for path, text in changed.items():
        if not check:
            path.write_text(text)
    return 1 if check and changed else 0
