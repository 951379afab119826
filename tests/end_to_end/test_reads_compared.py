"""Whatever changes what a library computes while it is traced is seen when the call is looked up, or is refused before.

Each case is a library in one or two modules, the first of which is called `settings`, and a statement. The library runs
as a kernel that is traced does. The statement then changes its result, so it must change what is compared.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from aot.compile import dsl

# Libraries in styles of all kinds; `again` imports one anew with variables of the environment.
COMPARED = {
    "an attribute of a static method": (
        """
        class Op:
            @staticmethod
            def scale(v): return v * Op.scale.by
        Op.scale.by = 2
        def apply(v): return Op.scale(v)
        """,
        "lib.Op.scale.by = 3",
    ),
    "an attribute of the function of a class method": (
        """
        class Op:
            @classmethod
            def scale(cls, v): return v * cls.scale.__func__.by
        Op.__dict__["scale"].__func__.by = 2
        def apply(v): return Op.scale(v)
        """,
        "lib.Op.__dict__['scale'].__func__.by = 3",
    ),
    "a function without a name that a class was given": (
        """
        class Op: pass
        Op.scale = lambda self, v: v * 2
        def apply(v): return Op().scale(v)
        """,
        "lib.Op.scale = lambda self, v: v * 3",
    ),
    "a method under a second name": (
        """
        class Size:
            def __add__(self, other): return 2
            __radd__ = __add__
        size = Size()
        def apply(v): return v * (1 + size)
        """,
        "lib.Size.__radd__ = lambda self, other: 3",
    ),
    "a field of a named tuple that is replaced": (
        """
        class Config(typing.NamedTuple):
            n: int = 2
        def apply(v): return v * Config().n
        """,
        "lib.Config.n = 3",
    ),
    "a slot that is replaced": (
        """
        class Config:
            __slots__ = ("n",)
            def __init__(self): self.n = 2
        config = Config()
        def apply(v): return v * config.n
        """,
        "lib.Config.n = 3",
    ),
    "a method of Python's own names that a function of Python's made": (
        """
        @functools.total_ordering
        class Size:
            def __init__(self, n): self.n = n
            def __eq__(self, other): return self.n == other.n
            def __lt__(self, other): return self.n < other.n
        def apply(v):
            return v * (2 if Size(1) <= Size(2) else 3)
        """,
        "lib.Size.__le__ = lambda self, other: False",
    ),
    "a partial method of Python's own names": (
        """
        class Op:
            __call__ = functools.partialmethod(lambda self, n, v: v * n, 2)
        def apply(v):
            return Op()(v)
        """,
        "lib.Op.__call__ = lambda self, v: v * 3",
    ),
    "one of two definitions of a function": (
        """
        if os.environ.get("FAST"):
            def scale(v):
                return v * 2
        else:
            def scale(v):
                return v * 3
        ---
        def apply(v):
            return settings.scale(v)
        """,
        "again(FAST='1')",
    ),
    "one of two definitions of a class": (
        """
        if os.environ.get("FAST"):
            class Op:
                def scale(self, v):
                    return v * 2
        else:
            class Op:
                def scale(self, v):
                    return v * 3
        ---
        def apply(v):
            return settings.Op().scale(v)
        """,
        "again(FAST='1')",
    ),
    "another base": (
        """
        class A:
            def scale(self, v):
                return v * 2
        class B:
            def scale(self, v):
                return v * 3
        class Op(A):
            pass
        ---
        def apply(v):
            return settings.Op().scale(v)
        """,
        "settings.Op.__bases__ = (settings.B,)",
    ),
    "a method that is replaced": (
        """
        class Op:
            def scale(self, v):
                return v * 2
        def other(self, v):
            return v * 3
        ---
        def apply(v):
            return settings.Op().scale(v)
        """,
        "settings.Op.scale = settings.other",
    ),
    "a method of Python's own names that is replaced": (
        """
        class Op:
            def __call__(self, v):
                return v * 2
        ---
        def apply(v):
            return settings.Op()(v)
        """,
        "settings.Op.__call__ = lambda self, v: v * 3",
    ),
    "code that is replaced": (
        """
        def scale(v):
            return v * 2
        def other(v):
            return v * 3
        def apply(v):
            return scale(v)
        """,
        "lib.scale.__code__ = lib.other.__code__",
    ),
    "a default of a constructor": (
        """
        class Config:
            def __init__(self, n=int(os.environ.get("N", 2))):
                self.n = n
        ---
        def apply(v):
            return v * settings.Config().n
        """,
        "again(N='4')",
    ),
    "a default of a dataclass with slots": (
        """
        @dataclasses.dataclass(frozen=True, slots=True)
        class Config:
            n: int = int(os.environ.get("N", 2))
        ---
        def apply(v):
            return v * settings.Config().n
        """,
        "again(N='4')",
    ),
    "the fields of a dataclass": (
        """
        @dataclasses.dataclass
        class Config:
            n: int = int(os.environ.get("N", 2))
        ---
        def apply(v):
            return v * dataclasses.fields(settings.Config)[0].default
        """,
        "again(N='4')",
    ),
    "a default of a named tuple": (
        """
        class Config(typing.NamedTuple):
            n: int = int(os.environ.get("N", 2))
        ---
        def apply(v):
            return v * settings.Config().n
        """,
        "again(N='4')",
    ),
    "the globals of a generated function": (
        """
        names = {"n": 2}
        exec("def inner(v):\\n    return v * n\\ndef scale(v):\\n    return inner(v)", names)
        scale = names["scale"]
        def apply(v):
            return scale(v)
        """,
        "lib.names['n'] = 4",
    ),
    "the globals of a function that was made of another's code": (
        """
        def scale(v):
            return v * n
        scale = types.FunctionType(scale.__code__, {"n": int(os.environ.get("N", 2)), "__name__": __name__})
        def apply(v):
            return scale(v)
        """,
        "again(N='4')",
    ),
    "a module that a generated function names": (
        """
        n = 2
        ---
        names = {"settings": settings}
        exec("def apply(v):\\n    return v * settings.n", names)
        apply = names["apply"]
        """,
        "settings.n = 4",
    ),
    "a class that a generated function names": (
        """
        class Config:
            n = 2
        ---
        names = {"Config": settings.Config}
        exec("def apply(v):\\n    return v * Config.n", names)
        apply = names["apply"]
        """,
        "settings.Config.n = 4",
    ),
    "a module that a generated function imports": (
        """
        n = 2
        ---
        names = {}
        exec(f"def apply(v):\\n    from {settings.__name__} import n\\n    return v * n", names)
        apply = names["apply"]
        """,
        "settings.n = 4",
    ),
    "a module inside a module that an object holds": (
        """
        class Op:
            def __init__(self, table):
                self.table = table
            def __call__(self, v):
                return v * self.table.settings.n
        n = 2
        ---
        apply = settings.Op(sys.modules[__name__])
        """,
        "settings.n = 4",
    ),
    "the namespace of a module": (
        """
        n = 2
        ---
        def apply(v):
            return v * settings.__dict__["n"]
        """,
        "settings.n = 4",
    ),
    "the namespace of a class": (
        """
        class Config:
            n = 2
        ---
        def apply(v):
            for name, item in vars(settings.Config).items():
                v = v * item if name == "n" else v
            return v
        """,
        "settings.Config.n = 4",
    ),
    "the globals of a function": (
        """
        n = 2
        def scale():
            pass
        ---
        def apply(v):
            return v * settings.scale.__globals__["n"]
        """,
        "settings.n = 4",
    ),
    "a module that is imported by a text": (
        """
        n = 2
        ---
        def apply(v):
            return v * importlib.import_module(settings.__name__).n
        """,
        "settings.n = 4",
    ),
    "a text that is evaluated": (
        """
        n = 2
        ---
        def apply(v):
            return v * eval("settings.n")
        """,
        "settings.n = 4",
    ),
    "an attribute that comes to be": (
        """
        class Config:
            pass
        ---
        def apply(v):
            return v * (2 if hasattr(settings.Config, "".join(["fa", "st"])) else 3)
        """,
        "settings.Config.fast = True",
    ),
    "a global that comes to be": (
        """
        def apply(v):
            try:
                return v * fast
            except NameError:
                return v
        """,
        "lib.fast = 4",
    ),
    "a name of Python's own that the module comes to have": (
        """
        def apply(v):
            return v * len((1, 2))
        """,
        "lib.len = lambda items: 9",
    ),
    "a module that cannot be imported, and then can": (
        """
        def apply(v):
            try:
                from no_such_module_here import n
            except ImportError:
                n = 3
            return v * n
        """,
        "sys.modules['no_such_module_here'] = types.SimpleNamespace(n=4, __name__='no_such_module_here')",
    ),
    "the object of a method of C": (
        """
        table = {"n": 2}
        look = table.get
        ---
        def apply(v):
            return v * settings.look("n")
        """,
        "settings.table['n'] = 4",
    ),
    "a private slot": (
        """
        class Config:
            __slots__ = ("__n",)
            def __init__(self, n):
                self.__n = n
            def n(self):
                return self.__n
        config = Config(2)
        ---
        def apply(v):
            return v * settings.config.n()
        """,
        "settings.config._Config__n = 4",
    ),
    "a number of another class": (
        """
        class Odd(int):
            def __add__(self, other):
                return 7
        n = 3
        ---
        def apply(v):
            return v * (settings.n + 1)
        """,
        "settings.n = settings.Odd(3)",
    ),
    "an attribute of a float": (
        """
        class Scale(float):
            pass
        n = Scale(2)
        n.extra = 2
        ---
        def extra(of):
            return of.extra
        def apply(v):
            return v * extra(settings.n)
        """,
        "settings.n.extra = 4",
    ),
    "a property of a module": (
        """
        class Settings(types.ModuleType):
            @property
            def n(self):
                return self.state["n"]
        state = {"n": 2}
        sys.modules[__name__].__class__ = Settings
        ---
        def apply(v):
            return v * settings.n
        """,
        "settings.state['n'] = 4",
    ),
    "the level of a logger": (
        """
        log = logging.getLogger("a library of the tests")
        def apply(v):
            return v * (2 if log.isEnabledFor(logging.DEBUG) else 3)
        """,
        "lib.log.setLevel(logging.DEBUG)",
    ),
    "a number of Python itself": (
        """
        def apply(v):
            return v * len(sys.argv)
        """,
        "sys.argv.append('more')",
    ),
    "a function that is registered for a class": (
        """
        class A:
            pass
        @functools.singledispatch
        def scale(of):
            return 2
        def apply(v):
            return v * scale(A())
        """,
        "lib.scale.register(lib.A, lambda of: 4)",
    ),
    "a class that is registered": (
        """
        class Known(abc.ABC):
            pass
        class A:
            pass
        def apply(v):
            return v * (2 if isinstance(A(), Known) else 3)
        """,
        "lib.Known.register(lib.A)",
    ),
    "a method that a protocol asks for": (
        """
        @typing.runtime_checkable
        class Fast(typing.Protocol):
            def fast(self): ...
        class A:
            pass
        def apply(v):
            return v * (2 if isinstance(A(), Fast) else 3)
        """,
        "lib.A.fast = lambda self: None",
    ),
    "what a cached method reads": (
        """
        numbers = [int(os.environ.get("N", 2))]
        class Config:
            @functools.lru_cache
            def n(self):
                return numbers[0]
        config = Config()
        config.n()
        ---
        def apply(v):
            return v * settings.config.n()
        """,
        "again(N='4')",
    ),
    "an annotation": (
        """
        def scale(v: int if os.environ.get("N") else float):
            pass
        ---
        def apply(v):
            return v * (2 if settings.scale.__annotations__["v"] is int else 3)
        """,
        "again(N='4')",
    ),
    "an attribute between underscores": (
        """
        class Config:
            __width__ = int(os.environ.get("N", 2))
        ---
        def apply(v):
            return v * settings.Config().__width__
        """,
        "again(N='4')",
    ),
    "the default of a context variable": (
        """
        n = contextvars.ContextVar("n", default=int(os.environ.get("N", 2)))
        get = n.get
        ---
        def apply(v):
            return v * settings.get()
        """,
        "again(N='4')",
    ),
    "the members of an enumeration": (
        """
        class Level(enum.Enum):
            LOW = int(os.environ.get("N", 2))
        ---
        def apply(v):
            for level in settings.Level:
                v = v * level.value
            return v
        """,
        "again(N='4')",
    ),
    "an attribute that a pattern names": (
        """
        class Config:
            n = int(os.environ.get("N", 2))
        ---
        def apply(v):
            match settings.Config():
                case settings.Config(n=2):
                    return v
            return v * 3
        """,
        "again(N='4')",
    ),
    "an attribute of a class inside of a function": (
        """
        def made(number):
            class Op:
                n = number
            return Op()
        op = made(int(os.environ.get("N", 2)))
        ---
        def apply(v):
            return v * settings.op.n
        """,
        "again(N='4')",
    ),
    "a range": (
        """
        steps = range(2)
        ---
        def apply(v):
            return v * len(settings.steps)
        """,
        "settings.steps = range(4)",
    ),
    "a loader that changes the source": (
        """
        def apply(v):
            return v * 2
        """,
        "through_a_hook('v * 2', 'v * 4')",
    ),
    "what Python leaves out of optimized code": (
        """
        def apply(v):
            return v * (2 if __debug__ else 3)
        """,
        "optimized()",
    ),
    "another function of Python's own under a name of Python": (
        """
        def apply(v):
            return v * max(2, 3)
        """,
        "builtins.max = builtins.min",
    ),
    "a function that a library puts into one of Python's modules": (
        """
        import string
        def apply(v):
            return v * len(string.capwords("ab"))
        """,
        "lib.string.capwords = lambda text: text * 2",
    ),
    "an object that a library puts into one of Python's modules": (
        """
        class Box:
            n = None
        sys.box_of_the_tests = Box()
        sys.box_of_the_tests.n = int(os.environ.get("N", 2))
        ---
        def apply(v):
            return v * sys.box_of_the_tests.n
        """,
        "again(N='4')",
    ),
    "a numpy structure": (
        """
        import numpy
        kind = numpy.dtype([("a", "i4"), ("b", "f4")])
        other = numpy.dtype([("a", "f4"), ("b", "i4")])
        ---
        def apply(v):
            return v * (2 if settings.kind.fields["a"][0].kind == "i" else 3)
        """,
        "settings.kind = settings.other",
    ),
    "a variable of the environment by its bytes": (
        """
        def apply(v):
            return v * int(os.environb.get(b"N", b"2"))
        """,
        "os.environ['N'] = '4'",
    ),
    "the signature of a function that does not run": (
        """
        if os.environ.get("N"):
            def scale(a, b): ...
        else:
            def scale(a): ...
        ---
        import inspect
        def apply(v):
            return v * len(inspect.signature(settings.scale).parameters)
        """,
        "again(N='4')",
    ),
    "the signature of a class": (
        """
        if os.environ.get("N"):
            class Op:
                def __init__(self, a, b): ...
        else:
            class Op:
                def __init__(self, a): ...
        ---
        import inspect
        def apply(v):
            return v * len(inspect.signature(settings.Op).parameters)
        """,
        "again(N='4')",
    ),
    "the hints of a function that does not run": (
        """
        def scale(v: int if os.environ.get("N") else float): ...
        ---
        def apply(v):
            return v * (2 if typing.get_type_hints(settings.scale)["v"] is int else 3)
        """,
        "again(N='4')",
    ),
    "a descriptor with slots": (
        """
        class Field:
            __slots__ = ("n",)
            def __init__(self, n):
                self.n = n
            def __get__(self, of, kind=None):
                return self.n
        class Config:
            n = Field(int(os.environ.get("N", 2)))
        ---
        def apply(v):
            config = settings.Config()
            return v * config.n
        """,
        "again(N='4')",
    ),
    "the defaults of a named tuple's constructor": (
        """
        import collections
        Config = collections.namedtuple("Config", "n")
        Config.__new__.__defaults__ = (int(os.environ.get("N", 2)),)
        ---
        def apply(v):
            return v * settings.Config().n
        """,
        "again(N='4')",
    ),
    "the defaults of a typed named tuple's constructor": (
        """
        class Config(typing.NamedTuple):
            n: int = 2
        ---
        def apply(v):
            return v * settings.Config().n
        """,
        "settings.Config.__new__.__defaults__ = (4,)",
    ),
    "the defaults of a dataclass's constructor": (
        """
        @dataclasses.dataclass
        class Config:
            n: int = 2
        ---
        def apply(v):
            return v * settings.Config().n
        """,
        "settings.Config.__init__.__defaults__ = (4,)",
    ),
    "bytes that can be changed": (
        """
        text = b"ab"
        ---
        def apply(v):
            return v * (2 if isinstance(settings.text, bytes) else 3)
        """,
        "settings.text = bytearray(settings.text)",
    ),
    "a set that cannot be changed": (
        """
        names = {1, 2}
        ---
        def apply(v):
            return v * (2 if isinstance(settings.names, set) else 3)
        """,
        "settings.names = frozenset(settings.names)",
    ),
    "a dict that cannot be changed": (
        """
        names = {1: 2}
        ---
        def apply(v):
            return v * (2 if isinstance(settings.names, dict) else 3)
        """,
        "settings.names = types.MappingProxyType(settings.names)",
    ),
    "a slot of a list": (
        """
        class Shape(list):
            __slots__ = ("n",)
        shape = Shape()
        shape.n = 2
        ---
        def n_of(shape):
            return shape.n
        def apply(v):
            return v * n_of(settings.shape)
        """,
        "settings.shape.n = 4",
    ),
    "a slot of a text": (
        """
        class Name(str):
            __slots__ = ("n",)
        name = Name("a")
        name.n = 2
        ---
        def n_of(name):
            return name.n
        def apply(v):
            return v * n_of(settings.name)
        """,
        "settings.name.n = 4",
    ),
    "an attribute of a partial": (
        """
        scale = functools.partial(int, 3)
        scale.n = 2
        ---
        def n_of(function):
            return function.n
        def apply(v):
            return v * n_of(settings.scale)
        """,
        "settings.scale.n = 4",
    ),
    "an attribute of a cached function": (
        """
        @functools.cache
        def scale():
            return 3
        scale.n = 2
        ---
        def n_of(function):
            return function.n
        def apply(v):
            return v * n_of(settings.scale)
        """,
        "settings.scale.n = 4",
    ),
    "a dataclass that a call makes": (
        """
        Config = dataclasses.make_dataclass("Config", [("n", int, int(os.environ.get("N", 2)))])
        ---
        def apply(v):
            return v * settings.Config().n
        """,
        "again(N='4')",
    ),
    "a module that answers for few names": (
        """
        table = {"n": 2}
        def __getattr__(name):
            return table[name]
        ---
        def apply(v):
            return v * settings.n
        """,
        "settings.table['n'] = 4",
    ),
    "a variable that only a cached function's caller names": (
        """
        @functools.cache
        def asked(name, default=None):
            return int(os.environ.get("LIB_" + name, default))
        asked("N", default=2)
        ---
        def apply(v):
            return v * settings.asked("N", default=2)
        """,
        "os.environ['LIB_N'] = '4'; settings.asked.cache_clear()",
    ),
    "how a dataclass compares": (
        """
        @dataclasses.dataclass(eq=bool(os.environ.get("N")))
        class Config:
            n: int = 1
        ---
        def apply(v):
            return v * (2 if settings.Config() == settings.Config() else 3)
        """,
        "again(N='4')",
    ),
    "whether a dataclass can be changed": (
        """
        @dataclasses.dataclass(frozen=bool(os.environ.get("N")))
        class Config:
            n: int = 1
        ---
        def apply(v):
            config = settings.Config()
            try:
                config.n = 2
            except dataclasses.FrozenInstanceError:
                return v * 3
            return v
        """,
        "again(N='4')",
    ),
    "what a field of a dataclass says": (
        """
        @dataclasses.dataclass
        class Config:
            n: int = dataclasses.field(default=1, metadata={"scale": int(os.environ.get("N", 2))})
        ---
        def apply(v):
            return v * dataclasses.fields(settings.Config)[0].metadata["scale"]
        """,
        "again(N='4')",
    ),
    "a hint that is replaced": (
        """
        class Config:
            n: typing.Literal[2]
        ---
        def apply(v):
            return v * typing.get_args(typing.get_type_hints(settings.Config)["n"])[0]
        """,
        "settings.Config.__annotations__['n'] = settings.typing.Literal[4]",
    ),
    "a method that Python looks for and a class comes to have": (
        """
        class Config:
            pass
        ---
        def apply(v):
            return v * (2 if settings.Config() else 3)
        """,
        "settings.Config.__bool__ = lambda self: False",
    ),
    "a dict of one of Python's modules": (
        """
        def apply(v):
            return v * len(sys._xoptions)
        """,
        "sys._xoptions['more'] = True",
    ),
    "a descriptor that keeps values in its object": (
        """
        class Scaled:
            def __init__(self, by): self.by = by
            def __set_name__(self, of, name): self.name = name
            def __set__(self, obj, v): obj.__dict__[self.name] = v
            def __get__(self, obj, kind=None): return self if obj is None else obj.__dict__[self.name] * self.by
        class Config:
            n = Scaled(int(os.environ.get("N", 2)))
            def __init__(self): self.n = 3
        CONFIG = Config()
        ---
        def apply(v): return v * settings.CONFIG.n
        """,
        "again(N='4')",
    ),
    "a property that hides what its object holds": (
        """
        class Config:
            def __init__(self): self.__dict__['n'] = 3; self.k = int(os.environ.get("N", 2))
            @property
            def n(self): return self.k
        CONFIG = Config()
        ---
        def apply(v): return v * settings.CONFIG.n
        """,
        "again(N='4')",
    ),
    "what a method of Python encloses in a class of a function": (
        """
        def made(n):
            class Op:
                def __call__(self, v): return v * n
            return Op()
        op = made(int(os.environ.get("N", 2)))
        ---
        def apply(v): return settings.op(v)
        """,
        "again(N='4')",
    ),
    "one of two classes of one name in a function": (
        """
        def made(n):
            if n == 2:
                class Op:
                    def __call__(self, v): return v * 2
            else:
                class Op:
                    def __call__(self, v): return v * 3
            return Op()
        op = made(int(os.environ.get("N", 2)))
        ---
        def apply(v): return settings.op(v)
        """,
        "again(N='4')",
    ),
    "an attribute of a base in a function": (
        """
        def made(n):
            class A: k = n
            class B(A): pass
            return B()
        op = made(int(os.environ.get("N", 2)))
        ---
        def f(o): return o.k
        def apply(v): return v * f(settings.op)
        """,
        "again(N='4')",
    ),
    "what a method of a named tuple encloses in a function": (
        """
        def made(k):
            class P(typing.NamedTuple):
                a: int = 1
                def scale(self, v): return v * k
            return P()
        p = made(int(os.environ.get("N", 2)))
        ---
        def apply(v): return settings.p.scale(v)
        """,
        "again(N='4')",
    ),
    "the default of a dataclass in a function": (
        """
        def made(n):
            @dataclasses.dataclass
            class C:
                x: list = dataclasses.field(default_factory=lambda: [n])
            return C
        K = made(int(os.environ.get("N", 2)))
        ---
        def apply(v): return v * settings.K().x[0]
        """,
        "again(N='4')",
    ),
    "a method of a class that a call makes": (
        """
        def make(n):
            return type("Gen", (), {"__call__": lambda self, v: v * n})
        Op = make(int(os.environ.get("N", 2)))
        ---
        def apply(v): return settings.Op()(v)
        """,
        "again(N='4')",
    ),
    "an attribute between underscores of a class that a call makes": (
        """
        Op = type("Gen", (), {"__width__": int(os.environ.get("N", 2))})
        op = Op()
        def f(o): return o.__width__
        ---
        def apply(v): return settings.f(settings.op) * v
        """,
        "again(N='4')",
    ),
    "a method of a class that generated code defines": (
        """
        ns = {"__name__": __name__}
        exec("class G:\\n    def __call__(self, v): return v * " + os.environ.get("N", "2"), ns)
        G = ns["G"]
        ---
        def apply(v): return settings.G()(v)
        """,
        "again(N='4')",
    ),
    "one of several functions of one name": (
        """
        OPS = {}
        def register(name):
            def deco(f):
                OPS[name] = f
                return f
            return deco
        @register("a")
        def _(v): return v * 2
        @register("b")
        def _(v): return v * 3
        chosen = OPS["a" if int(os.environ.get("N", 2)) == 2 else "b"]
        ---
        def apply(v): return settings.chosen(v)
        """,
        "again(N='4')",
    ),
    "a function that only a table has": (
        """
        OPS = {}
        if int(os.environ.get("N", 2)) == 2:
            def f(v): return v * 2
        else:
            def f(v): return v * 3
        OPS["f"] = f
        del f
        ---
        def apply(v): return settings.OPS["f"](v)
        """,
        "again(N='4')",
    ),
    "a function that has the name of another": (
        """
        def relu(v): return v * 2
        def other():
            def relu(v): return v * 3
            relu.__qualname__ = "relu"
            return relu
        f = relu if int(os.environ.get("N", 2)) == 2 else other()
        ---
        def apply(v): return settings.f(v)
        """,
        "again(N='4')",
    ),
    "a class that has the name of another": (
        """
        class Op:
            n = 2
        def other():
            class Op:
                n = 3
            Op.__qualname__ = "Op"
            return Op
        K = Op if int(os.environ.get("N", 2)) == 2 else other()
        ---
        def apply(v): return v * settings.K.n
        """,
        "again(N='4')",
    ),
    "a function that is wrapped": (
        """
        def scaled(n):
            def deco(f):
                @functools.wraps(f)
                def w(v): return f(v) * n
                return w
            return deco
        def epi(v): return v
        f = epi if int(os.environ.get("N", 2)) == 2 else scaled(3)(epi)
        ---
        def apply(v): return settings.f(v)
        """,
        "again(N='4')",
    ),
    "one of several lambdas of two lines": (
        """
        OPS = [
            lambda v:
                v * 2,
            lambda v:
                v * 3,
        ]
        f = OPS[0 if int(os.environ.get("N", 2)) == 2 else 1]
        ---
        def apply(v): return settings.f(v)
        """,
        "again(N='4')",
    ),
    "an annotation of a function in a list": (
        """
        def scale(v: int if int(os.environ.get("N", 2)) == 2 else float): pass
        FUNCS = [scale]
        ---
        def apply(v):
            for f in settings.FUNCS: v = v * (2 if f.__annotations__["v"] is int else 3)
            return v
        """,
        "again(N='4')",
    ),
    "the documentation of a function in a list": (
        """
        def scale(v): pass
        scale.__doc__ = str(int(os.environ.get("N", 2)))
        FUNCS = [scale]
        ---
        def apply(v):
            for f in settings.FUNCS: v = v * int(f.__doc__)
            return v
        """,
        "again(N='4')",
    ),
    "the name that a function was given": (
        """
        def make(name):
            def f(v): return v
            f.__name__ = name
            return f
        f = make("relu" if int(os.environ.get("N", 2)) == 2 else "gelu")
        def name_of(f): return f.__name__
        ---
        def apply(v): return v * (2 if settings.name_of(settings.f) == "relu" else 3)
        """,
        "again(N='4')",
    ),
    "an attribute of a function that no name leads to": (
        """
        def make(n):
            def f(v): return v
            f.n = n
            return f
        f = make(int(os.environ.get("N", 2)))
        def n_of(f): return f.n
        ---
        def apply(v): return v * settings.n_of(settings.f)
        """,
        "again(N='4')",
    ),
    "which of two empty objects": (
        """
        class _S: pass
        A, B = _S(), _S()
        mode = A if int(os.environ.get("N", 2)) == 2 else B
        ---
        def apply(v): return v * (2 if settings.mode is settings.A else 3)
        """,
        "again(N='4')",
    ),
    "an attribute of the class of a number": (
        """
        class Base(int):
            def __mul__(self, o): return int(self) * int(o) * self.scale
        class Tile(Base):
            scale = int(os.environ.get("N", 2))
        n = Tile(3)
        ---
        def apply(v): return settings.n * v
        """,
        "again(N='4')",
    ),
    "an attribute of the class of a dict": (
        """
        class Table(dict):
            scale = int(os.environ.get("N", 2))
        t = Table(a=1)
        ---
        def apply(v): return settings.t.scale * v
        """,
        "again(N='4')",
    ),
    "an attribute of the class of a tuple": (
        """
        class Shape(tuple):
            scale = int(os.environ.get("N", 2))
        t = Shape((1, 2))
        ---
        def f(t): return t.scale
        def apply(v): return f(settings.t) * v
        """,
        "again(N='4')",
    ),
    "an attribute of the class of a text": (
        """
        class Name(str):
            bits = int(os.environ.get("N", 2))
        t = Name("a")
        ---
        def apply(v): return settings.t.bits * v
        """,
        "again(N='4')",
    ),
    "an attribute of bytes": (
        """
        class B(bytes): pass
        b = B(b"x"); b.n = int(os.environ.get("N", 2))
        def f(b): return b.n
        ---
        def apply(v): return v * settings.f(settings.b)
        """,
        "again(N='4')",
    ),
    "an attribute of the class of a path": (
        """
        import pathlib
        class B(pathlib.PurePosixPath):
            n = int(os.environ.get("N", 2))
        b = B("x")
        ---
        def apply(v): return v * settings.b.n
        """,
        "again(N='4')",
    ),
    "an attribute of the class of what a thread has": (
        """
        class L(threading.local):
            n = int(os.environ.get("N", 2))
        l = L()
        ---
        def apply(v): return v * settings.l.n
        """,
        "again(N='4')",
    ),
    "the namespace of the class of an object": (
        """
        class Config:
            width = int(os.environ.get("N", 2))
            def total(self):
                return sum(x for n, x in self.__class__.__dict__.items() if isinstance(x, int))
        ---
        def apply(v): return v * settings.Config().total()
        """,
        "again(N='4')",
    ),
    "an attribute of a class whose base has the method": (
        """
        class Base:
            @classmethod
            def total(cls): return cls.width
        class Config(Base):
            width = int(os.environ.get("N", 2))
        ---
        def apply(v): return v * settings.Config.total()
        """,
        "again(N='4')",
    ),
    "one of two functions of one name of CuTe DSL": (
        """
        import cutlass.cute as cute
        def pick(): return cute.math.exp2 if int(os.environ.get("N", 2)) == 2 else cute.arch.exp2
        op = pick()
        def name(f): return f.__module__
        ---
        def apply(v): return v * len(settings.op.__module__)
        """,
        "again(N='4')",
    ),
    "one of two classes of one name of CuTe DSL": (
        """
        import cutlass.cute as cute
        from cutlass.cute.nvgpu import warp, warpgroup
        op = warp.MmaF16BF16Op if int(os.environ.get("N", 2)) == 2 else warpgroup.MmaF16BF16Op
        ---
        def apply(v): return v * len(str(settings.op))
        """,
        "again(N='4')",
    ),
    "a method that a library puts into a class of CuTe DSL": (
        """
        import cutlass.cute as cute
        def a(self, v): return v * 2
        def b(self, v): return v * 3
        cute.Layout.my_scale = a if int(os.environ.get("N", 2)) == 2 else b
        class L: pass
        ---
        import cutlass.cute as cute
        def apply(v): return cute.Layout.my_scale(None, v)
        """,
        "again(N='4')",
    ),
    "a method that a library puts into a class of CuTe DSL and an object has": (
        """
        from cutlass.utils import HardwareInfo
        def a(self, v): return v * 2
        def b(self, v): return v * 3
        HardwareInfo.my_scale = a if int(os.environ.get("N", 2)) == 2 else b
        ---
        def apply(v):
            h = object.__new__(settings.HardwareInfo)
            return h.my_scale(v)
        """,
        "again(N='4')",
    ),
    "the order of the attributes that a pattern takes": (
        """
        class P:
            __match_args__ = ("a", "b") if int(os.environ.get("N", 2)) == 2 else ("b", "a")
            a = 2; b = 3
        ---
        def apply(v):
            match settings.P():
                case settings.P(x): return v * x
        """,
        "again(N='4')",
    ),
    "a method that is not abstract any more": (
        """
        class P(abc.ABC):
            @abc.abstractmethod
            def f(self): ...
        class Q(P):
            if int(os.environ.get("N", 2)) == 2:
                def f(self): return 1
        ---
        def apply(v):
            try: settings.Q(); return v
            except TypeError: return v * 3
        """,
        "again(N='4')",
    ),
    "the level of a logger by its attribute": (
        """
        def apply(v): return v * (2 if logging.getLogger('libx').level <= logging.DEBUG else 3)
        """,
        "logging.getLogger('libx').setLevel(30)",
    ),
    "a logger that is disabled": (
        """
        log = logging.getLogger('libx')
        def apply(v): return v * (2 if log.isEnabledFor(logging.ERROR) else 3)
        """,
        "logging.getLogger('libx').disabled = True",
    ),
    "a level below which nothing is logged": (
        """
        log = logging.getLogger('liby')
        def apply(v): return v * (2 if log.isEnabledFor(logging.ERROR) else 3)
        """,
        "logging.disable(50)",
    ),
    "an attribute of a logger": (
        """
        log = logging.getLogger('libx')
        log.n = int(os.environ.get("N", 2))
        def f(l): return l.n
        def apply(v): return v * f(log)
        """,
        "again(N='4')",
    ),
    "the level of the outermost logger": (
        """
        def apply(v): return v * (2 if logging.root.level <= logging.DEBUG else 3)
        """,
        "logging.root.setLevel(10)",
    ),
    "an attribute of an object of one of Python's modules": (
        """
        def apply(v): return v * sys.implementation.version[1]
        """,
        "sys.implementation.version = (3, 99)",
    ),
    "whether there is a module": (
        """
        import importlib.util
        def apply(v): return v * (2 if importlib.util.find_spec("not_there") else 3)
        """,
        "sys.modules['not_there'] = type('', (), {'__spec__': 1})",
    ),
    "whether there is a module that a function tries to import": (
        """
        def apply(v):
            try:
                import jaxlib
                return v * 2
            except ImportError:
                return v * 3
        """,
        "import importlib.util\nis_there = importlib.util.find_spec('jaxlib')\n"
        "sys.modules['jaxlib'] = None if is_there else type('', (), {'__spec__': 1})",
    ),
    "the version of a distribution": (
        """
        from importlib.metadata import version
        def apply(v): return v * len(version("nvidia-cutlass-dsl"))
        """,
        "importlib.metadata.distribution = lambda name: type('', (), {'version': '4.10.0'})",
    ),
    "whether there is a distribution, which a cached function asks": (
        """
        import functools
        from importlib.metadata import PackageNotFoundError, version
        @functools.cache
        def is_there():
            try:
                return bool(version("not-there"))
            except PackageNotFoundError:
                return False
        def apply(v): return v * (2 if is_there() else 3)
        """,
        "importlib.metadata.distribution = lambda name: type('', (), {'version': '4.10.0'})\nlib.is_there.cache_clear()",
    ),
    "another function of C in one of Python's modules": (
        """
        import math
        def apply(v): return v * math.sqrt(4)
        """,
        "lib.math.sqrt = lib.math.exp",
    ),
    "an item of an array": (
        """
        import numpy as np
        table = np.array([2, 3])
        def apply(v): return v * int(np.prod(table))
        """,
        "lib.table[1] = 4",
    ),
    "another function of numpy": (
        """
        import numpy as np
        table = {"f": np.add}
        def apply(v): return v * int(table["f"](2, 3))
        """,
        "import numpy; lib.table['f'] = numpy.multiply",
    ),
    "another method of a class of C": (
        """
        table = {"f": str.upper}
        def apply(v): return v * ord(table["f"]("a"))
        """,
        "lib.table['f'] = str.lower",
    ),
    "what a default of a named tuple holds": (
        """
        class Sizes(typing.NamedTuple):
            all: list = [2]
        def apply(v): return v * len(Sizes().all)
        """,
        "lib.Sizes.__new__.__defaults__[0].append(3)",
    ),
    "the attributes that a pattern takes, in place": (
        """
        class P:
            __match_args__ = ("a", "b")
            a = 2; b = 3
        def apply(v):
            match P():
                case P(x): return v * x
        """,
        "lib.P.__match_args__ = ('b', 'a')",
    ),
    "the default of a field, in place": (
        """
        @dataclasses.dataclass
        class Config:
            n: int = 2
        def apply(v): return v * dataclasses.fields(Config)[0].default
        """,
        "lib.Config.__dataclass_fields__['n'].default = 3",
    ),
    "the name of a function that is passed on": (
        """
        def mode(): pass
        def length(f): return len(f.__name__)
        def apply(v): return v * length(mode)
        """,
        "lib.mode.__name__ = 'another'",
    ),
    "the name of a class that is passed on": (
        """
        class Mode: pass
        def length(f): return len(f.__name__)
        def apply(v): return v * length(Mode)
        """,
        "lib.Mode.__name__ = 'Another'",
    ),
    "a module that is edited and loaded again": (
        """
        def scale(v): return v * 2
        ---
        def apply(v): return settings.scale(v)
        """,
        "path = Path(settings.__file__)\n"
        "path.write_text(path.read_text().replace('v * 2', 'v * 345'))\n"
        "importlib.reload(settings)",
    ),
    "what a cached function reads by way of a dict": (
        """
        import collections
        most = 2
        held = {'a': lambda: most}
        @functools.cache
        def sizes(): return collections.deque([held['a']()])
        sizes()
        def apply(v): return v * sizes()[0]
        """,
        "lib.most = 3; lib.sizes.cache_clear()",
    ),
    "what a cached function reads by way of a partial": (
        """
        import collections
        most = 2
        held = functools.partial(lambda k: most, 1)
        @functools.cache
        def sizes(): return collections.deque([held()])
        sizes()
        def apply(v): return v * sizes()[0]
        """,
        "lib.most = 3; lib.sizes.cache_clear()",
    ),
    "what a cached function reads by way of an object": (
        """
        import collections
        most = 2
        class Sizes:
            def pick(self): return most
        held = Sizes()
        @functools.cache
        def sizes(): return collections.deque([held.pick()])
        sizes()
        def apply(v): return v * sizes()[0]
        """,
        "lib.most = 3; lib.sizes.cache_clear()",
    ),
    "what a cached function reads by way of an object that is called": (
        """
        import collections
        most = 2
        class Sizes:
            def __call__(self): return most
        held = Sizes()
        @functools.cache
        def sizes(): return collections.deque([held()])
        sizes()
        def apply(v): return v * sizes()[0]
        """,
        "lib.most = 3; lib.sizes.cache_clear()",
    ),
    "what a cached function reads by way of a function inside": (
        """
        import collections
        most = 2
        held = None
        @functools.cache
        def sizes(): return collections.deque([(lambda: most)()])
        sizes()
        def apply(v): return v * sizes()[0]
        """,
        "lib.most = 3; lib.sizes.cache_clear()",
    ),
    "a private attribute that a class comes to have": (
        """
        class Config: pass
        config = Config()
        def apply(v):
            try: return v * config._fast
            except AttributeError: return v
        """,
        "lib.Config._fast = 3",
    ),
    "a private attribute that a class answers for": (
        """
        class Config:
            def __getattr__(self, name): return 2
        config = Config()
        def apply(v): return v * config._fast
        """,
        "lib.Config._fast = 3",
    ),
    "a name that Python comes to have": (
        """
        def apply(v):
            try: return v * fancy
            except NameError: return v
        """,
        "builtins.fancy = 3",
    ),
    "which of two marks that stand for nothing given": (
        """
        first, second = object(), object()
        def scale(by=first): return 2 if by is first else 3
        def apply(v): return v * scale()
        """,
        "lib.scale.__defaults__ = (lib.second,)",
    ),
    "a class that is registered for a subclass": (
        """
        class Base(abc.ABC): pass
        class Derived(Base): pass
        class Config: pass
        config = Config()
        def apply(v): return v * (2 if isinstance(config, Base) else 3)
        """,
        "lib.Derived.register(lib.Config)",
    ),
    "a function of Python's that a function imports": (
        """
        def apply(v):
            import math
            return v * math.cosh(4)
        """,
        "import math; math.cosh = math.sinh",
    ),
    "a number of Python's that a function imports": (
        """
        def apply(v):
            import math
            return v * math.tau
        """,
        "import math; math.tau = 3.0",
    ),
    "a number of a module of Python in a table": (
        """
        import math

        table = {"m": math}
        def apply(v):
            return v * table["m"].pi
        """,
        "import math; math.pi = 3",
    ),
    "a list of a module of Python that is a default": (
        """
        def apply(v, of=sys):
            return v * len(of.argv)
        """,
        "sys.argv.append('x')",
    ),
    "a list of a module of Python by its name as a text": (
        """
        import keyword

        def apply(v):
            return v * len(getattr(keyword, "kw" + "list"))
        """,
        "import keyword; keyword.kwlist = []",
    ),
    "a name that a module of CuTe DSL comes to have": (
        """
        import cutlass.cute as cute

        def apply(v):
            return v * (3 if hasattr(cute.arch, "speed") else 2)
        """,
        "import cutlass.cute as cute; cute.arch.speed = 1",
    ),
    "a property that a metaclass comes to have": (
        """
        class Kind(type):
            pass
        class Op(metaclass=Kind):
            n = 2
        def apply(v):
            return v * Op.n
        """,
        "lib.Kind.n = property(lambda kind: 3)",
    ),
    "an attribute of a base by its name as a text": (
        """
        class Base:
            most = 2
        class Op(Base):
            def get(self):
                return getattr(super(), "mo" + "st")
        ---
        def apply(v):
            return v * settings.Op().get()
        """,
        "settings.Base.most = 3",
    ),
    "the signature that a function says it has": (
        """
        import inspect

        def scale(a, b=1):
            pass
        def apply(v):
            return v * len(inspect.signature(scale).parameters)
        """,
        "import inspect; lib.scale.__signature__ = inspect.Signature()",
    ),
    "a text of a class of Python": (
        """
        import string

        def apply(v):
            return v * len(string.Template.delimiter)
        """,
        "import string; string.Template.delimiter = '$$'",
    ),
    "what a dtype of numpy says": (
        """
        import numpy

        kind = numpy.dtype("i4", metadata={"n": 2})
        def apply(v):
            return v * kind.metadata["n"]
        """,
        "import numpy; lib.kind = numpy.dtype('i4', metadata={'n': 3})",
    ),
    "what a cached method of a class reads": (
        """
        held = [2]
        class Op:
            @classmethod
            @functools.cache
            def most(cls):
                return held[0]
        Op.most()
        ---
        def apply(v):
            return v * settings.Op.most()
        """,
        "settings.held[0] = 3; settings.Op.most.__func__.cache_clear()",
    ),
    "what a cached function in a class reads": (
        """
        held = [2]
        class Op:
            @staticmethod
            @functools.cache
            def most():
                return held[0]
        Op.most()
        ---
        def apply(v):
            return v * settings.Op.most()
        """,
        "settings.held[0] = 3; settings.Op.most.cache_clear()",
    ),
    "what a cached property reads": (
        """
        held = [2]
        class Op:
            @property
            @functools.cache
            def most(self):
                return held[0]
        op = Op()
        op.most
        ---
        def apply(v):
            return v * settings.op.most
        """,
        "settings.held[0] = 3; settings.Op.most.fget.cache_clear()",
    ),
    "what a cached function in a table reads": (
        """
        held = [2]
        table = {"most": functools.cache(lambda: held[0])}
        table["most"]()
        ---
        def apply(v):
            return v * settings.table["most"]()
        """,
        "settings.held[0] = 3; settings.table['most'].cache_clear()",
    ),
    "what a cached function in a closure reads": (
        """
        held = [2]
        def made():
            @functools.cache
            def most():
                return held[0]
            most()
            def get():
                return most()
            get.clear = most.cache_clear
            return get
        get = made()
        ---
        def apply(v):
            return v * settings.get()
        """,
        "settings.held[0] = 3; settings.get.clear()",
    ),
    "what a cached function reads that is a default": (
        """
        held = [2]
        @functools.cache
        def most():
            return held[0]
        most()
        ---
        def apply(v, ask=settings.most):
            return v * ask()
        """,
        "settings.held[0] = 3; settings.most.cache_clear()",
    ),
    "what a cached function reads that is wrapped": (
        """
        held = [2]
        def wrap(function):
            @functools.wraps(function)
            def wrapped():
                return function()
            return wrapped
        @wrap
        @functools.cache
        def most():
            return held[0]
        most()
        ---
        def apply(v):
            return v * settings.most()
        """,
        "settings.held[0] = 3; settings.most.__wrapped__.cache_clear()",
    ),
    "what a cached function reads that is registered for a class": (
        """
        held = [2]
        @functools.singledispatch
        def scale(v):
            return v
        @scale.register(int)
        @functools.cache
        def of_numbers(v):
            return v * held[0]
        scale(3)
        ---
        def apply(v):
            return settings.scale(v)
        """,
        "settings.held[0] = 3; settings.of_numbers.cache_clear()",
    ),
    "what an annotation names that is a text, of a function that does not run": (
        """
        Kind = int
        def scale(v: "typing.Optional[Kind]"): ...
        ---
        def apply(v):
            return v * (2 if typing.get_type_hints(settings.scale)["v"] == typing.Optional[int] else 3)
        """,
        "settings.Kind = float",
    ),
    "what an annotation names that is a text, of a base of a class": (
        """
        Kind = int
        class Base:
            n: "Kind"
        class Config(Base):
            pass
        ---
        def apply(v):
            return v * (2 if typing.get_type_hints(settings.Config)["n"] is int else 3)
        """,
        "settings.Kind = float",
    ),
    "what a function reads that runs in a thread of its own": (
        """
        n = 2
        def read(out):
            out.append(n)
        ---
        def apply(v):
            out = []
            thread = threading.Thread(target=settings.read, args=(out,))
            thread.start()
            thread.join()
            return v * out[0]
        """,
        "settings.n = 4",
    ),
}

# What changes nothing: a library that does this is captured, and found again.
UNREAD = {
    "a memo of what a class compiles, which no code that runs names": (
        """
        held = [2]
        class Op:
            @functools.cache
            @staticmethod
            def compiled(n):
                return [held[0] * n]
            def scale(self, v):
                return v * 2
        Op.compiled(3)
        held[0] = 4
        ---
        def apply(v):
            return settings.Op().scale(v)
        """,
        "settings.held[0] = 5",
    ),
    "a cached function in a table that nobody called": (
        """
        import time
        table = {"now": functools.cache(lambda: time.time()), "most": 2}
        ---
        def apply(v):
            return v * settings.table["most"]
        """,
        "",
    ),
    "a module of Python in a table, and names that others have, too": (
        """
        table = {"s": sys}
        class A:
            path = modules = 2
        def apply(v):
            return v * A().path * table["s"].maxunicode
        """,
        "sys.path.append('x')",
    ),
    "a function of a module whose other names are named, too": (
        """
        class A:
            argv = 2
        def apply(v):
            return v * A().argv if v else sys.exit()
        """,
        "sys.argv.append('x')",
    ),
    "a warning is shown": (
        """
        import warnings
        def apply(v):
            warnings.warn("old")
            return v
        """,
        "",
    ),
    "functions of numpy": (
        """
        import numpy as np
        from numpy import ceil
        def apply(v): return v * int(np.prod((2, 3))) + int(ceil(2.5))
        """,
        "",
    ),
    "another function of the module": (
        """
        def other(): return 3
        def apply(v): return v
        """,
        "lib.other = None",
    ),
    "another attribute of a class": (
        """
        class Config:
            n, other = 2, 3
        def apply(v): return v * Config.n
        """,
        "lib.Config.other = 4",
    ),
    "a function that runs but holds no state": (
        """
        import itertools, math, operator, re
        def apply(v):
            found = re.match("a+", "aab")
            return v * math.prod(operator.mul(*pair) for pair in itertools.product([1, 2], [3])) + len(found.group())
        """,
        "",
    ),
    "a path of texts": (
        """
        from pathlib import Path
        def apply(v): return v * len(os.path.join("a", os.path.normpath("b//c"))) + len(str(Path("a") / "b"))
        """,
        "",
    ),
    "a lock and a logger": (
        """
        log, lock = logging.getLogger("libz"), threading.Lock()
        def apply(v):
            with lock:
                log.debug("traced")
                return v
        """,
        "",
    ),
    "a mark that stands for nothing given": (
        """
        missing = object()
        ---
        missing = settings.missing
        def scale(by=missing): return 2 if by is missing else 3
        def apply(v): return v * scale()
        """,
        "again()",
    ),
    "a memo that tracing fills": (
        """
        @functools.lru_cache
        def scaled(v): return v * 2
        def apply(v): return scaled(v)
        """,
        "lib.scaled.cache_clear()",
    ),
}

# What leads to values that no name tells, or that no other process has, and what the refusal names.
REFUSED = {
    "import numpy\na = numpy.array([1.5])\ndef apply(v):\n    return v * len(str(a))": "_array_str_implementation",
    "import numpy\na = numpy.array([1.5])\ndef apply(v):\n    return v * len(f'{a!r}')": "_array_repr_implementation",
    "log = logging.getLogger('lib')\ndef apply(v):\n    return v * (2 + log.hasHandlers())": "hasHandlers",
    "from random import random\ndef apply(v):\n    return v * random()": "random.random",
    "def apply(v):\n    return v * os.getpid()": "os.getpid",
    "def apply(v):\n    return v * os.cpu_count()": "os.cpu_count",
    "def apply(v):\n    return v * len(sys.modules)": "sys.modules",
    "def apply(v):\n    return v * len(__import__('os').sep)": "__import__",
    "class A: pass\ndef apply(v):\n    return v * len(A.__subclasses__())": "__subclasses__",
    "class A:\n    n = 2\ndef apply(v):\n    return v * object.__getattribute__(A(), ''.join('n'))": "__getattribute__",
    "import importlib.util\ndef apply(v):\n    return v * len(importlib.util.find_spec('json').origin)": "find_spec",
    "from importlib.metadata import distribution\ndef apply(v):\n    return v * len(distribution('numpy').version)": "opens the file",
    "from importlib.metadata import distribution\nd = distribution('numpy')\ndef apply(v):\n    return v * len(d.version)": "importlib.metadata.version",
    "import inspect\nclass A:\n    n = 2\ndef apply(v):\n    return v * len(inspect.getmembers(A))": "getmembers",
    "import shutil\ndef apply(v):\n    return v * (2 if shutil.which('ls') else 3)": "which",
    "from pathlib import Path\ndef apply(v):\n    return v * len(str(Path.cwd()))": "pathlib",
    "def apply(v):\n    return v * len(os.path.abspath('x'))": "abspath",
    "def apply(v):\n    return v * (2 if os.path.islink('x') else 3)": "islink",
    "def apply(v):\n    return v * len(os.environ)": "as a whole",
    "from datetime import datetime\ndef apply(v):\n    return v * datetime.now().second": "datetime.now",
    "from decimal import Decimal\ndef apply(v):\n    return v * len(str(Decimal(1) / 3))": "Decimal",
    "import numpy\ndef apply(v):\n    return v * len(numpy.geterr()['over'])": "geterr",
    "def apply(v):\n    return v * sys.getrecursionlimit()": "getrecursionlimit",
    "from sys import getrefcount\ndef apply(v):\n    return v * getrefcount(v)": "getrefcount",
    "def apply(v):\n    return v * (2 if sys.stdout.isatty() else 3)": "isatty",
    "import gc\ndef apply(v):\n    return v * (2 if gc.isenabled() else 3)": "isenabled",
    "import threading\ndef apply(v):\n    return v * len(threading.current_thread().name)": "current_thread",
    "import threading\ndef apply(v):\n    return v * threading.get_ident()": "get_ident",
    "import multiprocessing\ndef apply(v):\n    return v * multiprocessing.cpu_count()": "cpu_count",
    "def scale():\n    return 2\ndef apply(v):\n    return v * scale.__code__.co_consts[-1]": "__code__",
    "import operator\nclass A:\n    n = 2\ndef apply(v):\n    return v * operator.attrgetter(''.join('n'))(A)": "attrgetter",
    "n = 0\ndef made():\n    global n\n    n += 1\n    return n\ndef apply(v):\n    return v * made()": "changes while it is traced: 0, then 1",
    "class A:\n    n = 0\n    def made(self):\n        type(self).n += 1\n        return self.n\ndef apply(v):\n    return v * A().made()": "A.n changes",
    "def made(seen=[]):\n    seen.append(1)\n    return len(seen)\ndef apply(v):\n    return v * made()": "made changes",
    "todo = [2, 3]\ndef apply(v):\n    return v * todo.pop()": "todo.pop changes",
    "class A:\n    def __getattribute__(self, name):\n        return {'n': 2}[name]\na = A()\ndef apply(v):\n    return v * a.n": "KeyError",
    "import ctypes\ndef apply(v):\n    return v * (2 if ctypes.CDLL(None).getenv(b'N') else 3)": "ctypes",
    "import posix\ndef apply(v):\n    return v * len(posix.environ)": "posix.environ",
    "import pkgutil\ndef apply(v):\n    return v * len(pkgutil.get_data('json', '__init__.py'))": "opens the file",
    "held = [2]\n@functools.cache\ndef n(k):\n    return held[0]\nn(1)\nheld[0] = 3\ndef apply(v):\n    return v * n(1)": "keeps",
    "held = [2]\n@functools.lru_cache(8)\ndef n(k, by=1):\n    return held[0]\nn(1, by=2)\nheld[0] = 3\ndef apply(v):\n    return v * n(1, by=2)": "keeps",
    "class Op:\n    table = types.ModuleType('table')\n    def __init__(self):\n        self.own = self.table\n    def __call__(self, v):\n        return v * self.own.n\nOp.table.n = 2\napply = Op()": "which no import finds",
    "import cutlass.cute as cute\ndef apply(v):\n    return v * len(cute.BitCode('lib.bc').path)": "`lib.bc` is linked",
    "import linecache\ndef apply(v):\n    return v * len(linecache.getline('x', 1))": "linecache.getline",
    "import sqlite3\ndef apply(v):\n    return v * len(sqlite3.connect(':memory:').execute('select 1').fetchall())": "opens the file",
    "from socket import gethostname\ndef apply(v):\n    return v * len(gethostname())": "gethostname",
    "import ctypes\ndef apply(v):\n    return v * (2 if ctypes.pythonapi.getenv(b'N') else 3)": "ctypes.pythonapi",
    "from ctypes import pythonapi\ndef apply(v):\n    return v * (2 if pythonapi.getenv(b'N') else 3)": "pythonapi",
    "import signal\ndef apply(v):\n    return v * (2 if signal.getsignal(2) else 3)": "getsignal",
    "def apply(v):\n    return v * len(contextvars.copy_context())": "copy_context",
    "held = [2]\n@functools.lru_cache(typed=True)\ndef n(k, by=1):\n    return held[0]\nn(1, by=2)\nheld[0] = 3\ndef apply(v):\n    return v * n(1, by=2)": "keeps",
    "held = [int]\n@functools.lru_cache\ndef kind():\n    return (held[0],)\nkind()\nheld[0] = float\ndef apply(v):\n    return v * (2 if kind()[0] is int else 3)": "keeps",
    "held = [2]\n@dataclasses.dataclass\nclass Config:\n    n: int\n@functools.lru_cache\ndef config():\n    return Config(held[0])\nconfig()\nheld[0] = 3\ndef apply(v):\n    return v * config().n": "keeps",
    "@functools.lru_cache\ndef n():\n    return {'n': len(open(__file__).read())}\nn()\ndef apply(v):\n    return v * n()['n']": "opens the file",
    "@functools.cache\ndef n():\n    return 2 if os.path.exists('x') else 3\nn()\ndef apply(v):\n    return v * n()": "exists",
    "held = [2]\n@functools.cache\ndef n():\n    return held[0]\nn()\nheld[0] = 3\ndef apply(v):\n    return v * n()": "keeps",
    "def apply(v):\n    import time\n    return v * time.time()": "time.time",
    "def apply(v):\n    from time import perf_counter as now\n    return v * now()": "time.perf_counter",
    "def apply(v):\n    import random\n    return v * random.random()": "random.random",
    "def apply(v):\n    import os\n    return v * os.stat('/').st_mtime_ns": "os.stat",
    "import time\ndef apply(v):\n    return v * getattr(time, 'time')()": "time.time",
    "import time\ndef apply(v):\n    return v * vars(time)['time']()": "time.time",
    "import time\ndef apply(v, clock=time.perf_counter):\n    return v * clock()": "time.perf_counter",
    "import time\nclocks = {'a': [time.perf_counter]}\ndef apply(v):\n    return v * clocks['a'][0]()": "time.perf_counter",
    "import time\nclass Op:\n    def __init__(self):\n        self.clock = time.perf_counter\n    def __call__(self, v):\n        return v * self.clock()\napply = Op()": "time.perf_counter",
    "import datetime\nnow = datetime.datetime.now\ndef apply(v):\n    return v * now().microsecond": "datetime.now",
    "lock = threading.Lock()\ndef apply(v):\n    return v * (2 if lock.locked() else 3)": "locked",
    "import tracemalloc\ndef apply(v):\n    return v * (2 if tracemalloc.is_tracing() else 3)": "tracemalloc.is_tracing",
    "made = sys.modules['a_made_module'] = types.ModuleType('a_made_module')\nexec('class A:\\n    def f(self):\\n        return 2', vars(made))\ndef apply(v):\n    return v * made.A().f()": "which has no file with its source",
    "def apply(v):\n    import gc\n    return v * len(gc.get_objects())": "gc.get_objects",
    "import calendar\ndef apply(v):\n    return v + calendar.firstweekday()": "calendar",
    "import codecs\ndef apply(v):\n    return v * len(codecs.lookup('utf8').name)": "codecs.lookup",
    "import csv\ndef apply(v):\n    return v * csv.field_size_limit()": "csv.field_size_limit",
    "import filecmp\ndef apply(v):\n    return v * (2 if filecmp.cmp(__file__, __file__) else 3)": "filecmp.cmp",
    "import gettext\ndef apply(v):\n    return v * len(gettext.textdomain())": "gettext.textdomain",
    "import pathlib\ndef apply(v):\n    return v * len(pathlib.Path('/').owner())": "owner",
    "import reprlib\ndef apply(v):\n    return v * len(reprlib.repr(100 * 'a'))": "reprlib.repr",
    "import site\ndef apply(v):\n    return v * len(site.getsitepackages())": "site.getsitepackages",
    "import threading\ndef apply(v):\n    return v + threading.stack_size()": "stack_size",
    "def apply(v):\n    return v * os.path.getctime('/')": "getctime",
    "import weakref\nclass A: pass\na = A()\ngone = weakref.finalize(a, len, '')\ndef apply(v):\n    return v * (2 if gone.alive else 3)": "weakref.finalize",
}

PROXY = """
    from cutlass._mlir.dialects import llvm as inner, nvvm as other
    from cutlass._mlir_helpers.dialect_proxy import DialectAutoConvertProxy
    llvm = DialectAutoConvertProxy(inner)
    def apply(v): return v * (2 if hasattr(llvm, "addrspacecast") else 3)
