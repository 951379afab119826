"""What settings leave out follows from the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot.errors import UsageError
from aot.pipeline.settings import Settings


@pytest.mark.parametrize(
    ("kernels", "name"),
    [("my/kernels", "kernels"), ("my/fill.py", "fill"), ("package.kernels", "kernels"), ("fill", "fill")],
)
def test_a_bundle_is_named_after_the_folder_file_or_module(kernels: str, name: str) -> None:
    settings = Settings(kernels, ())
    assert settings.bundle_name == name
    assert settings.destination == Path("dist") / name
    assert Settings(kernels, (), name="other").destination == Path("dist/other")
    assert Settings(kernels, (), out=Path("here")).destination == Path("here")


@pytest.mark.parametrize("name", ["my-kernels", "1", "class", "a b"])
def test_a_name_that_c_and_python_cannot_use_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a bundle") as caught:
        Settings("kernels", (), name=name).bundle_name  # noqa: B018  raises
    assert caught.value.hint == "use letters, digits and underscores in `--name`"


def test_memory_bounds_the_processes_that_compile_and_link() -> None:
    assert (Settings("k", (), jobs=8).worker_count, Settings("k", (), jobs=8).link_count) == (8, 8)
    small = Settings("k", (), jobs=8, memory=1 << 30)
    assert (small.worker_count, small.link_count) == (1, 2)
