"""Tilings that no shipped product has."""
