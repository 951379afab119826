"""What was compiled and linked before, found again by a digest of everything that shaped it.

``store`` keeps bytes under keys, ``keys`` makes the keys, ``closure`` says what a kernel's code came from,
``plans`` remembers what a source declared so that an unchanged one need not be imported, ``links`` keeps
linked libraries. ``docs/cache.md`` describes it from the outside.
"""
