"""Serving in processes that nobody can edit: through variables that their children inherit.

``PYTHONPATH`` leads Python to a ``sitecustomize`` of ours, which it imports at its start, and ``AOT_SERVE`` says what
to serve. Processes that ignore the environment (``python -I``, ``-E``, ``-S``, or an empty one) are not reached.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .hook import when_loaded

if TYPE_CHECKING:
    from .server import Serving

__all__ = ["RECORD", "VARIABLE", "recording_variables", "serve_as_told", "variables"]

VARIABLE = "AOT_SERVE"
RECORD = "AOT_RECORD"
SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")


def variables(bundle: str, miss: str, report: bool, environment: Mapping[str, str]) -> dict[str, str]:
    """What to add to the environment of a program so that it and its children are served."""
    path = environment.get("PYTHONPATH", "")
    folders = [folder for folder in path.split(os.pathsep) if folder and folder != SITE]
    settings = {"bundle": os.path.abspath(bundle), "miss": miss, "report": report}
    return {"PYTHONPATH": os.pathsep.join([SITE, *folders]), VARIABLE: json.dumps(settings)}


def recording_variables(folder: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What to add to the environment of a program so that its compiles and those of its children are recorded."""
    added = variables("", "compile", False, environment)
    return {"PYTHONPATH": added["PYTHONPATH"], RECORD: os.path.abspath(folder)}


def serve_as_told(environment: Mapping[str, str]) -> None:
    """Serve or record what the environment names as soon as CuTe DSL is imported."""
    if VARIABLE in environment:
        settings = json.loads(environment[VARIABLE])
        when_loaded(lambda module: _begin(settings))
    if RECORD in environment:
        when_loaded(lambda module: _record(environment[RECORD]))


def _record(folder: str) -> None:
    from .recording import Recording

    Recording(folder)


def _begin(settings: Mapping[str, Any]) -> None:
    from .server import serve  # only now: most processes never compile

    serving = serve(settings["bundle"], settings["miss"])
    if settings["report"]:
        import atexit

        atexit.register(_report, serving)


def _report(serving: Serving) -> None:
    if serving.hits or serving.misses:
        print(f"{serving.report()} (process {os.getpid()})", file=sys.stderr)
