"""A library whose kernel reads all that tracing can read: for tests that change one of these things at a time."""
