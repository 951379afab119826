"""Train a decoder from a bundle, on the documentation of this repository.

`README.md` shows how to build the bundle.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

START = time.perf_counter()

import torch  # noqa: E402  the time of its import counts
from model import SHAPES, BundleLayers, Decoder, TorchLayers  # noqa: E402
from optimizer import AdamW, BundleAdamW, Schedule, TorchAdamW  # noqa: E402
from plot import plot  # noqa: E402
from text import Batches, read_text  # noqa: E402

IMPORTED = time.perf_counter()
EAGER_STEPS = 3  # before a step is captured as a CUDA graph
DECAY = 0.1


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", nargs="?", default="dist/kernels", help="the bundle (default: %(default)s)")
    parser.add_argument("--model", choices=SHAPES, default="100m", help="its size (default: %(default)s)")
    parser.add_argument("--engine", choices=("bundle", "torch", "both"), default="bundle", help="what computes")
    parser.add_argument("--compile", action="store_true", help="compile the model of torch with torch.compile")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=8, help="sequences in a step (default: %(default)s)")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a sequence (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=3e-4, help="the highest learning rate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("train_decoder_out"), help="for checkpoints and the plot")
    parser.add_argument(
        "--every", type=int, default=100, help="steps between checkpoints; 0: none (default: %(default)s)"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--no-graph", action="store_true", help="do not capture the step as a CUDA graph")
    return parser.parse_args(arguments)


class Trainer:
    """A model with its optimizer. A step is captured as a CUDA graph if its operations come from a bundle."""

    def __init__(self, engine: str, given: argparse.Namespace) -> None:
        self.name, self.given = engine, given
        self.tokens, self.target = (
            torch.zeros(given.batch, given.length, dtype=torch.int64, device="cuda") for _ in range(2)
        )
        self.model, self.optimizer = self._parts(engine, given)
        self.compute = self.model.loss
        if engine == "torch" and given.compile:
            self.compute = torch.compile(self.model.loss)
        self.value = torch.zeros((), device="cuda")
        self.graph: Any = None
        self.stream = torch.cuda.Stream()  # of all steps: a capture goes on where they ran
        self.captured = engine == "bundle" and not given.no_graph
        self.losses: list[float] = []
        self.eager = 0  # steps that were not replayed, in this process
        torch.cuda.synchronize()

    def _parts(self, engine: str, given: argparse.Namespace) -> tuple[Decoder, AdamW]:
        sizes = (given.batch, given.length, given.seed)
        if engine == "torch":
            model = Decoder(SHAPES[given.model], TorchLayers(), *sizes)
            return model, TorchAdamW(model, DECAY, given.compile)
        import aot_runtime
        import aot_runtime.torch

        ops = aot_runtime.torch.register(aot_runtime.load(given.bundle))
        model = Decoder(SHAPES[given.model], BundleLayers(ops), *sizes)
        return model, BundleAdamW(model, DECAY, ops)

    def step(self, tokens: Any, target: Any, rate: float) -> float:
        """The loss of one step."""
        with torch.cuda.stream(self.stream):
            self.tokens.copy_(tokens)
            self.target.copy_(target)
            self.optimizer.rate.fill_(rate)
            if self.captured and self.graph is None and self.eager >= EAGER_STEPS:
                self.stream.synchronize()
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph, stream=self.stream):
                    self._run()
            if self.graph is None:
                self._run()
                self.eager += 1
            else:
                self.graph.replay()
            return float(self.value)  # waits for the step

    def _run(self) -> None:
        loss = self.compute(self.tokens, self.target)
        loss.backward()
        self.value.copy_(loss.detach())
        self.optimizer.update()

    # Checkpoints.

    @property
    def checkpoint(self) -> Path:
        return Path(self.given.out) / f"{self.name}.pt"

    def save(self) -> None:
        temporary = self.checkpoint.with_suffix(".tmp")
        torch.save({"state": self.optimizer.state(), "losses": self.losses, "model": self.given.model}, temporary)
        os.replace(temporary, self.checkpoint)

    def load(self) -> None:
        if not self.checkpoint.exists():
            raise SystemExit(f"there is no checkpoint at {self.checkpoint}: leave out --resume")
        saved = torch.load(self.checkpoint, map_location="cuda")
        if saved["model"] != self.given.model:
            raise SystemExit(f"{self.checkpoint} is of the model {saved['model']}: pass --model {saved['model']}")
        self.optimizer.load(saved["state"])
        self.losses = saved["losses"]


def train(engine: str, given: argparse.Namespace, batches: Batches) -> dict[str, Any]:
    """All steps of one engine; what was measured."""
    trainer, schedule = Trainer(engine, given), Schedule(given.rate, given.steps)
    if given.resume:
        trainer.load()
    begun = len(trainer.losses)
    each = given.batch * given.length
    print(f"{engine}: {trainer.model.shape.parameters / 1e6:.0f} M parameters, {each} tokens a step", flush=True)
    seconds: list[float] = []
    first, memory = 0.0, []
    for step in range(begun + 1, given.steps + 1):
        before = time.perf_counter()
        trainer.losses.append(finite(trainer.step(*batches.step(step), schedule.rate(step)), step, trainer.checkpoint))
        seconds.append(time.perf_counter() - before)
        first = first or time.perf_counter() - START
        if step % max(given.steps // 10, 1) == 0:
            memory.append((torch.cuda.memory_allocated(), resident()))
        if step % 10 == 0 or step == given.steps:
            recent = sorted(seconds[-10:])[len(seconds[-10:]) // 2]
            print(f"\r  step {step:5} loss {trainer.losses[-1]:.4f} {each / recent:9.0f} tokens/s", end="", flush=True)
        if given.every and (step % given.every == 0 or step == given.steps):
            trainer.save()
    print()
    later = sorted(seconds[len(seconds) // 2 :]) or [float("nan")]
    return {
        "losses": trainer.losses,
        "tokens_per_second": each / later[len(later) // 2],
        "import_seconds": IMPORTED - START,
        "first_step_after_start": first,
        "memory": torch.cuda.max_memory_allocated(),
        # After each tenth of the steps, in bytes.
        "allocated": [on_gpu for on_gpu, _ in memory],
        "resident": [on_host for _, on_host in memory],
    }


def finite(loss: float, step: int, checkpoint: Path) -> float:
    """The loss. If it is not finite, training ends: the weights are not, either."""
    if not math.isfinite(loss):
        start = (
            f"--resume goes on from {checkpoint}" if checkpoint.exists() else f"there is no checkpoint at {checkpoint}"
        )
        raise SystemExit(f"\nthe loss of step {step} is {loss}: pass a lower --rate; {start}")
    return loss


def resident() -> int:
    """Bytes of this process in the memory of the host."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    given = options()
    if not torch.cuda.is_available():
        raise SystemExit("this example needs a GPU that torch can use")
    given.out.mkdir(parents=True, exist_ok=True)
    batches = Batches(read_text(), given.batch, given.length, given.seed)
    engines = ("bundle", "torch") if given.engine == "both" else (given.engine,)
    results = {}
    for engine in engines:
        results[engine] = train(engine, given, batches)
        torch.cuda.empty_cache()
        print(f"  {results[engine]['tokens_per_second']:.0f} tokens/s, loss {results[engine]['losses'][-1]:.4f}")
    print(
        f"first step {results[engines[0]]['first_step_after_start']:.2f} s after the start, {IMPORTED - START:.2f} s of it imports"
    )
    plot({engine: result["losses"] for engine, result in results.items()}, given.out / "loss.svg")
    (given.out / "results.json").write_text(json.dumps(results))
    print(f"curves: {given.out / 'loss.svg'}")


if __name__ == "__main__":
    main()
