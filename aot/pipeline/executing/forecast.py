"""How long compiling will take: from how long it took before, and from what this build has compiled so far."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from aot_runtime.arch import Arch

__all__ = ["Code", "Forecast"]

# Architecture, kernel, and what tells its codes apart: variants of one code share the work.
Code = tuple[Arch, str, str]


_LINKING = 0.2  # of the time that compiling takes: linking and verifying what was compiled
_FINISHING = 2.0  # seconds; of that what does not depend on how much was compiled
_COPY = 0.05  # seconds; a variant of a code that is compiled takes less
_EARLY = 3.0  # seconds; what is compiled until then are the kernels that take least


class Forecast:
    """The time that is left of a build that compiles something. Nothing here looks at a clock."""

    def __init__(
        self,
        missing: Collection[Code] = (),
        workers: int | None = None,
        variants: Iterable[tuple[Code, str]] = (),
        took: Mapping[str, float] | None = None,
    ) -> None:
        """``took`` says how long variants took in earlier builds, by their labels; ``variants`` are the labels of each code.

        ``workers`` None: not known, as on a cluster.
        """
        self.expected = len(missing)
        self._left, self._workers = set(missing), workers
        self._known: dict[Code, float] = {}
        own = [seconds for seconds in (took or {}).values() if seconds > _COPY]
        self._usual = fmean(own) if own else None
        unknown = set[Code]()
        for code, label in variants:  # copies of a code took next to no time: only all of them tell how long it takes
            self._known[code] = self._known.get(code, 0.0) + (took or {}).get(label, 0.0)
            unknown |= {code} if label not in (took or {}) else set()
        for code in unknown:
            del self._known[code]
        self._before = _by_kernel(self._known)
        self._begun: dict[Code, float] = {}  # what workers are at, and since when
        self._observed: dict[Code, float] = {}
        self._here: dict[str, _Mean] = {}  # by kernel

    def begin(self, code: Code, elapsed: float) -> None:
        """A worker compiles this from now on."""
        if code in self._left:
            self._begun[code] = elapsed

    def add(self, code: Code, seconds: float | None) -> bool:
        """Count what was compiled; None: it failed. Whether it is the first of its code."""
        if seconds is not None:
            mean = self._here.setdefault(code[1], _Mean())
            mean.total += seconds
            mean.count += code not in self._observed
            self._observed[code] = self._observed.get(code, 0.0) + seconds
        is_first = code in self._left
        self._left.discard(code)
        self._begun.pop(code, None)
        return is_first

    def whole(self, elapsed: float) -> float | None:
        """How long the rest of a build takes, linking included, that compiles since ``elapsed`` seconds.

        None if nothing is left to compile from the beginning, or if kernels are left that nothing is known of so early.
        """
        if elapsed < _EARLY and any(code[1] not in self._here and code not in self._known for code in self._left):
            return None
        left = 0.0 if self._observed and not self._left else self.seconds_left(elapsed)
        return None if left is None else left + (elapsed + left) * _LINKING + _FINISHING

    def seconds_left(self, elapsed: float = 0.0) -> float | None:
        """How long compiling takes from now on; None if there is nothing to go by, or nothing left."""
        slower, typical = self._slower(), self._typical()
        each = [self._guess(code, slower, typical, elapsed) for code in self._left]
        seconds = [guess for guess in each if guess is not None]
        if not seconds or len(seconds) < len(each):
            return None
        if self._workers is None:
            speed = sum(self._observed.values()) / elapsed if elapsed else 0.0
            return sum(seconds) / speed if speed else None
        running = min(self._workers, len(seconds)) if self._observed else 0
        begun = running * fmean(seconds) / 2  # workers are in the middle of something, on average
        longest = max(seconds) / (2 if running else 1)
        return max((sum(seconds) - begun) / min(self._workers, len(seconds)), longest)

    def _guess(self, code: Code, slower: float, typical: float | None, elapsed: float) -> float | None:
        """Like itself in earlier builds, like the others of its kernel, or like other kernels.

        A kernel of which nothing is compiled yet takes longer than what a worker has spent on it so far.
        """
        kernel = code[1]
        if code in self._known:
            return self._known[code] * slower
        if kernel in self._here:
            return self._here[kernel].value
        if kernel in self._before:
            return self._before[kernel].value * slower
        spent = max((elapsed - since for one, since in self._begun.items() if one[1] == kernel), default=0.0)
        return max(typical, 2 * spent) if typical is not None else None  # half of it is done, on average

    def _typical(self) -> float | None:
        """What a code takes of a kernel that nothing is known of: like the other kernels of this build, each counted once.

        If nothing is known of these either, like what earlier builds of the source compiled.
        """
        means = {**self._before, **self._here}
        return fmean(mean.value for mean in means.values()) if means else self._usual

    def _slower(self) -> float:
        """How this build compares with earlier ones: it may share the machine, or have more workers."""
        both = self._observed.keys() & self._known.keys()
        before = sum(self._known[code] for code in both)
        return sum(self._observed[code] for code in both) / before if before else 1.0


@dataclass
class _Mean:
    total: float = 0.0
    count: int = 0

    @property
    def value(self) -> float:
        return self.total / self.count


def _by_kernel(seconds: Mapping[Code, float]) -> dict[str, _Mean]:
    means: dict[str, _Mean] = {}
    for (_, kernel, _), one in seconds.items():
        mean = means.setdefault(kernel, _Mean())
        mean.total, mean.count = mean.total + one, mean.count + 1
    return means
