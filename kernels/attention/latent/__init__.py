"""Attention over latent vectors: one vector of a token is its key and its value."""
