"""The contracts of the shipped kernels agree with themselves: torch's own operations meet every reference."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from aot_runtime.description.records import FileRecord
from places import PROJECT

from aot.bundle.contracts import Contract, contract_sources, load_contracts
from aot.bundle.manifest import Manifest
from aot.gpu.check import compare
from aot.gpu.inputs import InputMaker

KERNELS = PROJECT / "kernels"
CONTRACTS = {path.stem: str(path) for path in (KERNELS / "contracts").rglob("[a-z]*.py")}
NAMES = sorted(CONTRACTS)
CHOICES = {
    "activation": [{"op": op} for op in ("relu", "gelu", "gelu_tanh", "silu")],
    "activation_backward": [{"op": op} for op in ("relu", "gelu", "gelu_tanh", "silu")],
    "gemm": [{"epilogue": epilogue} for epilogue in ("identity", "relu", "gelu", "silu")],
    "gemm_f32": [{"epilogue": "identity"}, {"epilogue": "silu"}],  # TF32 is for GPUs
    "linear_cross_entropy": [{"reduction": "mean"}, {"reduction": "sum"}],
    "reduce": [{"op": op} for op in ("sum", "max", "mean")],
}
DECODING = ("attention_decode", "mla_decode", "mla_decode_sparse")
# Outputs after those that torch has too
SCRATCH = {
    "rmsnorm_backward": 2,
    "rmsnorm_residual_backward": 2,
    "layernorm_backward": 4,
    "column_sums": 1,
}
LARGEST = 1 << 18  # elements; larger inputs are for GPUs


@pytest.fixture(scope="module")
def contracts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Contract]:
    """As a bundle carries them."""
    folder, records = tmp_path_factory.mktemp("bundle"), {}
    for name, path in contract_sources(CONTRACTS).items():
        content = path.read_bytes()
        (folder / "contracts" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "contracts" / name).write_bytes(content)
        records[f"contracts/{name}"] = FileRecord(hashlib.sha256(content).hexdigest(), len(content))
    return load_contracts(folder, Manifest("b", True, {}, {}, records), NAMES)


def test_every_shipped_kernel_has_a_contract() -> None:
    files = [path for path in KERNELS.rglob("[a-z]*.py") if "@aot.kernel" in path.read_text()]
    assert {path.stem: path.parent.name for path in files} == {
        name: Path(path).parent.name for name, path in CONTRACTS.items()
    }, "contracts lie in the folder of their kernel's family"


@pytest.mark.parametrize("kernel", NAMES)
def test_a_contract_can_be_checked_and_measured(contracts: dict[str, Contract], kernel: str) -> None:
    contract = contracts[kernel]
    assert None not in (contract.cost, contract.bench_inputs, contract.torch_equivalent)


@pytest.mark.torch
@pytest.mark.parametrize("kernel", NAMES)
def test_torch_meets_the_reference_on_every_input(contracts: dict[str, Contract], kernel: str) -> None:
    pytest.importorskip("torch", reason="references need torch")
    contract, checked, empty = contracts[kernel], 0, 0
    assert contract.torch_equivalent is not None and contract.cost is not None
    for choices in CHOICES.get(kernel, ({},)):
        for arguments in contract.inputs(InputMaker("cpu"), "f32"):
            if max(value.numel() for value in arguments.values() if hasattr(value, "numel")) > LARGEST:
                continue
            # torch's own gelu of minus infinity is NaN or 0, depending on the CPU and on the number of elements.
            if "gelu" in choices.values() and not all_finite(arguments):
                continue
            # In f32, torch rounds equal scores of many thousands apart on some CPUs.
            precise = {"q": arguments["q"].double()} if kernel in DECODING else {}
            results = as_tuple(contract.torch_equivalent(**arguments | precise, **choices))
            exact_results = as_tuple(contract.reference(**arguments, **choices))
            assert len(results) == len(exact_results) - SCRATCH.get(kernel, 0)
            for result, exact in zip(results, exact_results, strict=False):
                problem, norm, worst = compare(result.float() if precise else result, exact)
                # torch's own sums of long rows on a CPU are a little less exact than what is asked of ours.
                assert max(norm, worst) < 2, (
                    problem,
                    choices,
                    {k: getattr(v, "shape", v) for k, v in arguments.items()},
                )
            assert contract.cost(**arguments, **choices).bytes >= 0
            checked += 1
            empty += any(0 in getattr(value, "shape", ()) for value in arguments.values())
    assert checked > 10
    assert empty > 0, "no call has a tensor without elements"


def all_finite(arguments: dict[str, Any]) -> bool:
    return all(bool(value.isfinite().all()) for value in arguments.values() if hasattr(value, "isfinite"))


def as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
