"""From kernel files to a bundle: one bad kernel is reported and the others are built; same inputs, same bytes."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from places import PROJECT, SAMPLES

from aot import BuildError, ToolchainError, UsageError
from aot.bundle.manifest import Manifest
from aot.bundle.verifying.verify import verify
from aot.compile.messages import Options
from aot.compile.process import resident_bytes
from aot.errors import DeclarationError, Failure
from aot.hosts import Host
from aot.pipeline.executing.executor import Session
from aot.pipeline.executing.workers import open_source
from aot.pipeline.settings import BuildResult

Build = Callable[..., BuildResult]

HEAD = """
import os, signal, sys, time
import cutlass, cutlass.cute as cute
from cuda.bindings.driver import CUstream
import aot

@cute.kernel
def write(out: cute.Tensor):
    out[cute.arch.thread_idx()[0]] = out.element_type(1)

OUT = aot.Out("out", shape="out.shape", dtype="out.dtype")
X = aot.Tensor("f32", ("n",))
ARGUMENTS = {"out": X, "stream": aot.Stream()}

def declare(archs=("sm_90a",), **settings):
    return aot.kernel(parameters=(OUT,), archs=archs, **settings)

class Launch:
    def __init__(self, before=lambda: None, twice=False, **shape):
        self.before, self.shape, self.twice = before, shape, twice
    @cute.jit
    def __call__(self, out: cute.Tensor, stream: CUstream):
        self.before()
        shape = {"grid": [1, 1, 1], "block": [32, 1, 1], **self.shape}
        if cutlass.const_expr(self.twice):
            write(out).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)
        write(out).launch(stream=stream, **shape)
"""

GOOD = """
@declare(axes={"threads": (32, 64)})
def good(target, threads):
    \"\"\"Fills.\"\"\"
    return aot.Spec(Launch(block=[threads, 1, 1]), ARGUMENTS, guards=f"n <= {threads}")
"""

BAD = {
    "segfault_tracing": """
def crash():
    print("about to crash", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)

@declare()
def segfault_tracing(target):
    return aot.Spec(Launch(before=crash), ARGUMENTS)
""",
    "segfault_spec": """
@declare()
def segfault_spec(target):
    print("last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
""",
    "hangs_tracing": """
@declare()
def hangs_tracing(target):
    return aot.Spec(Launch(before=lambda: time.sleep(600)), ARGUMENTS)
""",
    "killed_tracing": """
@declare()
def killed_tracing(target):
    return aot.Spec(Launch(before=lambda: os.kill(os.getpid(), signal.SIGKILL)), ARGUMENTS)
""",
    "memory_tracing": """
def take():
    import resource
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * resource.getpagesize() + (64 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    bytearray(1 << 30)

@declare()
def memory_tracing(target):
    return aot.Spec(Launch(before=take), ARGUMENTS)
""",
    "handles_tracing": """
taken = []

def take_all():
    import resource
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))  # a container may allow a billion
    while True:
        taken.append(os.open(os.devnull, os.O_RDONLY))

@declare()
def handles_tracing(target):
    return aot.Spec(Launch(before=take_all), ARGUMENTS)
""",
    "exits_spec": """
@declare()
def exits_spec(target):
    sys.exit(7)
""",
    "raises_spec": """
@declare()
def raises_spec(target):
    return {}["nothing"]
""",
    "raises_tracing": """
def fail():
    raise RuntimeError("no such tile")

@declare()
def raises_tracing(target):
    return aot.Spec(Launch(before=fail), ARGUMENTS)
""",
    "shared_memory": """
@declare()
def shared_memory(target):
    return aot.Spec(Launch(smem=300 * 1024), ARGUMENTS)
""",
    "shared_memory_once": """
@declare()
def shared_memory_once(target):
    return aot.Spec(Launch(twice=True, smem=300 * 1024), ARGUMENTS)
""",
    "wide_block": """
@declare()
def wide_block(target):
    return aot.Spec(Launch(block=[2048, 1, 1]), ARGUMENTS)
""",
    "large_cluster": """
@declare()
def large_cluster(target):
    return aot.Spec(Launch(grid=[64, 1, 1], cluster=[64, 1, 1]), ARGUMENTS)
""",
    "unannotated_constant": """
@cute.jit
def scaled(out: cute.Tensor, factor, stream: CUstream):
    write(out).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)

