"""``examples/train_decoder`` without a GPU: its model and optimizer in plain torch, its batches, its schedule, its plot."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
from modules import module_at
from places import PROJECT

try:
    import torch
except ModuleNotFoundError:
    torch = None

pytestmark = pytest.mark.torch
NAMES = ("model", "optimizer", "text", "plot", "train")


@pytest.fixture(scope="module")
def example() -> Iterator[dict[str, ModuleType]]:
    """Modules by name. They import each other as the program does, by names that others may have."""
    if torch is None:
        pytest.skip("the example needs torch")
    with pytest.MonkeyPatch.context() as patch:
        found: dict[str, ModuleType] = {}
        for name in NAMES:
            found[name] = module_at(f"train_decoder_{name}", "examples", "train_decoder", f"{name}.py")
            patch.setitem(sys.modules, name, found[name])
        yield found


def decoder(example: dict[str, ModuleType], **sizes: int) -> Any:
    shape = example["model"].Shape(
        **{"hidden": 32, "layers": 2, "heads": 2, "kv_heads": 1, "feed_forward": 48, "head": 16, **sizes}
    )
    made = example["model"].Decoder(shape, example["model"].TorchLayers(), 2, 24, seed=0, device="cpu")
    # Products of bf16 are slow on a CPU.
    made.weights = {name: weight.detach().float().requires_grad_() for name, weight in made.weights.items()}
    return made


def test_sizes_are_those_that_the_readme_states(example: dict[str, ModuleType]) -> None:
    text = (PROJECT / "examples" / "train_decoder" / "README.md").read_text()
    for name, shown in (("1b", "974 M"), ("100m", "101 M"), ("tiny", "1.3 M")):
        millions = example["model"].SHAPES[name].parameters / 1e6
        assert shown in text and abs(float(shown.split()[0]) - millions) <= 0.5


def test_a_step_of_training_lowers_the_loss_of_its_batch(example: dict[str, ModuleType]) -> None:
    model = decoder(example)
    batches = example["text"].Batches(example["text"].read_text(), 2, 24, seed=0)
    tokens, target = batches.step(1)
    before = model.loss(tokens, target)
    before.backward()
    with torch.no_grad():
        for weight in model.weights.values():
            assert weight.grad is not None and weight.grad.isfinite().all()
            weight -= 0.05 * weight.grad
    assert model.loss(tokens, target) < before


def test_batches_are_the_same_for_a_step_and_a_seed_and_targets_follow_tokens(example: dict[str, ModuleType]) -> None:
    text = example["text"].read_text()
    one, other = (example["text"].Batches(text, 3, 16, seed).step(5) for seed in (1, 1))
    assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))
    assert torch.equal(one[0][:, 1:], one[1][:, :-1])
    assert not torch.equal(one[0], example["text"].Batches(text, 3, 16, 1).step(6)[0])


def test_the_optimizer_in_plain_torch_is_torchs_own(example: dict[str, ModuleType]) -> None:
    model = decoder(example)
    optimizer = example["optimizer"].TorchAdamW(model, 0.1, compiled=False)
    optimizer.clip = 1e9  # does not clip
    decayed = [weight.detach().clone().requires_grad_() for weight in model.weights.values()]
    start = dict(zip(model.weights, model.master.split([w.numel() for w in decayed]), strict=True))
    for own, (name, part) in zip(decayed, start.items(), strict=True):
        own.data = part.clone().view(model.weights[name].shape)
    groups = [{"params": [own], "weight_decay": 0.1 if own.ndim > 1 else 0.0} for own in decayed]
    exact = torch.optim.AdamW(groups, lr=0.01, betas=example["optimizer"].BETAS, eps=example["optimizer"].EPS)
    optimizer.rate.fill_(0.01)
    for step in range(3):
        for i, (own, weight) in enumerate(zip(decayed, model.weights.values(), strict=True)):
            torch.manual_seed(100 * step + i)
            weight.grad = torch.randn_like(weight)
            own.grad = weight.grad.bfloat16().float()  # as the buffer of gradients has it
        optimizer.update()
        exact.step()
    flat = torch.cat([own.detach().view(-1) for own in decayed])
    torch.testing.assert_close(model.master, flat, rtol=1e-4, atol=1e-6)


def test_a_loss_that_is_not_finite_ends_the_training(example: dict[str, ModuleType], tmp_path: Path) -> None:
    finite, checkpoint = example["train"].finite, tmp_path / "bundle.pt"
    assert finite(2.5, 7, checkpoint) == 2.5
    with pytest.raises(SystemExit, match="step 7 is nan") as ended:
        finite(float("nan"), 7, checkpoint)
    assert "--resume" not in str(ended.value)
    checkpoint.touch()
    with pytest.raises(SystemExit, match=f"--resume goes on from {checkpoint}"):
        finite(float("inf"), 8, checkpoint)


def test_the_rate_rises_then_falls_to_a_tenth(example: dict[str, ModuleType]) -> None:
    schedule = example["optimizer"].Schedule(1.0, 100, 10)
    rates = [schedule.rate(step) for step in range(1, 101)]
    assert rates[:10] == sorted(rates[:10]) and rates[9] == 1.0
    assert rates[9:] == sorted(rates[9:], reverse=True) and rates[-1] == pytest.approx(0.1)


def test_a_plot_has_a_line_for_each_curve(example: dict[str, ModuleType], tmp_path: Path) -> None:
    example["plot"].plot({"bundle": [3.0, 2.0, 1.0], "a < b": [3.0, 2.5]}, tmp_path / "loss.svg")
    tree = ElementTree.parse(tmp_path / "loss.svg")
    lines = tree.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [3, 2]
