"""What kernels over rows must compute."""
