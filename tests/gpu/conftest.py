"""What the GPU tests share. They run where only torch and a bundle are: ``--confcutdir tests/gpu`` leaves the rest out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aot_runtime
import pytest

# JAX takes three quarters of the GPU's memory at its first call, and other tests use the GPU at the same time.
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"


# Tests that take longest. With several processes they go first: one that began last would run alone at the end.
LONGEST = (
    "test_operators_from_c",
    "test_installed_package_runs_from_two_threads_and_in_a_graph",
    "test_every_variant_agrees_with_its_reference",
    "test_what_lies_between_the_rows_of_an_output_stays",
    "test_examples_run",
    "test_after_a_kill_in_the_middle_of_launches_the_next_process_works",
    "test_an_illegal_access_in_another_process_stays_there",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bundle", default="dist/kernels", help="bundle that GPU tests run")


def pytest_configure(config: pytest.Config) -> None:
    if getattr(config.option, "maxschedchunk", 0) is None:
        config.option.maxschedchunk = 1  # of pytest-xdist: each process gets one test at a time, not the first dozens


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if any(item.path.parent != Path(__file__).parent for item in items):
        return  # a run of all tests keeps those of a file together, for processes that take whole files
    order = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(getattr(item, "originalname", item.name), len(LONGEST)))


@pytest.fixture(scope="session")
def torch() -> Any:
    """Torch on a machine with a GPU. Test files do not import it themselves: others that collect them have none."""
    torch = pytest.importorskip("torch", reason="GPU tests need torch")
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU here")
    return torch


@pytest.fixture(scope="module")
def bundle(request: pytest.FixtureRequest, torch: Any) -> aot_runtime.Bundle:
    """The bundle of ``--bundle``. A file of tests names the kernel that it needs, and its family, in ``NEEDS``."""
    path = Path(request.config.getoption("--bundle"))
    if not path.is_dir():
        pytest.skip(f"there is no bundle at {path}: build one, or give --bundle")
    bundle = aot_runtime.load(path)
    for kernel, family in getattr(request.module, "NEEDS", {}).items():
        if kernel not in bundle.kernels:
            pytest.skip(f"the bundle at {path} has no `{kernel}`: build it with --family {family}")
    return bundle


@pytest.fixture(scope="session")
def busy(torch: Any) -> Iterator[None]:
    """Another process keeps the GPU busy: races that an idle GPU does not show were found this way."""
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0") != "gw0":
        yield  # the tests of other workers keep the GPU busy, and one such process is enough
        return
    program = Path(__file__).with_name("busy.py")
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "busy\n"
        yield
        process.kill()