@declare()
def unannotated_constant(target):
    return aot.Spec(scaled, {"out": X, "factor": aot.Constant(max), "stream": aot.Stream()})
""",
    "without_stream": """
@cute.jit
def plain(out: cute.Tensor):
    write(out).launch(grid=[1, 1, 1], block=[32, 1, 1])

@declare()
def without_stream(target):
    return aot.Spec(plain, {"out": X})
""",
    "variant_twice": """
@declare(axes={"dtype": ("f32",)})
def variant_twice(target, dtype):
    return [aot.Spec(Launch(), ARGUMENTS), aot.Spec(Launch(), ARGUMENTS)]
""",
    "unreachable": """
@declare()
def unreachable(target):
    return [aot.Spec(Launch(), ARGUMENTS, label="any"), aot.Spec(Launch(), ARGUMENTS, label="few", guards="n <= 8")]
""",
    "nonsense": """
@declare()
def nonsense(target):
    return {"not": "a spec"}
""",
    "nothing_launched": """
@cute.jit
def idle(out: cute.Tensor, stream: CUstream):
    pass

@declare()
def nothing_launched(target):
    return aot.Spec(idle, ARGUMENTS)
""",
    "wrong_guard": """
@declare()
def wrong_guard(target):
    return aot.Spec(Launch(), ARGUMENTS, guards=(True,))
""",
    "undecorated": """
def forgotten(out, stream):
    write(out).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)

@declare()
def undecorated(target):
    return aot.Spec(forgotten, ARGUMENTS)
""",
    "not_launched": """
@cute.kernel
def on_the_device(out: cute.Tensor, stream: CUstream):
    out[0] = out.element_type(1)

@declare()
def not_launched(target):
    return aot.Spec(on_the_device, ARGUMENTS)
""",
    "swapped": """
@cute.jit
def stream_first(stream: CUstream, out: cute.Tensor):
    write(out).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)

@declare()
def swapped(target):
    return aot.Spec(stream_first, ARGUMENTS)
