"""Products of matrices in f8. Build them with ``--family fp8`` or ``--family all``."""
