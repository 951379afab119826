"""The README's first call on a real GPU: ``pytest tests/gpu --bundle dist/kernels``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aot.bundle.manifest import Manifest

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("torch")]

NEEDS = {
    "jax_function": "jax_tvm_ffi",
    "cupy_stream": "cupy",
    "numba_stream": "numba.cuda",
    "cuda_core_stream": "cuda.core",
}
EXAMPLES = ("first_call", "torch_block", "llama_block/run", "decode_loop/run", *NEEDS)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_run(request: pytest.FixtureRequest, tmp_path: Path, example: str) -> None:
    if example in NEEDS:
        pytest.importorskip(NEEDS[example], reason=f"{NEEDS[example]} is not installed")
    bundle = Path(request.config.getoption("--bundle", default="dist/kernels")).resolve()
    if not bundle.is_dir() or "add" not in Manifest.read(bundle).kernels:
        pytest.skip(f"there is no bundle with `add` at {bundle}: build one, or give --bundle")
    if example == "decode_loop/run" and "attention_decode" not in Manifest.read(bundle).kernels:
        pytest.skip(f"the bundle at {bundle} has no `attention_decode`: build it with --family all")
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "kernels").symlink_to(bundle)
    program = Path(__file__).parents[2] / "examples" / f"{example}.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, str(program)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_decoder_trains_and_resumes(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    bundle = Path(request.config.getoption("--bundle", default="dist/kernels")).resolve()
    if not bundle.is_dir() or "adamw" not in Manifest.read(bundle).kernels:
        pytest.skip(f"there is no bundle with `adamw` at {bundle}: build one with --family all, or give --bundle")
    program = Path(__file__).parents[2] / "examples" / "train_decoder" / "train.py"
    words = [
        sys.executable,
        str(program),
        str(bundle),
        "--model",
        "tiny",
        "--batch",
        "2",
        "--length",
        "256",
        "--rate",
        "1e-3",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for more in (["--steps", "20"], ["--steps", "40", "--resume"]):  # the last steps are replays of a CUDA graph
        done = subprocess.run([*words, *more], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    losses = json.loads((tmp_path / "train_decoder_out" / "results.json").read_text())["bundle"]["losses"]
    assert len(losses) == 40 and losses[-1] < losses[0] - 1


@pytest.mark.parametrize("example", ["shared_memory", "tensor_cores"])
def test_the_kernel_of_a_guide_is_right(example: str, tmp_path: Path) -> None:
    pytest.importorskip("nvidia_cutlass_dsl", reason="CuTe DSL is not installed: the example has to be built")
    kernels = Path(__file__).parents[2] / "examples" / example / "kernels"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for command in (f"build --kernels {kernels} --arch sm90 --name example", "check dist/example"):
        words = [sys.executable, "-m", "aot", *command.split()]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