""",
}  # fmt: skip


def write_kernels(folder: Path, *texts: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(texts):
        (folder / f"part{number}.py").write_text(HEAD + text)
    return folder


@pytest.fixture(scope="module")
def build_bundle(build_bundle: Build) -> Build:
    """Builds that compile everything, as if for the first time: these tests are about compiling."""
    return functools.partial(build_bundle, artifacts=None)


@pytest.fixture(scope="module")
def partial(build_bundle: Build, tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    """Everything that is bad beside one kernel that is good, in one build."""
    folder = write_kernels(tmp_path_factory.mktemp("bad") / "kernels", GOOD, *BAD.values())
    (folder / "raises_on_import.py").write_text("import aot\n\nraise OSError('no tuning table')\n")
    return build_bundle(folder, timeout=12.0, jobs=2)  # one of them hangs until then


def problem(result: BuildResult | BuildError, kernel: str) -> Failure:
    (found,) = [item for item in result.failures if item.kernel == kernel]
    return found


def test_one_kernel_that_is_good_is_built_whatever_the_others_do(partial: BuildResult) -> None:
    assert list(partial.manifest.kernels) == ["good"]
    assert partial.manifest.kernels["good"].variants == 2
    assert verify(partial.path) == []


def test_every_kernel_that_failed_is_listed_once_with_its_architecture(partial: BuildResult) -> None:
    assert sorted(item.kernel for item in partial.failures if item.kernel) == sorted(BAD)
    assert {item.arch for item in partial.failures if item.kernel} == {"sm_90a"}


def test_a_bundle_that_lacks_kernels_says_so_in_its_manifest(partial: BuildResult) -> None:
    manifest = Manifest.read(partial.path)
    assert not manifest.complete
    assert {failure["kernel"] for failure in manifest.failures} == {"", *BAD}


def test_a_file_that_raises_on_import_is_named_with_its_line(partial: BuildResult) -> None:
    message = problem(partial, "").message
    assert re.search(r"raises_on_import\.py` raises on import: .*:3: OSError: no tuning table", message)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("segfault_tracing", r"the compiler was ended by SIGSEGV"),
        ("segfault_spec", r"part2\.py:\d+: the process that runs its declaration was ended by SIGSEGV"),
        ("hangs_tracing", r"the compiler did not finish within 12 s"),
        ("killed_tracing", r"ended by SIGKILL, as the system does if memory runs out\nhint: pass `--memory`"),
        ("memory_tracing", r"(?s)MemoryError.*\nhint: memory ran out; pass `--memory` or fewer `--jobs`"),
        ("handles_tracing", r"(?s)Too many open files.*\nhint: file handles ran out; raise the limit \(`ulimit -n`\)"),
        ("exits_spec", r"part7\.py:\d+: kernel exits_spec raises for sm_90a: .*part7\.py:\d+: SystemExit: 7"),
        ("raises_spec", r"kernel raises_spec raises for sm_90a: .*part8\.py:\d+: KeyError: 'nothing'"),
        ("raises_tracing", r"part9\.py:\d+: \w+: no such tile\n    raise "),
        (
            "shared_memory",
            r"a block needs 307200 bytes of shared memory \(0 static, 307200 dynamic\), sm_90a has 232448",
        ),
        ("shared_memory_once", r"a block needs 307200 bytes of shared memory .*, sm_90a has 232448"),
        ("wide_block", r"a block of \(2048, 1, 1\) has 2048 threads, sm_90a allows 1024"),
        ("large_cluster", r"a cluster of \(64, 1, 1\) has 64 blocks, sm_90a allows 16"),
        (
            "unannotated_constant",
            r"the jit function's factor is not Constexpr\nhint: annotate it with cutlass\.Constexpr",
        ),
        (
            "without_stream",
            r"no stream among the arguments, .*stream 0.*\nhint: .*aot\.Stream\(\).*default_stream=True",
        ),
        ("variant_twice", r"gives variant variant_twice__f32 twice, at \{'dtype': 'f32'\} and at \{'dtype': 'f32'\}"),
        ("unreachable", r"unreachable__few can never be chosen, .*\nhint: declare the more special variant first"),
        ("nonsense", r"kernel nonsense returned \{'not': 'a spec'\} at \{\}\nhint: return an aot\.Spec"),
        ("nothing_launched", r"no GPU code came out\nhint: the jit function must launch a kernel"),
        ("wrong_guard", r"kernel wrong_guard: guard: True is not a text"),
        (
            "undecorated",
            r"kernel undecorated: `forgotten` has no @cute\.jit\nhint: write @cute\.jit above `def forgotten`",
        ),
        (
            "not_launched",
            r"`on_the_device` is a @cute\.kernel, .*\nhint: pass the @cute\.jit function that launches it",
        ),
        (
            "swapped",
            r"`stream_first` takes \(stream, out\), and aot\.Spec passes \(out, stream\): out, stream would be",
        ),
    ],
)
def test_what_is_wrong_with_a_kernel_is_said_with_what_was_seen(
    partial: BuildResult, kernel: str, message: str
) -> None:
    assert re.search(message, problem(partial, kernel).message), problem(partial, kernel).message


@pytest.mark.parametrize(
    ("kernel", "words"),
    [("segfault_tracing", "about to crash"), ("segfault_spec", "last words"), ("raises_tracing", "in fail")],
)
def test_the_log_of_what_failed_ends_with_its_last_words(partial: BuildResult, kernel: str, words: str) -> None:
    failure = problem(partial, kernel)
    assert words in failure.log + failure.trace


def test_a_crash_names_the_line_of_the_kernel_that_crashed(partial: BuildResult) -> None:
    assert re.search(r'part1\.py", line \d+ in crash', problem(partial, "segfault_tracing").log)
    assert re.search(r'part2\.py", line \d+ in segfault_spec', problem(partial, "segfault_spec").log)


def test_a_kernel_without_a_stream_is_built_if_it_means_stream_zero(small_bundle_path: Path) -> None:
    assert "fill_stream_zero" in Manifest.read(small_bundle_path).kernels


def test_two_kernels_of_one_name_stop_the_build_and_both_places_are_named(build_bundle: Build, tmp_path: Path) -> None:
    folder = write_kernels(tmp_path / "kernels", GOOD, GOOD)
    with pytest.raises(DeclarationError, match=r"two kernels are called good: .*part0\.py:\d+ and .*part1\.py:\d+"):
        build_bundle(folder, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_that_takes_the_process_down_is_reported_with_the_signal_and_the_log(
    build_bundle: Build, tmp_path: Path
) -> None:
    text = GOOD + '\nprint("importing", flush=True)\nos.kill(os.getpid(), signal.SIGABRT)\n'
    with pytest.raises(BuildError, match="no kernel could be read") as caught:
        build_bundle(write_kernels(tmp_path / "kernels", text), out=tmp_path / "out")
    found = problem(caught.value, "")
    assert "the process was ended by SIGABRT" in found.message
    assert "importing" in found.log


def test_a_file_that_hangs_or_crashes_on_import_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    crash = "\nos.kill(os.getpid(), signal.SIGSEGV)\n"
    folder = write_kernels(tmp_path / "kernels", "\ntime.sleep(600)\n", GOOD, crash)
    worker, failures = open_source(Session(str(folder), Options(), timeout=10.0), None, tmp_path / "log")
    worker.close()
    assert [kernel.name for kernel in worker.declared.kernels] == ["good"]
    hangs, crashes = (failures[str(folder / f"part{number}.py")].message for number in (0, 2))
    assert hangs == f"reading `{folder / 'part0.py'}`: the process did not finish within 10 s"
    assert crashes == f"reading `{folder / 'part2.py'}`: the process was ended by SIGSEGV"


def test_a_kernel_that_takes_more_than_the_memory_allowed_fails_alone(build_bundle: Build, tmp_path: Path) -> None:
    large = """
