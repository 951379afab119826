"""What elementwise kernels must compute."""
