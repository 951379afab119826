"""A small library that compiles CuTe DSL kernels when they are first called, as quack and FlashAttention-4 do."""