held = []

def take():
    held.append(b"1" * (2 << 30))
    time.sleep(600)

@declare()
def large(target):
    return aot.Spec(Launch(before=take), ARGUMENTS)
"""
    folder = write_kernels(tmp_path / "kernels", GOOD.replace("(32, 64)", "(32,)"), large)
    # The limit covers this process too, which has imported more or less of the tests by now. Workers import torch, if
    # it is installed, and then take most of a gigabyte. Each gigabyte that `large` takes costs a second of CPU time.
    memory = resident_bytes(os.getpid(), alone=True) + (3 << 29)
    result = build_bundle(folder, out=tmp_path / "out", memory=memory)
    assert list(result.manifest.kernels) == ["good"]
    assert re.search(r"the compiler took \d+ MB, its share of `--memory` is \d+ MB", problem(result, "large").message)


def test_a_spec_function_that_hangs_is_ended_too(build_bundle: Build, tmp_path: Path) -> None:
    text = "\n@declare()\ndef hangs(target):\n    time.sleep(600)\n"
    with pytest.raises(BuildError, match="every kernel failed") as caught:
        build_bundle(write_kernels(tmp_path / "kernels", text), out=tmp_path / "out", timeout=3.0)
    assert "did not finish within 3 s" in problem(caught.value, "hangs").message
    assert not (tmp_path / "out").exists()


def test_code_for_another_architecture_than_asked_is_refused(build_bundle: Build, tmp_path: Path) -> None:
    """CuTe DSL's CUDA 12 backend makes sm_101 code when it is asked for sm_110."""
    text = '\n@declare(archs=("sm_110",))\ndef k(target):\n    return aot.Spec(Launch(), ARGUMENTS)\n'
    with pytest.raises(BuildError, match="every kernel failed") as caught:
        build_bundle(
            write_kernels(tmp_path / "kernels", text), ("sm_110",), out=tmp_path / "out", options=Options(cuda=12)
        )
    assert "asked for sm_110, the compiler made sm_101" in problem(caught.value, "k").message


def test_an_instruction_that_an_architecture_lacks_is_named_with_its_line(build_bundle: Build, tmp_path: Path) -> None:
    """ptxas refuses it, and knows the line of the kernel alone."""
    text = """
@cute.kernel
def waits(out: cute.Tensor):
    cute.arch.griddepcontrol_wait()
    out[0] = out.element_type(1)

@cute.jit
def launch(out: cute.Tensor, stream: CUstream):
    waits(out).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)

@declare(archs=("sm_80", "sm_90a"))
def k(target):
    return aot.Spec(launch, ARGUMENTS)
"""
    with pytest.raises(BuildError, match="every kernel failed") as caught:
        build_bundle(write_kernels(tmp_path / "kernels", text), ("sm_80",), out=tmp_path / "out")
    said = (
        r"part0\.py:\d+: sm_80 has no `griddepcontrol\S*`, which needs sm_90\n    cute\.arch\.griddepcontrol_wait\(\)"
    )
    assert re.search(said, problem(caught.value, "k").message)


