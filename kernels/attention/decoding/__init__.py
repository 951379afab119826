"""Attention of a few queries over a long cache: parts of the cache side by side, and their merge."""
