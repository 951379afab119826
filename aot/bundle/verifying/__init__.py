"""Checking a bundle without executing any of it: its files, libraries and archives, and that all of them say the same."""
