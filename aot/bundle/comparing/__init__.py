"""What tools tell of a bundle: what differs from another one and from the sources, sizes, how many threads fit."""
