"""A model stands for every architecture that kernels are built for, and libraries learn the architecture from variables."""

from __future__ import annotations

import pytest
from aot_runtime.arch import Arch
from aot_runtime.serving.caches import NO_CACHES

from aot.compile.device.devices import Device, library_variables, names_of_library_variables
from aot.targets import accepted_archs


@pytest.mark.parametrize("arch", accepted_archs(), ids=str)
def test_every_architecture_has_a_device_whose_blocks_fit_into_a_multiprocessor(arch: Arch) -> None:
    device = Device.of(arch)
    assert device.capability == arch.capability
    assert 0 < device.shared_memory < device.shared_memory_per_multiprocessor
    assert device.multiprocessors >= device.active_clusters(2) * 2


def test_the_device_of_hopper_is_not_that_of_ampere_or_blackwell() -> None:
    found = [Device.of(Arch.parse(arch)) for arch in ("sm_80", "sm_90a", "sm_100f")]
    assert [device.multiprocessors for device in found] == [108, 132, 148]
    assert len({device.l2_cache for device in found}) == 3


def test_only_the_device_that_was_asked_counts_as_proven() -> None:
    proven = {device.capability for arch in accepted_archs() if (device := Device.of(arch)).proven}
    assert {tuple(capability) for capability in proven} == {(9, 0)}


def test_libraries_learn_the_architecture_from_their_own_variables() -> None:
    assert library_variables(Arch.parse("sm_100f")) == {
        "QUACK_ARCH": "sm_100",
        "FLASH_ATTENTION_ARCH": "sm_100",
        "FLASH_ATTENTION_NUM_SMS": "148",
        "QUACK_CACHE_ENABLED": "0",
        "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "0",
        "FLASHINFER_CUTE_DSL_DISABLE_CACHE": "1",
        "B12X_COMPILE_DISK_CACHE": "0",
        "CUDNN_FRONTEND_DISABLE_COMPILED_CACHE": "1",
        "CUTE_DSL_NO_CACHE": "1",
        "SGLANG_CUTE_AOT_CACHE_DIR": "",
    }
    assert names_of_library_variables() == library_variables(Arch.parse("sm_80")).keys()


def test_a_capture_turns_off_the_caches_that_a_recording_does() -> None:
    assert NO_CACHES.items() <= library_variables(Arch.parse("sm_90a")).items()
