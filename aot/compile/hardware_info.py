"""A device that answers for the architecture that is compiled for, whatever GPU the build machine has or has not.

Some kernels ask ``cutlass.utils.HardwareInfo`` while they are traced. What it answers becomes a constant of the code.
"""

from __future__ import annotations

from typing import Any

from .devices import Device

__all__ = ["answer_for"]


def answer_for(device: Device) -> None:
    """Let CuTe DSL's ``HardwareInfo`` answer for a device, for the rest of the process."""
    from cutlass.utils import HardwareInfo

    def init(self: Any, device_id: int = 0) -> None:
        self.device_id = device_id

    def max_active_clusters(self: Any, cluster_size: int, stream: Any = None) -> int:
        return device.active_clusters(cluster_size)

    # The methods are replaced, not the class: modules may have imported the class already.
    HardwareInfo.__init__ = init
    HardwareInfo.get_max_active_clusters = max_active_clusters
    HardwareInfo.get_l2_cache_size_in_bytes = lambda self: device.l2_cache
    HardwareInfo.get_device_multiprocessor_count = lambda self: device.multiprocessors
