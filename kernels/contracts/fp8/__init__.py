"""What rounding to f8e4m3 must give."""