"""
if dsl.version().startswith("4.8"):  # older ones have none
    COMPARED["another module of MLIR in a wrapper of CuTe DSL's"] = (
        PROXY,
        "lib.llvm = lib.DialectAutoConvertProxy(lib.other)",
    )
    UNREAD["what such a wrapper keeps"] = (PROXY, "lib.llvm._wrapped_cache.clear()")

RUN = """
import abc, builtins, dataclasses, importlib, importlib.machinery, importlib.metadata, json, logging, os, sys, textwrap, types
from pathlib import Path
import cutlass
from aot.compile.reading.reads import Reads
from aot.errors import BuildError
from aot_runtime.serving.values import sources
from aot_runtime.serving.reading.reads import changes

HEAD = "import abc, contextvars, dataclasses, enum, functools, importlib, logging, os, sys, threading, types, typing\\n"
folder, out = Path(sys.argv[1]), {}
sys.path.insert(0, str(folder))


def again(**variables):
    os.environ.update(variables)
    for module in filter(None, (settings, lib)):
        importlib.reload(module)


def through_a_hook(before, after):
    class Loader(importlib.machinery.SourceFileLoader):
        def get_code(self, name):
            return compile(self.get_source(name).replace(before, after), self.path, "exec")

    lib.__spec__.loader = lib.__loader__ = Loader(lib.__name__, lib.__file__)
    exec(lib.__loader__.get_code(lib.__name__), vars(lib))


