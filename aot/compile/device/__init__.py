"""A device that answers for the architecture that is compiled for: to CuTe DSL, cuda-bindings and torch."""
