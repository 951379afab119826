"""Python imports this at its start in programs whose compiles are served or recorded, and in their children."""

import os
import sys


def _run_existing() -> None:
    """Execute the ``sitecustomize`` that Python would have found without this one."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    spec = PathFinder.find_spec("sitecustomize", [folder for folder in sys.path if os.path.abspath(folder) != here])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _serve() -> None:
    try:
        from aot_runtime.serving.environment import serve_as_told
    except ImportError as error:
        print(f"warning: {sys.executable} is not served: {error}", file=sys.stderr)
        return
    serve_as_told(os.environ)


if "AOT_SERVE" in os.environ or "AOT_RECORD" in os.environ:
    _serve()
_run_existing()
