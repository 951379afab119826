"""A product and a matrix that is added to it."""


def reference(a, b, residual):
    return a.double() @ b.double().mT + residual.double()


def inputs(make, dtype):
    for m, n, k in ((1, 8, 8), (128, 128, 64), (300, 520, 264), (1000, 1288, 1032)):
        yield {"a": make.tensor((m, k), dtype), "b": make.tensor((n, k), dtype), "residual": make.tensor((m, n), dtype)}
