"""Which arguments of operators autocast casts. The CPU's autocast stands in for that of a GPU."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from aot_runtime.description.kernel_records import Parameter

torch: Any = None
with suppress(ImportError):
    import torch

pytestmark = pytest.mark.torch
SHORT, WIDE = ("float16[:, :]", "bfloat16[:, :]"), ("float16[:, :]", "bfloat16[:, :]", "float32[:, :]")


@pytest.fixture(autouse=True)
def _needs_torch() -> None:
    if torch is None:
        pytest.skip("operators of torch need torch")


@pytest.fixture
def seen() -> Any:
    """An operator that takes 16 bits alone, then any float, then f32 alone; and the dtypes that it was called with."""
    from aot_runtime.frameworks.torch_autocast import register_autocast

    library = torch.library.Library("autocast_test", "FRAGMENT")
    library.define("f(Tensor a, Tensor b, Tensor c, Tensor? d=None, int e=1) -> Tensor")
    dtypes: list[Any] = []

    def f(a: Any, b: Any, c: Any, d: Any = None, e: int = 1) -> Any:
        dtypes[:] = [a.dtype, b.dtype, c.dtype]
        return a + 0

    library.impl("f", f, "CPU")
    accepted = (SHORT, WIDE, ("float32[:]",), WIDE, ())
    inputs = [Parameter(name, type="tensor", accepts=dtypes) for name, dtypes in zip("abcde", accepted, strict=True)]
    register_autocast(library, "f", torch.ops.autocast_test.f.default, inputs, "cpu")

    def call(*given: Any) -> list[Any]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.ops.autocast_test.f(*given)
        return dtypes

    call.library = library  # type: ignore[attr-defined]  # it lives as long as its registrations are needed
    return call


def test_a_dtype_that_a_parameter_does_not_take_is_cast(seen: Any) -> None:
    x = torch.ones(2, 2)
    assert seen(x, x.bfloat16(), x)[0] == torch.bfloat16


def test_f32_beside_the_dtype_of_autocast_is_cast_where_it_may_be(seen: Any) -> None:
    x = torch.ones(2, 2)
    assert seen(x.bfloat16(), x, x) == [torch.bfloat16, torch.bfloat16, torch.float32]


def test_f32_alone_stays_where_it_is_taken(seen: Any) -> None:
    x = torch.ones(2, 2)
    assert seen(x.half(), x, x) == [torch.float16, torch.float32, torch.float32]


def test_what_is_no_tensor_of_floats_is_passed_on(seen: Any) -> None:
    x = torch.ones(2, 2)
    assert seen(x, x.bfloat16(), x, None, 2)[0] == torch.bfloat16
    assert seen(torch.ones(2, 2, dtype=torch.int32), x.bfloat16(), x, x, 2)[0] == torch.int32


def test_gradients_return_in_the_dtype_of_the_leaf() -> None:
    from aot_runtime.frameworks.torch_autocast import _casting

    x = torch.ones(2, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (cast,) = _casting([{torch.bfloat16}], "cpu")((x,))
    cast.sum().backward()
    assert (cast.dtype, x.grad.dtype) == (torch.bfloat16, torch.float32)
