"""A plugin of pytest that keeps the C source of every entry library that a run links, by the identity of its bundle."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SOURCES = "AOT_MUTANTS_SOURCES"
FEW = "AOT_MUTANTS_FEW"  # if it is set, only as many tests run as it takes to make everything that the tests share


def pytest_configure(config: pytest.Config) -> None:
    from aot.cache import links
    from aot.link import libraries

    made: Callable[..., str] = libraries.entry_source
    folder = Path(os.environ[SOURCES])
    folder.mkdir(parents=True, exist_ok=True)

    def keep(bundle: str, functions: Any, builds: Any, support: Any, host: str, identity: str) -> str:
        source = made(bundle, functions, builds, support, host, identity)
        (folder / f"{identity}.c").write_text(source)
        return source

    for module in (libraries, links):
        module.entry_source = keep  # type: ignore[attr-defined]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if FEW not in os.environ:
        return
    made: set[str] = set()
    few = []
    for item in items:
        wanted = set(getattr(item, "fixturenames", ()))
        if not wanted <= made:
            few.append(item)
            made |= wanted
    items[:] = few
