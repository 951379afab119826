"""Host time of a call without TVM-FFI: a function that CuTe DSL compiled, and the same one served from a bundle.

Needs a GPU, CuTe DSL and torch:

    python -m aot capture tests/foreign/plain_exercise.py --arch sm90 --name plain --out dist/plain
    python benchmarks/plain_call.py --bundle dist/plain --out benchmarks/results/h200-plain-call.json

Each process compiles or is served, makes a first call, and then many. Callers of this convention wrap tensors for each call
(``from_dlpack``), or keep what they wrapped: both are measured.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from _common import PROJECT, parser, print_rows, report

CALLS, ROUNDS = 500, 9


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--bundle", type=Path, required=True, help="a bundle of `tests/foreign/plain_exercise.py`")
    arguments.add_argument("--child", choices=("compiled", "served"), help="measure in this process")
    options = arguments.parse_args()
    if options.child:
        return print(json.dumps(measured(options.child, options.bundle)))
    found = {how: _in_child(how, options.bundle) for how in ("compiled", "served")}
    report("plain_call", found, options.out, quiet=True)
    rows = [(name, *(f"{found[how][name]:.3f}" for how in found)) for name in found["served"]]
    print_rows(("", *found), rows)


def _in_child(how: str, bundle: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--bundle", str(bundle), "--child", how]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def measured(how: str, bundle: Path) -> dict[str, float]:
    import torch

    sys.path.insert(0, str(PROJECT / "tests" / "foreign"))
    import aot_runtime

    serving = aot_runtime.serve(bundle) if how == "served" else None
    import plainlib

    x, out = (torch.ones(5, plainlib.N, device="cuda") for _ in range(2))
    stream = torch.cuda.current_stream().cuda_stream
    torch.cuda.synchronize()
    given = plainlib.arguments(x, out.data_ptr(), stream)
    started = time.perf_counter()
    function = plainlib.compile_scale()
    function(*given)
    torch.cuda.synchronize()
    first = time.perf_counter() - started
    assert torch.equal(out, x * 2) and (serving is None or serving.hits == 1)
    return {
        "first result, ms": first * 1e3,
        "tensors kept, us": _host_time(lambda: function(*given)),
        "tensors wrapped, us": _host_time(lambda: function(*plainlib.arguments(x, out.data_ptr(), stream))),
    }


def _host_time(call: Any) -> float:
    """The median of several rounds, in microseconds for a call. The queue of the device never fills up."""
    import torch

    rounds = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(CALLS):
            call()
        rounds.append((time.perf_counter() - started) / CALLS * 1e6)
    return statistics.median(rounds)


if __name__ == "__main__":
    main()
