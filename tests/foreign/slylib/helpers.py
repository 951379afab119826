"""Functions that run while the kernel is traced."""

import os as system
from os import environ as variables
from os import getenv as ask

from . import settings
from .settings import CLOSURES, CONFIG, PARTIAL, Level, Limits, attributed, marked


def imports():
    from . import settings as renamed
    from .settings import IMPORTED

    return IMPORTED + renamed.IMPORTED_AS


def by_name(name):
    return len(getattr(settings, name))


def of_class(name):
    return getattr(Limits, name)


def of_globals():
    return globals()["CONSTANT"]


def of_member(level):
    return level.rounds + level.value


def of_function(function):
    return function.weight


def in_order(table):
    total = 0
    for number, item in enumerate(table.values()):
        total += (number + 1) * item
    return total


def environment():
    found = ask("SLYLIB_ASKED", "") + variables.get("SLYLIB_ALIAS", "")
    found += system.path.expandvars("$SLYLIB_EXPANDED") + system.environ.get("SLYLIB_PLAIN", "")
    return len(found) + ("SLYLIB_IN" in variables)


def apply(value, level):
    value = value + imports() + by_name("ASKED") + by_name("COM" + "PUTED") + of_class("mo" + "st") + of_globals()
    value = value + CONFIG.stages + CONFIG.inner.depth + CONFIG.by_name["rows"][0] + settings.NAMESPACE.rows
    value = PARTIAL(CLOSURES[0](CLOSURES[1]["two"](value))) + attributed(0) + of_function(marked)
    value = (
        value
        + of_member(level)
        + of_member(Level.HIGH)
        + in_order(settings.ORDERED)
        + settings.DEFAULTS.default_factory()
    )
    value = value + settings.Answers.width + settings.PROXY.depth + settings.TABLE.scale + settings.SLOTTED.value
    value = value + settings.NAMED.extra + settings.POINT.scaled + (1 if settings.FLAGS & settings.Flag.EXACT else 0)
    return value + environment() + settings.LISTED[-1]


CONSTANT = 11