def optimized():
    sys.flags = (*flags[:3], 1, *flags[4:])
    exec(compile(Path(lib.__file__).read_text(), lib.__file__, "exec", optimize=1), vars(lib))


own, flags, version = dict(vars(builtins)), sys.flags, sys.implementation.version
distribution = importlib.metadata.distribution
for number, (name, (text, statement)) in enumerate(json.loads(Path(sys.argv[2]).read_text()).items()):
    first, _, second = textwrap.dedent(text).partition("---\\n")
    settings = None
    if second:
        (folder / f"settings_{number}.py").write_text(HEAD + first)
        settings = importlib.import_module(f"settings_{number}")
        second = f"import settings_{number} as settings\\n{second}"
    (folder / f"lib_{number}.py").write_text(HEAD + (second or first))
    importlib.invalidate_caches()
    lib = importlib.import_module(f"lib_{number}")
    reads = Reads()
    with reads.noted():
        result = lib.apply(3)
    try:
        record = json.loads(json.dumps(reads.record([lib.apply])))
    except BuildError as error:
        out[name] = {"refused": error.message}
        continue
    before = list(changes(record))
    arguments, variables = list(sys.argv), dict(os.environ)
    exec(statement or "pass")
    out[name] = {"before": before, "after": list(changes(record)), "same result": lib.apply(3) == result}
    sys.argv[:], sys.flags, sys.implementation.version = arguments, flags, version
    logging.disable(logging.NOTSET)
    importlib.metadata.distribution = distribution
    vars(builtins).update(own)
    vars(builtins).pop("fancy", None)
    os.environ.clear()
    os.environ.update(variables)
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("compared")
    cases = {**COMPARED, **UNREAD, **{text: (text, "") for text in REFUSED}}
    (folder / "cases.json").write_text(json.dumps(cases))
    (folder / "script.py").write_text(textwrap.dedent(RUN))
    command = [sys.executable, str(folder / "script.py"), str(folder), str(folder / "cases.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", COMPARED)
def test_what_changes_a_result_is_a_miss(outcomes: dict[str, Any], name: str) -> None:
    found = outcomes[name]
    assert found.get("before") == [], found
    assert not found["same result"], "the case changes nothing"
    assert found["after"], "other code would be served"


@pytest.mark.parametrize("name", UNREAD)
def test_what_changes_no_result_is_found_again(outcomes: dict[str, Any], name: str) -> None:
    assert outcomes[name] == {"before": [], "after": [], "same result": True}


@pytest.mark.parametrize(("text", "named"), REFUSED.items())
def test_what_no_name_tells_is_refused(outcomes: dict[str, Any], text: str, named: str) -> None:
    assert named in outcomes[text].get("refused", "nothing was refused")
