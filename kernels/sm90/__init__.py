"""The parts that Hopper kernels are made of. No kernel is declared here."""
