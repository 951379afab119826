"""What settings leave out follows from the rest."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from aot.compile.messages import Options
from aot.errors import UsageError
from aot.hosts import Host
from aot.pipeline.settings import Settings, Shape


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


def test_a_name_that_is_too_long_for_files_is_refused_before_anything_is_compiled() -> None:
    assert Settings("kernels", (), name="a" * 100).bundle_name == "a" * 100
    with pytest.raises(UsageError, match="has 101 letters") as caught:
        Settings("kernels", (), name="a" * 101).bundle_name  # noqa: B018  raises
    assert caught.value.hint == "pass a `--name` of at most 100 letters"


def test_memory_bounds_the_processes_that_compile_and_link() -> None:
    assert (Settings("k", (), jobs=8).worker_count, Settings("k", (), jobs=8).link_count) == (8, 8)
    small = Settings("k", (), jobs=8, memory=1 << 30)
    assert (small.worker_count, small.link_count) == (1, 2)


SHAPING: dict[str, Any] = {
    "archs": ("sm_80",), "name": "other", "select": ("a*",), "families": ("rows",), "hosts": (Host.native((2, 31)),),
    "options": Options(cuda=13), "shared_cudart": True, "add": True, "replace": True, "wheelhouse": Path("/wheels"),
    "archives": False, "tilings": "all",
}  # fmt: skip

NOT_SHAPING = {  # a bundle does not depend on them, or does by the content of the files that they name
    "kernels", "tuning", "out", "jobs", "memory", "timeout", "executor", "allow_incomplete", "cache", "artifacts", "remote",
    "remote_read_only", "wait",
}  # fmt: skip


def test_every_setting_that_shapes_a_bundle_is_in_its_key() -> None:
    """One that is forgotten would hand out a bundle that was built with another value."""
    settings = Settings("kernels", ("sm_90a",))
    assert {field.name for field in fields(Shape)} == SHAPING.keys()
    assert {field.name for field in fields(Settings)} == SHAPING.keys() | NOT_SHAPING
    for name, value in SHAPING.items():
        assert replace(settings, **{name: value}).shape != settings.shape, name


def test_a_limit_of_memory_that_no_worker_fits_into_is_refused() -> None:
    Settings("kernels", (), memory=1 << 30)
    with pytest.raises(UsageError) as caught:
        Settings("kernels", (), memory=10 << 20)
    assert caught.value.hint
