"""Functions of the kernel, several calls deep."""

import functools
import os

import cutlass
import cutlass.cute as cute
from cutlass.utils import HardwareInfo

from . import settings
from .settings import USE_FAST_MATH, Limits

ROUNDS = 2
DTYPE = cutlass.Float32
KIND = Limits
TABLE = {"a": 1, "b": (2, 3)}


def enclosing(number):
    def add(value):
        return value + number

    return add


def doubled(function):
    times = 2

    @functools.wraps(function)
    def wrapper(value):
        for _ in range(times):
            value = function(value)
        return value

    return wrapper


add_one = enclosing(1)


@doubled
def raise_by(value, step=1):
    return value + step


@functools.cache
def cached_level():
    return int(os.environ.get("DEEPLIB_LEVEL", "3")) + deepest()


def deepest():
    return settings.OFFSET


@cute.jit
def fast(value: cutlass.Float32) -> cutlass.Float32:
    if cutlass.const_expr(USE_FAST_MATH):
        return cute.math.exp(value, fastmath=True)
    return cute.math.exp(value)


def apply(value):
    value = fast(value) + DTYPE(ROUNDS) + sum(settings.WEIGHTS) + KIND.most + len(TABLE) + cached_level()
    if settings.MODE is settings.Mode.SCALED:
        value = value * 2.0
    if os.environ.get("DEEPLIB_SHIFT"):
        value = value + 1.0
    return raise_by(add_one(value)) + HardwareInfo().get_device_multiprocessor_count()
