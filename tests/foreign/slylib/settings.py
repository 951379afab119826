"""Values that functions of another module read. Nothing here runs while the kernel is traced."""

import collections
import dataclasses
import enum
import functools
import types

IMPORTED, IMPORTED_AS, ASKED, COMPUTED = 1, 2, (3, 4), {"a": 5}
LISTED = [6, 7]


@dataclasses.dataclass
class Inner:
    depth: int = 1


@dataclasses.dataclass
class Config:
    stages: int = 2
    inner: Inner = dataclasses.field(default_factory=Inner)
    by_name: dict = dataclasses.field(default_factory=lambda: {"rows": [8, 9]})


class Level(enum.Enum):
    """Members with an attribute of their own."""

    LOW = 1
    HIGH = 2

    def __init__(self, number):
        self.rounds = number * 10


class Flag(enum.IntFlag):
    FAST = 1
    EXACT = 2


class Limits:
    most = 64
    least = 1


class Meta(type):
    hidden = {"width": 3}

    def __getattr__(cls, name):
        return cls.hidden[name]


class Answers(metaclass=Meta):
    """Its attributes are made up."""


class Proxy:
    """Its attributes are those of another object."""

    def __init__(self, target):
        self.target = target

    def __getattr__(self, name):
        return getattr(self.target, name)


class Table(dict):
    """A dict with an attribute."""

    def __init__(self, *args, scale=2):
        super().__init__(*args)
        self.scale = scale


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Named(int):
    """A number with an attribute."""


class Point(collections.namedtuple("Point", "x y")):
    """A tuple with a property that reads the class."""

    scale = 2

    @property
    def scaled(self):
        return self.x * self.scale


def multiply(value, factor):
    return value * factor


def enclosing(number):
    return lambda value: value + number


def attributed(value):
    return value + attributed.step


attributed.step = 1


def marked(value):
    return value


marked.weight = 3
CONFIG = Config()
NAMESPACE = types.SimpleNamespace(rows=4)
PARTIAL = functools.partial(multiply, factor=2)
CLOSURES = [enclosing(1), {"two": enclosing(2)}]
ORDERED = {"first": 2, "second": 3}
DEFAULTS = collections.defaultdict(functools.partial(int, 3))
PROXY = Proxy(types.SimpleNamespace(depth=5))
TABLE = Table({"a": 1})
SLOTTED = Slotted(1)
NAMED = Named(4)
NAMED.extra = 1
POINT = Point(1, 2)
FLAGS = Flag.FAST
