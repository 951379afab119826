"""Which cases of a library's tests are run, and why the others are not, by the values of their parameters.

For each function of tests a file has the cases that are run, as selections of values, and reasons for the others:

    {"test_output": {"run": [{"d": ["64", "128"], "causal": ["False"]}, {"d": ["256"], "causal": ["True"]}],
                     "left_out": [{"where": {"d": ["512"]}, "reason": "the GPU has no memory for it"},
                                  {"where": {}, "reason": "to keep the run short"}]}}

Values are texts, as ``--keep`` has them. A parameter that a selection does not name may have any value. A case that no
selection under ``run`` matches is left out, and the first entry under ``left_out`` that matches it says why.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

Where = dict[str, list[str]]  # by the names of parameters


def may_match(where: Where, known: dict[str, str]) -> bool:
    """Whether a selection matches a case, as far as the parameters of the case are known."""
    return all(value in where[names] for names, value in known.items() if names in where)


def size(where: Where, parameters: Where) -> int:
    """How many cases a selection matches; ``parameters`` has all values."""
    return math.prod(
        len(set(values) & set(where[names])) if names in where else len(values) for names, values in parameters.items()
    )


def both(one: Where, other: Where) -> Where:
    """What two selections have in common."""
    shared = {names: [value for value in one[names] if value in other[names]] for names in one.keys() & other.keys()}
    return {**one, **other, **shared}


def counted(selected: dict[str, Any], parameters: Where) -> dict[str, Any]:
    """The same selections and reasons with the number of cases of each; all together are all cases."""
    run, reasons = selected["run"], selected["left_out"]
    regions = [*run, *(reason["where"] for reason in reasons)]
    for where in regions:
        _check(where, parameters)
    for one, other in itertools.combinations(regions[:-1], 2):  # the last reason is that of all that is left
        if size(both(one, other), parameters):
            raise ValueError(f"two selections match the same cases: {one} and {other}")
    *others, last = [size(where, parameters) for where in regions]
    last -= sum(size(both(where, regions[-1]), parameters) for where in regions[:-1])
    every = math.prod(map(len, parameters.values()))
    if sum(others) + last != every:
        raise ValueError(f"{every - sum(others) - last} cases are neither run nor have a reason")
    left_out = [{**reason, "cases": cases} for reason, cases in zip(reasons, [*others[len(run) :], last], strict=True)]
    return {
        "cases": every,
        "parameters": parameters,
        "run": [{"where": where, "cases": cases} for where, cases in zip(run, others[: len(run)], strict=True)],
        "left_out": left_out,
    }


def _check(where: Where, parameters: Where) -> None:
    for names, values in where.items():
        unknown = set(values) - set(parameters.get(names, ()))
        if unknown:
            raise ValueError(f"no case has {names}={', '.join(sorted(unknown))}")
