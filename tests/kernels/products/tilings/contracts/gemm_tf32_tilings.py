from ._shapes import SHAPES


def reference(a, b, bias=None, epilogue="identity", precision="tf32"):
    product = a.double() @ b.double().mT
    return product if bias is None else product + bias.double()


def inputs(make, dtype):
    """Small integers, which TF32 has."""
    for m, n, k in SHAPES:
        a, b, bias = ((make.tensor(shape, "f32") * 4).round() for shape in ((m, k), (n, k), (n,)))
        yield {"a": a, "b": b, "bias": bias}
