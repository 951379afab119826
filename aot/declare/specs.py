"""One compilation of a kernel, as its author describes it, and the cost of a call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from .arguments import Argument

__all__ = ["CapturedSpec", "Cost", "Spec", "Work"]


@dataclass(frozen=True)
class Cost:
    """The cost of one call: floating-point operations, and bytes through device memory."""

    operations: int
    bytes: int


@dataclass(frozen=True)
class Work:
    """How a spec cuts a call into tiles and steps, in terms of what its kernel is ``tuned_by``.

    ``Work({"m": 256, "n": 128}, {"k": 64}, "2 * (m * k + n * k + m * n)", blocks=2, cycles=256)``: a cluster of two blocks
    computes 256 x 128 results, 64 along k in a step, and a step takes a multiprocessor at least 256 cycles.
    """

    tile: Mapping[str, int]  # of each extent, how much one cluster of blocks computes
    step: Mapping[str, int]  # of the extents that are summed over, how much one step takes
    bytes: str  # that go through device memory: an expression of the extents
    blocks: int = 1  # of a cluster
    cycles: int = 1  # of a multiprocessor for one step, at least


@dataclass(frozen=True)
class Spec:
    """One compilation: the jit callable, and its arguments in the order in which it takes them.

    The key of an argument is the name of its public parameter. That order may differ from the order of the call.
    Streams, compile-time values and what the device fills in may have any other key. ``guards`` are conditions on a
    call. ``label`` is part of the variant's name and tells several specs of one point apart. A spec without a stream
    needs ``default_stream=True``: it launches on stream 0.

    ``prefer`` are conditions too, but soft ones: among the specs that take a call, those whose conditions hold go
    first. On a device with a table, the table chooses among all specs that take the call. ``work`` is what
    ``python -m aot tune`` models the time of the spec by, to make tables for devices that are not there.

    A spec that is not ``core`` is left out unless ``--tilings all`` asks for it: the other specs of its point take the same
    calls, and are a little slower at some.

    ``written_for`` names the architecture that the code of this spec was written for, if it is another than the one that
    ``archs`` of the declaration names for the target.
    """

    function: Callable[..., Any]
    arguments: Mapping[str, Argument]
    guards: tuple[str, ...] = ()
    label: str = ""
    default_stream: bool = False
    prefer: tuple[str, ...] = ()
    written_for: str = ""
    work: Work | None = None
    core: bool = True

    def __post_init__(self) -> None:
        for name in ("guards", "prefer"):
            given = getattr(self, name)
            object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))


@dataclass(frozen=True)
class CapturedSpec(Spec):
    """A compilation that another library asked for, with the arguments that it passed."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    owner: Any = None  # the object that is called, if it is one
    attributes: Mapping[str, Any] = field(default_factory=dict)  # of the owner, when it was called
    state: Callable[[], str] = str  # a digest of what the call is made of now
    made: str = ""  # that digest when the call was made
    seen: dict[tuple[str, str], set[str]] = field(default_factory=dict)  # module and name -> its values in such calls
    identity: Callable[[], str] = str  # what tells the call from others, the same in every process
    modules: Callable[[], Collection[str]] = tuple  # whose functions may take part
    main: Any = None  # the module `__main__` when it was called: `runpy` runs a script as one, and takes it away again
