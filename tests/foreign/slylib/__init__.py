"""A library whose kernel reads values in ways that are easily overlooked: for tests that change one of them at a time."""
