"""Run one block in plain torch and with the bundle's operators, compiled whole and in a CUDA graph, and compare.

python -m aot build --arch sm90
python examples/llama_block/run.py
"""

import aot_runtime
import aot_runtime.torch
import torch
from block import Block, BundleLayers, Model, TorchLayers, captured, inputs

if not torch.cuda.is_available():
    raise SystemExit("this example needs a GPU that torch can use")

MODEL = Model("llama-3-8b", hidden=4096, heads=32, key_heads=8, feed_forward=14_336)
OPTIONS = {"device": "cuda", "dtype": torch.bfloat16}
TOLERANCE = 0.02  # of the norm: some roundings to bf16


def distance(one, other):
    return ((one.float() - other.float()).norm() / other.float().norm()).item()


kernels = aot_runtime.load("dist/kernels")
kernels.preload()  # a capture must not load code
torch.manual_seed(0)
plain = Block(MODEL, TorchLayers(), batch=2, **OPTIONS)
ours = Block(MODEL, BundleLayers(aot_runtime.torch.register(kernels)), batch=2, **OPTIONS)
ours.load_state_dict(plain.state_dict())

arguments = inputs(MODEL, batch=2, length=1000, **OPTIONS)
with torch.no_grad():
    expected = plain(*arguments)
    compiled = torch.compile(ours, fullgraph=True)
    graph, replayed = captured(compiled, arguments)
    graph.replay()
    for name, results in (("eager", ours(*arguments)), ("compiled", compiled(*arguments)), ("CUDA graph", replayed)):
        distances = [distance(got, exact) for got, exact in zip(results, expected, strict=True)]
        print(f"{name}: output differs by {distances[0]:.1e} of its norm, residual by {distances[1]:.1e}")
        assert max(distances) < TOLERANCE
