"""Demo 6, first half: a model that calls the kernels of the bundle ``demo``, compiled by AOTInductor into a package.

python torch_package.py BUNDLE PACKAGE

Compiling needs Python and a GPU's compiler. What runs the package needs neither: see ``torch_package.cpp``.
"""

import sys
from pathlib import Path

import torch


class Model(torch.nn.Module):
    def forward(self, x, y):
        return torch.ops.demo.activate(torch.ops.demo.axpy(x, y, alpha=2.0), kind="clamp") + 1


def make_package(package: Path, device: str) -> None:
    x, y = torch.randn(64, device=device), torch.randn(64, device=device)
    vector = {0: torch.export.Dim("n", min=2, max=1 << 20)}
    with torch.no_grad():
        exported = torch.export.export(Model(), (x, y), dynamic_shapes={"x": vector, "y": vector})
    torch._inductor.aoti_compile_and_package(exported, package_path=str(package))


def main() -> int:
    import aot_runtime
    import aot_runtime.torch

    if not torch.cuda.is_available():
        print("no GPU: the package would be compiled for nothing")
        return 77
    kernels = aot_runtime.load(sys.argv[1])
    aot_runtime.torch.register(kernels)  # for tracing; the package holds the operators' names alone
    make_package(Path(sys.argv[2]), "cuda")
    return 0


if __name__ == "__main__":
    sys.exit(main())
