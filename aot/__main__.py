"""``python -m aot``."""

import sys


def _end_quietly(kind: type[BaseException], error: BaseException, trace: object) -> None:
    """Show what ends the process, unless it is an interrupt that comes before the command runs, or after."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, error.__traceback__)


if __name__ == "__main__":
    sys.excepthook = _end_quietly  # before all other imports: they take as long as it takes to press Ctrl-C

import signal  # noqa: E402

# Until the command runs there is nothing to clean up: an interrupt ends the process at once.
if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from .cli.main import main  # noqa: E402

if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
