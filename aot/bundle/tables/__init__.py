"""Measured choices among variants: tables, the models they are computed from, and the cells that a library has of them."""
