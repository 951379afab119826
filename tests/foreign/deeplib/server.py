"""A part of the package that no kernel runs."""

PORT = 8000
