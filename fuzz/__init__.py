"""Seeded fuzzers of everything that reads what others may have written.

``python -m fuzz --cases 1000000 --seed 1 --out FILE`` runs long; the tests run a short part of the same cases. Each
target is a module with a ``make(corpus, folder)`` that returns its :class:`fuzz.engine.Target`. A finding is a case that
raises something that is not an error of ours, that does not come to an end, or that passes though it must not.
"""
