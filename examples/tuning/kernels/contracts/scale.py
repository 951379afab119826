"""What ``scale`` computes, inputs to check it with, and the lengths to tune it over."""

import aot


def reference(x, factor):
    return factor * x.double()


def inputs(make, dtype):
    for n in (0, 1, 127, 1024, 100_003):
        yield {"x": make.tensor((n,), dtype), "factor": 0.5}


def cost(x, factor):
    return aot.Cost(operations=x.numel(), bytes=2 * x.numel() * x.element_size())


def tune_inputs(make, dtype):
    for n in (1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 26):
        yield {"x": make.tensor((n,), dtype), "factor": 0.5}
