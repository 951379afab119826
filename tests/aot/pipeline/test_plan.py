"""A plan goes through the cache whole, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from aot_runtime.arch import Arch

from aot.cache.entries import EntryError, shared_bytes
from aot.compile.messages import KernelInfo
from aot.pipeline.plan import KernelPlan, Plan, read_plan
from aot.records import encode

SM80 = Arch.parse("sm_80")


def test_a_plan_is_read_as_it_was_written_and_refused_without_a_key_for_each_variant() -> None:
    kernel = KernelPlan(KernelInfo("add", "", "add.py:1", (), (), ("add",), (SM80,), {}), SM80, (), ())
    plan = Plan(12, (kernel,), {"add": (SM80,)})
    assert read_plan(shared_bytes(encode(plan))) == plan
    with pytest.raises(EntryError):
        read_plan(shared_bytes(encode(replace(plan, kernels=(replace(kernel, keys=("00",)),)))))


@pytest.mark.parametrize("change", [{"name": "../add"}, {"name": ""}, {"contract": "/etc/passwd"}], ids=str)
def test_a_plan_that_names_files_of_others_is_refused(change: dict[str, str]) -> None:
    info = KernelInfo("add", "", "add.py:1", (), (), ("add",), (SM80,), {}, contract="contracts/add.py")
    plan = Plan(12, (KernelPlan(info, SM80, (), ()),))
    assert read_plan(shared_bytes(encode(plan))) == plan
    with pytest.raises(EntryError):
        read_plan(shared_bytes(encode(replace(plan, kernels=(KernelPlan(replace(info, **change), SM80, (), ()),)))))
