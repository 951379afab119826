from ._shapes import SHAPES


def reference(a, b, a_scale, b_scale):
    return (a.double() @ b.double().mT) * a_scale.double()[:, None] * b_scale.double()


def inputs(make, dtype):
    for m, n, k in SHAPES:
        yield {
            "a": make.tensor((m, k), "f8e4m3"),
            "b": make.tensor((n, k), "f8e4m3"),
            "a_scale": make.tensor((m,), "f32").abs() + 0.125,
            "b_scale": make.tensor((n,), "f32").abs() + 0.125,
        }
