"""``examples/train_decoder`` without a GPU: its model and optimizer in plain torch, its batches, its schedule, its plot."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
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


def test_attention_from_a_bundle_has_torchs_result_and_gradient(example: dict[str, ModuleType]) -> None:
    """Without a GPU, torch stands for the kernels: the test is of what is passed to them, and where they write."""
    model = example["model"]
    heads, length, size, hidden = model.Heads(2, 4, 2), 6, 8, 20
    angles = torch.randn(2 * length, size // 2)
    rotation = model.Rotation(angles.cos(), angles.sin(), -angles.sin())
    given = torch.randn(2 * length, hidden), torch.randn(8 * size, hidden) * hidden**-0.5
    found = []
    for layers in (model.TorchLayers(), model.BundleLayers(Kernels())):
        x, weight = (leaf.clone().requires_grad_() for leaf in given)
        weight.gradient = torch.empty_like(weight)
        layers.attend(x, weight, heads, rotation).square().sum().backward()
        found.append((x.grad, weight.gradient if weight.grad is None else weight.grad))
    torch.testing.assert_close(*found)


def test_products_from_a_bundle_have_torchs_results_and_gradients(example: dict[str, ModuleType]) -> None:
    model, found = example["model"], []
    given = [torch.randn(shape) for shape in ((6, 8), (24, 8), (8, 12), (5, 8), (8, 8), (8,))]
    for layers in (model.TorchLayers(), model.BundleLayers(Kernels())):
        leaves = [x.clone().requires_grad_() for x in given]
        for leaf in leaves:
            leaf.gradient = torch.empty_like(leaf)
        x, gate_up, down, last, weight, scale = leaves
        normalized, x = layers.norm(x, scale)
        x = layers.linear(normalized, weight, x)
        normalized, x = layers.norm(layers.feed_forward(x, gate_up, down, x), scale)
        out = layers.linear(normalized, last)
        out.square().sum().backward()
        found.append([out.detach(), *(leaf.gradient if leaf.grad is None else leaf.grad for leaf in leaves)])
    torch.testing.assert_close(*found)


class Gemm:
    def __call__(self, a: Any, b: Any) -> Any:
        return a @ b.mT

    def out(self, a: Any, b: Any, *, out: Any) -> None:
        out.copy_(a @ b.mT)


class Kernels:
    """Kernels of attention and of a feed-forward layer as torch computes them."""

    def __init__(self) -> None:
        self.rope, self.attention_backward = SimpleNamespace(out=self._rope), SimpleNamespace(out=self._backward)
        self.gemm = Gemm()

    def gemm_add(self, a: Any, b: Any, addend: Any) -> Any:
        return addend + a @ b.mT

    def gemm_rope(self, a: Any, b: Any, cos: Any, sin: Any, heads: int) -> Any:
        product = a @ b.mT
        turned = product.unflatten(-1, (-1, 2 * cos.shape[-1]))[:, :heads]
        self._rope(turned, cos, sin, out=turned)
        return product

    def rmsnorm(self, x: Any, weight: Any, eps: float) -> Any:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)

    def rmsnorm_backward(self, grad_out: Any, x: Any, weight: Any, eps: float) -> tuple[Any, ...]:
        given = [x.detach().requires_grad_(), weight.detach().requires_grad_()]
        with torch.enable_grad():
            out = self.rmsnorm(*given, eps)
        return *torch.autograd.grad(out, given, grad_out), None, None

    def rmsnorm_residual_backward(
        self, grad_out: Any, grad_residual_out: Any, residual_out: Any, weight: Any, eps: float
    ) -> tuple[Any, ...]:
        by_x, *others = self.rmsnorm_backward(grad_out, residual_out, weight, eps)
        return by_x + grad_residual_out, *others

    def gemm_gated_product(self, a: Any, b: Any) -> tuple[Any, Any]:
        gate, up = (a @ b.mT).chunk(2, -1)
        return torch.nn.functional.silu(gate) * up, torch.cat((gate, up), -1)

    def gemm_silu_and_mul_backward(self, a: Any, b: Any, product: Any) -> Any:
        given = product.detach().requires_grad_()
        with torch.enable_grad():
            gate, up = given.chunk(2, -1)
            gated = torch.nn.functional.silu(gate) * up
        return torch.autograd.grad(gated, given, a @ b.mT)[0]

    def _rope(self, x: Any, cos: Any, sin: Any, *, out: Any) -> None:
        first, second = x.chunk(2, -1)
        cos, sin = cos[:, None], sin[:, None]
        out.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), -1))

    def attention(self, q: Any, k: Any, v: Any, scale: float, *, right: int) -> tuple[Any, Any]:
        assert right == 0
        share = q.shape[2] // k.shape[2]
        k, v = (x.repeat_interleave(share, 2) for x in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
        out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
        return out.contiguous(), scores.logsumexp(-1).mT.contiguous()

    def _backward(
        self, grad_out: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, scale: float, *, right: int, **gradients: Any
    ) -> None:
        given = [x.detach().requires_grad_() for x in (q, k, v)]
        with torch.enable_grad():
            again, _ = self.attention(*given, scale, right=right)
        torch.testing.assert_close(again.detach(), out)
        for name, gradient in zip("qkv", torch.autograd.grad(again, given, grad_out), strict=True):
            gradients[f"grad_{name}"].copy_(gradient)


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
