"""What matrix products must compute."""
