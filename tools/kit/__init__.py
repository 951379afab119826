"""A folder that tests and measures a bundle on a machine without a network: ``python -m tools.kit BUNDLE``."""
