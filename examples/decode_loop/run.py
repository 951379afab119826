"""Generate tokens with a bundle, one CUDA graph per step, and compare every token with torch in f32.

`README.md` shows how to build the bundle.
"""

import sys

import aot_runtime
import torch
from decoder import BundleLayers, Decoder, Model, PagedAttention, captured, reference

if not torch.cuda.is_available():
    raise SystemExit("this example needs a GPU that torch can use")

MODEL, BATCH, STEPS = Model(), 8, 300
OPTIONS = {"device": "cuda", "dtype": torch.bfloat16}
# Activations are rounded to bf16 some 40 times on their way through the model, by 2**-9 of their size each.
TOLERANCE = 0.03  # of the norm of the logits

torch.backends.cuda.matmul.allow_tf32 = False
kernels = aot_runtime.load(sys.argv[1] if len(sys.argv) > 1 else "dist/kernels")
kernels.preload()  # a capture must not load code
weights = MODEL.weights(OPTIONS["dtype"], "cuda")
start = torch.arange(BATCH, device="cuda")
attention = PagedAttention(kernels, MODEL, BATCH, STEPS, **OPTIONS)
decoder = Decoder(MODEL, weights, BundleLayers(kernels), attention, start)
graph, logits = captured(decoder)
generated, seen = [start], []
for _ in range(STEPS):
    graph.replay()
    generated.append(decoder.tokens.clone())
    seen.append(logits.clone())

tokens, seen = torch.stack(generated, 1), torch.stack(seen, 1).float()
with torch.no_grad():
    exact = reference(MODEL, weights, tokens[:, :-1])
error = ((seen - exact).norm() / exact.norm()).item()
# A tie: the reference finds another token at most as much more likely as logits may be wrong.
short = (exact.amax(-1) - exact.gather(-1, tokens[:, 1:, None])[..., 0]).max().item()
equal = (exact.argmax(-1) == tokens[:, 1:]).sum().item()
print(f"{equal} of {BATCH * STEPS} tokens are those of torch in f32; the others are ties within {short:.3f}")
print(f"logits differ by {error:.1e} of their norm")
assert error < TOLERANCE
assert short < 4 * TOLERANCE * exact.std().item()
