"""What gradients must be."""
