"""Serving in processes that nobody can edit: through variables that their children inherit.

``PYTHONPATH`` leads Python to a ``sitecustomize`` of ours, which it imports at its start, and ``AOT_SERVE`` says what
to serve. Processes that ignore the environment (``python -I``, ``-E``, ``-S``, or an empty one) are not reached.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .caches import NO_CACHES, NO_CACHES_OF_SERVED
from .hook import when_loaded

if TYPE_CHECKING:
    from .server import Serving

__all__ = ["RECORD", "VARIABLE", "recording_variables", "serve_as_told", "variables"]

VARIABLE = "AOT_SERVE"
RECORD = "AOT_RECORD"
_LOSSES = "AOT_RECORD_LOSSES"
SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")


def variables(
    bundles: Sequence[str], miss: str, report: bool, environment: Mapping[str, str], keys: Sequence[bytes] = ()
) -> dict[str, str]:
    """What to add to the environment of a program so that it and its children are served.

    With keys, the bundles must be signed by one of them. A process that can change the environment can leave them out.
    """
    path = environment.get("PYTHONPATH", "")
    folders = [folder for folder in path.split(os.pathsep) if folder and folder != SITE]
    settings: dict[str, Any] = {
        "bundles": [os.path.abspath(bundle) for bundle in bundles],
        "miss": miss,
        "report": report,
    }
    settings["keys"] = [key.hex() for key in keys]
    added = {"PYTHONPATH": os.pathsep.join([SITE, *folders]), VARIABLE: json.dumps(settings)}
    return {**_unless_set(NO_CACHES_OF_SERVED, environment), **added}


def _unless_set(values: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if name not in environment}


def recording_variables(folder: str, environment: Mapping[str, str], losses: str = "") -> dict[str, str]:
    """What to add to the environment of a program so that its compiles and those of its children are recorded.

    ``losses`` is a named pipe, to which a process writes a line for each call that it could not write to the folder.
    """
    added = variables([], "compile", False, environment)
    told = {"PYTHONPATH": added["PYTHONPATH"], RECORD: os.path.abspath(folder), _LOSSES: losses}
    return {**_unless_set(NO_CACHES, environment), **told}


def serve_as_told(environment: Mapping[str, str]) -> None:
    """Serve or record what the environment names as soon as CuTe DSL is imported.

    With both, bundles are asked first, and what they do not have is recorded and compiled.
    """
    if RECORD in environment:
        when_loaded(lambda module: _record(environment[RECORD], environment.get(_LOSSES, "")))
    if VARIABLE in environment:
        settings = json.loads(environment[VARIABLE])
        when_loaded(lambda module: _begin(settings))


def _record(folder: str, losses: str) -> None:
    from .recording import Recording

    Recording(folder, losses)


def _begin(settings: Mapping[str, Any]) -> None:
    from .server import serve  # only now: most processes never compile

    first, *others = settings["bundles"]
    key = [bytes.fromhex(text) for text in settings["keys"]] or None
    # The one that is served last is asked first. It passes on what it does not have, and the first has the last word.
    servings = [serve(first, settings["miss"], key=key), *(serve(bundle, "compile", key=key) for bundle in others)]
    servings[0].asked_before = tuple(servings[1:])
    if settings["report"]:
        import atexit

        atexit.register(_report, servings)


def _report(servings: Sequence[Serving]) -> None:
    for serving in servings[1:]:
        serving.misses = 0  # it asked the next
    for serving in (one for one in servings if one.hits or one.misses):
        print(f"{serving.report()} (process {os.getpid()})", file=sys.stderr)
