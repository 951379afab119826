"""Matrix products, with one file of code per architecture."""
