"""What CuTe DSL asks the driver about a device while it traces.

A private part of CuTe DSL, the same in 4.6, 4.7 and 4.8; a version that differs gets a function of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["NEEDS", "answer_attributes"]

NEEDS: Mapping[str, tuple[str, ...]] = {
    "cutlass.base_dsl.runtime.cuda": ("cuda.CUdevice_attribute", "get_device_attribute")
}


def answer_attributes(values: Mapping[str, int]) -> None:
    """Answer for the driver, for the rest of the process; attributes are named as CUDA names them."""
    from cutlass.base_dsl.runtime import cuda as runtime

    ask = runtime.get_device_attribute
    known = {
        getattr(runtime.cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"): value for name, value in values.items()
    }
    runtime.get_device_attribute = lambda attribute, device_id=0: (
        known[attribute] if attribute in known else ask(attribute, device_id)
    )
