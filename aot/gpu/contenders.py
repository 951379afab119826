"""What is measured: the calls of the contracts, by a bundle, by torch, and by the same kernels of other bundles.

Needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aot_runtime.core.functions import function_symbol

from ..bundle.contracts import Contract
from .running import Gpu, arguments_text, calls_of, make_outputs

__all__ = ["AGAINST", "DTYPES", "Problem", "problems_of", "runs_of"]

AGAINST = ("torch", "torch.compile")
DTYPES = ("bf16", "f16", "f32")  # in the first of which a kernel takes its calls, they are measured


@dataclass(frozen=True)
class Problem:
    """One call of a contract that can be measured."""

    kernel: str
    dtype: str
    choices: Mapping[str, str]
    arguments: dict[str, Any]
    contract: Contract

    @property
    def label(self) -> str:
        return " ".join((self.kernel, *self.choices.values(), self.dtype))

    @property
    def text(self) -> str:
        return arguments_text(self.arguments)

    def variant(self, bundle: Any, gpu: Gpu, outputs: Mapping[str, Any]) -> str:
        """The name of the variant that a bundle runs; empty if none takes the call."""
        explained = bundle.explain(self.kernel, gpu.described, **self.arguments, **outputs, **self.choices)
        return str(explained.chosen.variant) if explained.chosen is not None else ""


def problems_of(
    bundle: Any, contracts: Mapping[str, Contract], kernels: Sequence[str], gpu: Gpu, dtypes: Sequence[str]
) -> Iterator[Problem]:
    """The calls of those kernels whose contract names calls to measure and what they cost.

    Without ``dtypes``, the calls of a kernel have the first of :data:`DTYPES` that it takes.
    """
    for kernel in kernels:
        contract = contracts.get(kernel)
        if contract is None or contract.bench_inputs is None or contract.cost is None:
            continue
        chosen = dtypes or (_first_taken(bundle, kernel, contract, gpu),)
        yield from _problems_in(bundle, kernel, contract, gpu, chosen)


def _first_taken(bundle: Any, kernel: str, contract: Contract, gpu: Gpu) -> str:
    record = bundle.manifest.kernels[kernel]
    for dtype in DTYPES:
        for problem in _problems_in(bundle, kernel, contract, gpu, (dtype,)):
            if problem.variant(bundle, gpu, make_outputs(record, problem.arguments, gpu.device, picked=dtype)):
                return dtype
    return DTYPES[0]  # and the first call says what the kernel would take


def _problems_in(bundle: Any, kernel: str, contract: Contract, gpu: Gpu, dtypes: Sequence[str]) -> Iterator[Problem]:
    assert contract.bench_inputs is not None
    record = bundle.manifest.kernels[kernel]
    for dtype, choices, arguments in calls_of(record, contract.bench_inputs, dtypes, gpu.device):
        yield Problem(kernel, dtype, choices, arguments, contract)


def runs_of(
    problem: Problem,
    bundle: Any,
    gpu: Gpu,
    against: Mapping[str, Any],
    sets: Sequence[dict[str, Any]],
    outputs: Sequence[dict[str, Any]],
) -> dict[str, Callable[[int], Any]]:
    """By contender, a function that makes the call with one of the sets of arguments; this bundle's is ``aot``.

    ``against`` has the other bundles by name, and None for torch and torch.compile. What cannot make the call is left
    out.
    """
    runs = {"aot": _by_bundle(problem, bundle, sets, outputs)}
    for name, other in against.items():
        if other is not None:
            if _takes(problem, other, gpu, outputs[0]):
                runs[name] = _by_bundle(problem, other, sets, outputs)
        elif problem.contract.torch_equivalent is not None:
            runs[name] = _by_torch(name, problem.contract.torch_equivalent, sets, problem.choices)
    return runs


def _takes(problem: Problem, other: Any, gpu: Gpu, outputs: Mapping[str, Any]) -> bool:
    """Whether another bundle has a kernel of that name, with these parameters and choices, that takes the call."""
    record = other.manifest.kernels.get(problem.kernel)
    if record is None or {choice.name for choice in record.choices} != set(problem.choices):
        return False
    function = function_symbol(problem.kernel, tuple(problem.choices[choice.name] for choice in record.choices))
    names = {parameter.name for parameter in record.parameters}
    if function not in record.functions or not names >= {*problem.arguments, *outputs}:
        return False
    return bool(problem.variant(other, gpu, outputs))


def _by_bundle(
    problem: Problem, bundle: Any, sets: Sequence[dict[str, Any]], outputs: Sequence[dict[str, Any]]
) -> Callable[[int], Any]:
    function = bundle[problem.kernel]
    return lambda i: function(**sets[i], **outputs[i], **problem.choices)


def _by_torch(
    name: str, equivalent: Callable[..., Any], sets: Sequence[Mapping[str, Any]], choices: Mapping[str, str]
) -> Callable[[int], Any]:
    import torch

    if name == "torch":
        return lambda i: equivalent(**sets[i], **choices)
    # Forgets earlier shapes and choices: after eight recompilations torch would stop compiling.
    torch.compiler.reset()
    compiled = torch.compile(equivalent, dynamic=False)
    return lambda i: compiled(**sets[i], **choices)