def test_an_incomplete_build_never_replaces_a_complete_bundle_unless_allowed(
    build_bundle: Build, tmp_path: Path
) -> None:
    good, out = GOOD.replace("(32, 64)", "(32,)"), tmp_path / "out"
    build_bundle(write_kernels(tmp_path / "kernels", good), out=out)
    before = contents(out)
    folder = write_kernels(tmp_path / "kernels", good, BAD["wide_block"])
    with pytest.raises(BuildError, match="holds a complete bundle, and this build is incomplete") as caught:
        build_bundle(folder, out=out)
    assert [item.kernel for item in caught.value.failures] == ["wide_block"]
    assert contents(out) == before
    assert not build_bundle(folder, out=out, allow_incomplete=True).manifest.complete
    assert list(Manifest.read(out).kernels) == ["good"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kernels", "out"]


def test_a_disk_that_fills_up_is_named_and_keeps_nothing(build_bundle: Build, small_disk: Path, tmp_path: Path) -> None:
    folder = write_kernels(tmp_path / "kernels", GOOD.replace("(32, 64)", "(32,)"))
    with pytest.raises(BuildError, match=r"the disk of `.*` is full: \d+ KB left|No space left on device"):
        build_bundle(folder, out=small_disk / "out")
    assert list(small_disk.iterdir()) == []


def test_line_info_puts_source_lines_into_the_code(build_bundle: Build, tmp_path: Path) -> None:
    folder = write_kernels(tmp_path / "kernels", GOOD.replace("(32, 64)", "(32,)"))
    result = build_bundle(folder, options=Options(line_info=True, keep=("ptx",)))
    ptx = (result.path / "kept" / "sm_90a" / "good__threads32.ptx").read_text()
    assert ".loc" in ptx
    assert "part0.py" in ptx


def contents(bundle: Path) -> dict[str, bytes]:
    return {path.relative_to(bundle).as_posix(): path.read_bytes() for path in bundle.rglob("*") if path.is_file()}


KEPT = ("ptx", "cubin", "ll", "mlir", "o")


@pytest.mark.usefixtures("cold_workers")
def test_the_same_inputs_give_the_same_bytes_with_any_jobs_from_any_directory(
    build_bundle: Build, tmp_path: Path
) -> None:
    text = GOOD + GOOD.replace("good", "better").replace("(32, 64)", "(96, 128)")
    kernels = write_kernels(tmp_path / "here" / "kernels", text)
    first = build_bundle(kernels, name="same", options=Options(keep=KEPT), jobs=2)
    write_kernels(tmp_path / "over" / "there" / "kernels", text)
    command = [
        sys.executable,
        "-m",
        "aot",
        "build",
        "--arch",
        "sm90",
        "--name",
        "same",
        "--jobs",
        "1",
        "--keep",
        ",".join(reversed(KEPT)),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)), "PYTHONHASHSEED": "7"}
    done = subprocess.run(command, cwd=tmp_path / "over" / "there", env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "dist/same\n"), done.stderr
    assert contents(tmp_path / "over" / "there" / "dist" / "same") == contents(first.path)
    kept = {name for name in contents(first.path) if name.startswith("kept/")}
    assert kept == {
        f"kept/sm_90a/{kernel}__threads{threads}.{kind}"
        for kernel, sizes in (("good", (32, 64)), ("better", (96, 128)))
        for threads in sizes
        for kind in (*KEPT[:-1], f"{Host.native().name}.o")
    }
    mlir = (first.path / "kept" / "sm_90a" / "good__threads32.mlir").read_text()
    assert "cuda.kernel" in mlir and "here" not in mlir


def test_a_backend_that_is_not_installed_is_named(tmp_path: Path) -> None:
    from aot.compile.backend import find_backend

    try:
        find_backend(13)
    except ToolchainError as error:
        # NVIDIA's package alone, by its name, would be any version of it, without the CUDA runtime to link.
        assert error.hint is not None and error.hint.endswith(("[cu13]'`", "`cu13`"))
        with pytest.raises(ToolchainError, match="CuTe DSL's CUDA 13 backend is not installed"):
            open_source(Session(str(write_kernels(tmp_path, GOOD)), Options(cuda=13)), None, tmp_path / "log")
    else:
        pytest.skip("both backends are installed")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"archs": ("sm_80",)}, "no kernel is written for sm_80"),
        ({"archs": ("sm_99",)}, "unknown architecture: 'sm_99'"),
        ({"select": ("gemm*", "attn")}, r"no kernel matches gemm\*, attn"),
        ({"name": "not a name"}, "'not a name' cannot name a bundle"),
    ],
)  # fmt: skip
def test_what_does_not_exist_is_answered_with_what_does(
    settings: dict[str, object], message: str, build_bundle: Build, tmp_path: Path
) -> None:
    from aot.errors import AotError

    folder = write_kernels(tmp_path / "kernels", GOOD)
    with pytest.raises(AotError, match=message) as caught:
        build_bundle(folder, out=tmp_path / "out", **settings)
    assert not isinstance(caught.value, BuildError)
    assert caught.value.hint
    assert not (tmp_path / "out").exists()


