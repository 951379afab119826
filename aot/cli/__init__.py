"""The command line: one module per command in ``commands/``, and what they share: options, reports, progress.

May import: everything. Nothing imports it but ``__main__``. The environment is read here alone.
"""
