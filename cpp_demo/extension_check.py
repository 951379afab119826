"""Checks demo 5: torch tensors through the extension. Exit code 77 without torch or a GPU."""

import sys

try:
    import torch
except ImportError:
    print("extension: refused: torch is not installed")
    sys.exit(77)

import demo_extension


def report(what: str, good: bool) -> bool:
    print(f"{'ok  ' if good else 'FAIL'}: extension: {what}")
    return good


def main() -> int:
    if not torch.cuda.is_available():
        print("extension: refused: torch finds no GPU")
        return 77
    x, y = torch.randn(4096, device="cuda"), torch.randn(4096, device="cuda")
    out = torch.empty_like(x)
    stream = torch.cuda.Stream()
    good = []
    demo_extension.axpy(x, y, out, 2.5)
    torch.cuda.synchronize()
    # The kernel rounds once, torch twice, so sums near zero differ by the rounding of the product.
    good.append(report("axpy agrees with torch", torch.allclose(out, 2.5 * x + y, atol=1e-5)))
    with torch.cuda.stream(stream):
        demo_extension.axpy(x, y, out, 0.5, stream=stream.cuda_stream)
    stream.synchronize()
    good.append(report("axpy on torch's stream agrees", torch.allclose(out, 0.5 * x + y)))
    try:
        demo_extension.axpy(x, y, out.half())
        good.append(report("a wrong dtype is refused", False))
    except demo_extension.Error as error:
        good.append(report("a wrong dtype is refused", "out.dtype" in str(error)))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
