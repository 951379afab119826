"""CuTe DSL's question how many clusters run at once is answered without a compile."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aot_runtime.serving.empty import EmptyKernel, is_empty_kernel
from aot_runtime.serving.server import Serving
from aot_runtime.serving.values.sources import locate_source


def own(name: str, module: str = "cutlass.utils.hardware_info") -> Any:
    return SimpleNamespace(__module__=module, __qualname__=name)


def test_only_the_kernel_that_asks_about_clusters_is_answered_and_counts_as_no_look_up(small_bundle_path: Path) -> None:
    with Serving(small_bundle_path, "raise") as serving:

        def answer(function: Any) -> Any:
            return serving._answer(lambda *args, **kwargs: "compiled", None, function, (), {})

        assert answer(own("HardwareInfo._host_function")).artifacts.CUBIN.startswith(b".version")
        assert answer(own("HardwareInfo.another")) == "compiled"
        assert not is_empty_kernel(own("HardwareInfo._host_function", "theirs"))
        assert (serving.hits, serving.misses) == (0, 0)


def test_the_text_ends_as_the_driver_wants_it() -> None:
    assert EmptyKernel.CUBIN.endswith(b"}\n\0")


def test_cute_dsl_still_asks_in_the_way_that_is_answered() -> None:
    path = locate_source("cutlass.utils.hardware_info")
    assert path is not None
    text = Path(path).read_text()
    for words in ("self._host_function,", "compiled_func.artifacts.CUBIN", "cuLibraryLoadData(cubin_data"):
        assert words in text