def test_what_is_not_a_bundle_is_refused_before_a_worker_starts(build_bundle: Build, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds something that is not a bundle"):
        build_bundle(tmp_path / "no kernels here", out=tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_all_is_every_architecture_that_some_kernel_is_written_for(tmp_path: Path) -> None:
    worker, failures = open_source(Session(str(SAMPLES), Options()), None, tmp_path / "log")
    worker.close()
    assert (worker.declared.failures, failures) == ((), {})
    assert {str(arch) for kernel in worker.declared.kernels for arch in kernel.archs} >= {"sm_80", "sm_90a", "sm_100f"}


def test_details_tell_what_came_out_of_each_variant(small_bundle_path: Path) -> None:
    for arch in ("sm_80", "sm_90a"):
        details = json.loads((small_bundle_path / "details" / f"{arch}.json").read_text())
        by_name = {variant["name"]: variant for variant in details["variants"]}
        assert sorted(by_name) == ["fill_epilogue__identity", "fill_epilogue__relu", "fill_stream_zero"]
        assert [by_name[name]["launches"][0]["block"][0] for name in sorted(by_name)] == [96, 160, 32]
        assert all(variant["launches"][0]["registers"] > 0 for variant in by_name.values())
        assert all(variant["verified_on"] == [] for variant in by_name.values())


def test_a_bundle_holds_what_the_design_says_and_nothing_else(small_bundle_path: Path) -> None:
    lib = f"lib/{Host.native().name}"
    assert sorted(contents(small_bundle_path)) == sorted([
        "manifest.json", "kernels.json", "files.json", "provenance.json", "sbom.cdx.json", "details/sm_80.json", "details/sm_90a.json", f"{lib}/libsmall.so", f"{lib}/libsmall_cuda.so",
        "include/small.h", "include/small.hpp", f"{lib}/libsmall.a", f"{lib}/libsmall_sm_80.a",
        f"{lib}/libsmall_sm_90a.a", f"{lib}/libsmall_cuda.a", f"{lib}/libsmall_cudart.a",
        f"{lib}/sm_80/fill_epilogue.so", f"{lib}/sm_80/fill_stream_zero.so",
        f"{lib}/sm_90a/fill_epilogue.so", f"{lib}/sm_90a/fill_stream_zero.so",
    ])  # fmt: skip


def test_the_manifest_records_toolchain_driver_and_floor(small_bundle_path: Path) -> None:
    manifest = Manifest.read(small_bundle_path)
    assert manifest.complete
    assert manifest.toolchain.keys() >= {"nvidia-cutlass-dsl", "apache-tvm-ffi", "ziglang", "cuda"}
    assert set(manifest.requires["driver"]) == {"sm_80", "sm_90a"}
    (host,) = manifest.hosts.values()
    assert (host.glibc, host.cudart) == ("2.28", "static")


def paths_in(content: bytes, paths: Sequence[Path]) -> list[Path]:
    return [path for path in paths if str(path).encode() in content]


def test_no_file_of_a_bundle_holds_a_path_of_the_machine_it_was_built_on(small_bundle_path: Path) -> None:
    machine = [PROJECT, small_bundle_path, Path.home()]
    for name, content in contents(small_bundle_path).items():
        assert paths_in(content, [path for path in machine if len(path.parts) > 2]) == [], name


def test_no_library_of_a_bundle_has_debug_information(small_bundle_path: Path) -> None:
    """It names folders of the machine that compiled it, which need not be this one: zig keeps what it has compiled."""
    libraries = [path for path in small_bundle_path.rglob("*.so") if path.is_file()]
    assert libraries
    for path in libraries:
        with path.open("rb") as file:
            names = [section.name for section in ELFFile(file).iter_sections()]
        assert [name for name in names if name.startswith(".debug")] == [], path
