"""What takes longest goes first, so that the processes that share the files of a run end at the same time.

pytest-xdist would begin with the files of the most tests. The last file would then be one that takes a minute for its four
tests, while the other processes have nothing to do.
"""

from __future__ import annotations

import pytest

# Files, and folders of files, that build bundles or compile programs: by the CPU time that `--cpu-times` shows.
LONGEST = (
    "tests/end_to_end/",
    "tests/cpp/",
    "tests/aot/cli/",
    "tests/aot/test_build_backend.py",
    "tests/tools/",
    "tests/aot/pipeline/",
    "tests/aot/compile/",
    "tests/aot/bundle/",
    "tests/aot/cache/",
    "tests/kernels/",
    "tests/fuzz/",
    "tests/aot/wheel/",
)


def place_of(name: str) -> int:
    """Where the tests of a file go; the names of tests begin with their file."""
    return next((place for place, start in enumerate(LONGEST) if name.startswith(start)), len(LONGEST))


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config.option, "loadscopereorder"):  # of pytest-xdist
        config.option.loadscopereorder = False


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: place_of(item.nodeid))
