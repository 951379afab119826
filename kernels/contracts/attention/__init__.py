"""What attention and its caches must compute."""
