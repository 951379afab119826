"""Code that asks for a device while it is traced gets the answers of the architecture that it is compiled for."""

from __future__ import annotations

from pathlib import Path

from aot_runtime.arch import Arch

from aot.compile.messages import Options
from aot.compile.process import Worker

# Whatever the file asks becomes the names of a parameter, which the answer of the worker shows.
ASKS = """
import os
import aot
from cutlass.utils import HardwareInfo

info = HardwareInfo()
facts = [info.get_device_multiprocessor_count(), info.get_max_active_clusters(2), info.get_l2_cache_size_in_bytes()]
names = "_".join(map(str, facts)), os.environ["QUACK_ARCH"], os.environ["FLASH_ATTENTION_NUM_SMS"]

@aot.kernel(parameters=[aot.In(f"n_{name}") for name in names], archs=("sm_90a", "sm_100f"))
def asking(target):
    return []
"""


def test_hardware_info_and_the_variables_of_libraries_answer_for_the_target(tmp_path: Path) -> None:
    source = tmp_path / "asks.py"
    source.write_text(ASKS)
    worker = Worker(str(source), Arch.parse("sm_100f"), Options(), tmp_path / "log")
    worker.close()
    (kernel,) = worker.declared.kernels
    assert [parameter.name for parameter in kernel.parameters] == ["n_148_74_132644864", "n_sm_100", "n_148"]
