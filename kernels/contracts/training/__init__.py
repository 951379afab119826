"""What a step of training must compute."""
