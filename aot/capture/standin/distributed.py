"""``torch.distributed`` under the device that stands in: groups of processes whose collectives do nothing.

A script that is one of several processes, or an engine that makes groups for one process too, asks for NCCL first.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from ...compile.timers import Note

__all__ = ["groups_without_processes"]

_BACKEND = "fake"  # of torch's own tests
_NOTHING = "collectives of torch.distributed did nothing"


@contextmanager
def groups_without_processes(note: Note) -> Iterator[None]:
    """Within the context, groups of processes can be made of any backend, and this process waits for no other."""
    distributed = importlib.import_module("torch.distributed")
    places = _places(distributed, note) if distributed.is_available() else []
    with ExitStack() as stack:
        for place, name, value in places:
            stack.enter_context(mock.patch.object(place, name, value))
        yield


def _places(distributed: Any, note: Note) -> list[tuple[Any, str, Any]]:
    """What is replaced, by where it is: modules take these functions from one another by name."""
    from torch.distributed import device_mesh, distributed_c10d

    answers = _answers(distributed_c10d, note)
    modules: tuple[Any, ...] = (distributed_c10d, device_mesh, distributed)
    return [(place, name, value) for place in modules for name, value in answers.items() if hasattr(place, name)]


def _answers(c10d: Any, note: Note) -> dict[str, Any]:
    initialize, make_group = c10d.init_process_group, c10d.new_group

    def init_process_group(
        backend: Any = None, init_method: Any = None, timeout: Any = None, world_size: int = -1, rank: int = -1,
        store: Any = None, group_name: str = "", *args: Any, **named: Any,
    ) -> None:  # fmt: skip
        from torch.testing._internal.distributed.fake_pg import FakeStore

        note(_NOTHING)
        size = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "1"))
        number = rank if rank >= 0 else int(os.environ.get("RANK", "0"))
        initialize(_BACKEND, store=FakeStore(), world_size=size, rank=number, group_name=group_name)

    def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **named: Any) -> Any:
        return make_group(ranks, backend=_BACKEND)

    def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
        object_list[:] = [obj] * len(object_list)

    return {
        "all_gather_object": all_gather_object,
        "init_process_group": init_process_group,
        "is_nccl_available": lambda: True,
        "new_group": new_group,
    }
