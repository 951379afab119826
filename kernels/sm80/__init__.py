"""What kernels share that multiply with mma.sync: sm_80, and later architectures without code of their own. No kernel is declared here."""
