"""The subcommands of ``python -m aot``: one module each, with ``configure_parser`` and ``execute``."""
