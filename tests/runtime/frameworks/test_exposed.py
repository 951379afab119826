"""What frameworks get is registered once per name."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from types import SimpleNamespace
from typing import Any

from aot_runtime.description.kernel_records import KernelRecord
from aot_runtime.frameworks.exposed import Exposed, expose


class Functions(Exposed):
    def _make(self, record: KernelRecord) -> Any:
        return record


def test_two_threads_that_register_a_bundle_at_once_get_one_object() -> None:
    """A framework refuses a second definition of the same name."""
    both_make = Barrier(2)
    made: list[str] = []

    def make(bundle: Any, name: str) -> Functions:
        made.append(name)
        with suppress(BrokenBarrierError):  # the other thread waits for this one
            both_make.wait(timeout=0.5)
        return Functions(bundle, name)

    bundle: Any = SimpleNamespace(path=Path("here"), kernels=())
    known: dict[str, Functions] = {}
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: expose(known, bundle, "name", make), range(2))
    assert first is second and made == ["name"]
