"""Matrix products, with one file per architecture's code."""
