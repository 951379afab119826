"""How a plan is shown: ``list`` and ``build --dry-run`` print the same table, guards and estimate."""

from __future__ import annotations

from ..errors import counted
from ..pipeline.outlook import Outlook
from ..records import encode
from .report import fitted_table, human_time, print_wrapped

__all__ = ["estimate_text", "plan_data", "print_plan"]


def print_plan(outlook: Outlook) -> None:
    """A row for each architecture of each kernel, and the guards of kernels that have some."""
    names = list(dict.fromkeys(one.kernel for one in outlook.plan))
    rows = [
        (one.kernel, one.arch, len(one.variants), one.cached, "yes" if one.contract else "no")
        for one in sorted(outlook.plan, key=lambda one: names.index(one.kernel))
    ]
    print(fitted_table(("kernel", "arch", "variants", "cached", "contract"), rows))
    _print_guards(outlook)


def _print_guards(outlook: Outlook) -> None:
    """Below the table, in lines of their own: a kernel may have many. Architectures that share them are named together."""
    archs: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for one in outlook.plan:
        if one.guards:
            archs.setdefault((one.kernel, tuple(one.guards)), []).append(str(one.arch))
    if archs:
        print("\nguards:")
    for (kernel, guards), names in archs.items():
        print_wrapped(f"  {kernel} ({', '.join(names)}): {'; '.join(guards)}", "    ")


def estimate_text(outlook: Outlook, workers: int) -> str:
    """How long it takes to compile what is not in the cache."""
    if outlook.seconds is None:
        return "not known, since nothing of it was compiled here before"
    return f"about {human_time(outlook.seconds)} with {counted(workers, 'worker')}"


def plan_data(outlook: Outlook) -> dict[str, object]:
    return {"plan": encode(outlook.plan), "estimate": outlook.seconds, "failures": encode(outlook.failures)}
