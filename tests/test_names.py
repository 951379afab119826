"""What a reader finds by completion: the public names of both packages, and one version."""

from __future__ import annotations

import sys
from types import ModuleType

import aot_runtime
import pytest
from observing import run_python
from places import PROJECT

import aot

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PACKAGES = pytest.mark.parametrize("package", [aot, aot_runtime], ids=lambda package: str(package.__name__))


@PACKAGES
def test_dir_shows_the_public_names_alone(package: ModuleType) -> None:
    shown = [name for name in dir(package) if not name.startswith("__")]
    assert shown == sorted(package.__all__)
    assert "__version__" in dir(package)


@PACKAGES
def test_every_public_name_is_there(package: ModuleType) -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nothing'"):
        package.nothing  # noqa: B018


@PACKAGES
def test_completion_knows_names_that_were_never_used(package: ModuleType) -> None:
    code = f"""
    import rlcompleter, {package.__name__}
    completer = rlcompleter.Completer({{"package": {package.__name__}}})
    found, number = [], 0
    while (match := completer.complete("package.", number)) is not None:
        found.append(match.removeprefix("package.").rstrip("()"))
        number += 1
    print(*found)
    """
    assert set(run_python(code).split()) >= set(package.__all__)


def test_both_packages_have_the_version_of_the_project() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert aot.__version__ == aot_runtime.__version__ == project["version"]
