"""What the model learns: the documentation of this repository, byte by byte."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

REPOSITORY = Path(__file__).parents[2]


def read_text() -> Tensor:
    """All Markdown files, in the order of their paths, as one row of bytes."""
    paths = sorted({*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("examples/**/*.md")})
    content = b"\n\n".join(path.read_bytes() for path in paths)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).long()


class Batches:
    """Parts of the text at random. Step ``i`` always gives the same ones, also after a restart."""

    def __init__(self, text: Tensor, batch: int, length: int, seed: int) -> None:
        if len(text) <= length + 1:
            raise SystemExit(f"the text has {len(text)} bytes, a sequence has {length + 1}: pass a smaller --length")
        self.text, self.batch, self.length, self.seed = text, batch, length, seed

    def step(self, step: int) -> tuple[Tensor, Tensor]:
        make = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        starts = torch.randint(len(self.text) - self.length - 1, (self.batch, 1), generator=make)
        places = starts + torch.arange(self.length)
        return self.text[places], self.text[places + 1]
