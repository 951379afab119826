"""A library that nobody edited runs from a bundle: captured without a GPU, found in a fresh process, launched."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from aot_runtime.arch import Arch
from aot_runtime.errors import ArgumentError
from aot_runtime.serving.server import serve
from cutlass_double import write_double
from observing import run_python
from places import PROJECT, TESTS
from without_frameworks import RESULTS as MAY_IMPORT

from aot.bundle.details import read_details
from aot.bundle.manifest import Manifest
from aot.bundle.verifying.verify import verify
from aot.cli.main import main
from aot.compile.messages import Compiled, Options
from aot.compile.process import Worker

FOREIGN = TESTS / "foreign"
GUIDE = PROJECT / "docs" / "guides" / "capture.md"
BEGIN = """
import sys
from pathlib import Path
import aot_runtime
from standin import Standin
bundle, directory, foreign = map(Path, sys.argv[1:])
cuda = Standin.load(directory)
cuda.reset(capabilities=[(9, 0)])
serving = aot_runtime.serve(bundle)
assert "cutlass" not in sys.modules
sys.path.insert(0, str(foreign))
from aot_runtime.arch import Arch
from aot.compile.device.devices import Device
from aot.compile.device.hardware_info import answer_for
from rowlib.adding import add
from rowlib.scaling import scale, _compile_scale
answer_for(Device.of(Arch.parse("sm_90a")))  # the stand-in does not answer CuTe DSL's own questions
x, out = (cuda.tensor((5, 64), "float16") for _ in range(2))
"""
SERVED = (
    BEGIN
    + """
print(serving._bundle is not None, "tvm_ffi" in sys.modules)
scale(x, None, out, dtype="f16", n=64)
scale(x, None, out, 2.0, dtype="f16", n=64)
rows = [cuda.tensor((100,), "float32") for _ in range(4)]
def double(value):
    return value * 2.0
add(*rows[:3], bias=rows[3], modify=double)
print([(launch.grid[0], launch.block[0]) for launch in cuda.launches], serving.hits, serving.misses)
try:
    scale(x, None, out, dtype="f16", n=128)
except aot_runtime.MissError as error:
    print(*error.message.splitlines()[1:4], "capture EXERCISE --name rows --arch sm_90a --host" in str(error), sep="\\n")
compiled = _compile_scale("f16", 64, False)
print(compiled.export_to_c("nowhere", function_name="f"), serving.report().partition(" not found")[0])
serving.close()
from cutlass.base_dsl.compiler import CompileCallable
print(CompileCallable._compile.__module__)
"""
)
EDITED = (
    BEGIN
    + """
try:
    scale(x, None, out, dtype="f16", n=64)
except aot_runtime.MissError as error:
    print(error.message)
"""
)


def run_program(folder: Path, code: str, *arguments: object) -> str:
    """Run code as a script: functions of a script are known by their text, which has to lie in a file."""
    (folder / "program.py").write_text(code)
    run = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    return run_python(run, folder / "program.py", *arguments, variables={MAY_IMPORT: "this is such a process"})


def test_the_library_is_served_in_a_fresh_process(rows_bundle: Path, standin_directory: Path, tmp_path: Path) -> None:
    printed = run_program(tmp_path, SERVED, rows_bundle, standin_directory, FOREIGN).splitlines()
    assert "\n".join(printed[2:5]) in GUIDE.read_text() and "attributes.n: captured 64, this call 128" in printed[3]
    assert [*printed[:2], *printed[5:]] == [
        "True True",  # opened when TVM-FFI was imported
        "[(5, 64), (5, 64), (132, 64)] 2 0",
        "True",
        f"None aot: 2 kernels served from `{rows_bundle}`, 1",
        "cutlass.base_dsl.compiler",
    ]


def test_a_bundle_without_captured_calls_is_not_served(small_bundle_path: Path) -> None:
    with pytest.raises(ArgumentError, match="holds no captured call") as raised:
        serve(small_bundle_path)
    assert "aot capture" in str(raised.value.hint) and "--out" not in str(raised.value.hint)


def test_a_damaged_bundle_fails_the_first_compile_and_not_the_import(rows_bundle: Path, tmp_path: Path) -> None:
    write_double(tmp_path)
    shutil.copytree(rows_bundle, tmp_path / "bundle")
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import aot_runtime
aot_runtime.serve(f"{sys.argv[1]}/bundle")
open(f"{sys.argv[1]}/bundle/kernels.json", "w").close()
from cutlass.base_dsl.compiler import CompileCallable
try:
    CompileCallable()(print)
except aot_runtime.AotError as error:
    print("kernels.json" in str(error))
"""
    assert run_python(code, tmp_path) == "True"


@pytest.mark.parametrize(
    ("module", "edit", "told"),
    [
        ("scaling", "# an edit in a module whose functions run", "the source of rowlib.scaling changed"),
        ("caching", "# an edit in a module that compiles, but is not traced", ""),
        (
            "config",
            "MOST = 32  # it shapes an attribute of the kernel",
            "attributes.threads: captured 64, this call 32",
        ),
    ],
)
def test_an_edited_library_misses_if_that_shapes_the_code(
    rows_bundle: Path, standin_directory: Path, tmp_path: Path, module: str, edit: str, told: str
) -> None:
    shutil.copytree(FOREIGN / "rowlib", tmp_path / "rowlib", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "rowlib" / f"{module}.py").open("a") as file:
        file.write(f"\n{edit}\n")
    found = run_program(tmp_path, EDITED, rows_bundle, standin_directory, tmp_path)
    assert told in found and bool(found) == bool(told)


def test_captured_kernels_are_functions_of_the_bundle_and_need_no_cute_dsl(
    rows_bundle: Path, standin_directory: Path
) -> None:
    code = """
    import sys
    from pathlib import Path
    import aot_runtime
    from standin import Standin
    cuda = Standin.load(Path(sys.argv[2]))
    cuda.reset(capabilities=[(9, 0)])
    bundle = aot_runtime.load(sys.argv[1])
    x, out = (cuda.tensor((7, 64), "float16") for _ in range(2))
    for name in bundle.kernels:
        record = bundle._record(name)
        if record.captured["call"]["arguments"]["x"] == "tensor Float16 (?0, 64) strides (64, 1) gmem align 2":
            bundle[name](out=out, x=x, weight=None, alpha=0.5)
    print([launch.grid[0] for launch in cuda.launches], "cutlass" in sys.modules)
    """
    assert run_python(code, rows_bundle, standin_directory) == "[7] False"


def test_the_command_lists_what_it_captured_and_builds_the_same_bytes_again(
    rows_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    commands_share_artifacts: None,
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(FOREIGN, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("__pycache__"))
    command = ["capture", "elsewhere/exercise.py", "--arch", "sm90", "--name", "rows", "--cudart", "shared"]
    assert main([*command, "--no-archives", "--out", "rows"]) == 0
    listed = capsys.readouterr().err
    assert "rowlib.adding.Add.__call__" in listed
    shown = re.findall(r"^(?:kernel|scale_\w+)  .*$", GUIDE.read_text(), re.MULTILINE)
    assert len(shown) == 2 and set(shown) <= set(listed.splitlines()), "the guide shows what the command prints"
    for name in ("kernels.json", "files.json"):
        assert (tmp_path / "rows" / name).read_bytes() == (rows_bundle / name).read_bytes()


def test_a_capture_follows_the_rules_of_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], commands_share_artifacts: None
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(FOREIGN / "rowlib", tmp_path / "foreign" / "rowlib", ignore=shutil.ignore_patterns("__pycache__"))
    # One call: what is compiled for three architectures does not matter to the rules.
    program = 'from rowlib.scaling import scale\n\nscale(None, None, None, dtype="f16", n=64)\n'
    (tmp_path / "foreign" / "exercise.py").write_text(program)

    def capture(archs: str, *more: str) -> tuple[int, str]:
        command = ["capture", "foreign/exercise.py", "--arch", archs, "--name", "rows", "--cudart", "shared"]
        code = main([*command, "--no-archives", "--out", "rows", *more])
        return code, capsys.readouterr().err

    def archs() -> list[str]:
        return [str(arch) for arch in Manifest.read("rows").archs]

    assert capture("sm80")[0] == 0
    code, said = capture("sm90,sm100")  # each is built apart, and both are joined with what stays
    assert code == 2 and "for sm_80" in said and "`--update`" in said and "`--replace`" in said
    assert archs() == ["sm_80"]
    code, said = capture("sm90,sm100", "--update")
    assert code == 0 and "kept from the bundle; dropped: nothing" in said
    assert archs() == ["sm_80", "sm_90a", "sm_100f"]
    assert verify(Path("rows")) == []
    with Path("foreign/exercise.py").open("a") as file:
        file.write("# an edit\n")
    code, said = capture("sm90", "--update")
    assert code == 2 and "exercise.py changed" in said
    assert capture("sm90", "--replace")[0] == 0
    assert archs() == ["sm_90a"]


RECORDED = """
import sys
sys.path.insert(0, sys.argv[1])
from rowlib.scaling import _compile_scale
_compile_scale("f16", 64, False)
"""


def test_a_program_that_is_not_there_or_compiles_nothing_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["capture", "--record", str(tmp_path), "--", "no-such-program-here"]) == 2
    assert "`no-such-program-here` cannot be run: No such file" in capsys.readouterr().err
    assert main(["capture", "--record", str(tmp_path), "--", sys.executable, "-S", "-c", ""]) == 2
    assert "no process of the program compiled" in capsys.readouterr().err


def test_what_a_program_compiles_is_recorded_and_built_under_the_key_that_a_capture_gives_it(
    rows_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program.py").write_text(RECORDED)
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")  # the program compiles for real, and there is no device to ask
    calls = tmp_path / "calls"
    program = [sys.executable, "-B", str(tmp_path / "program.py"), str(FOREIGN), "--json"]
    assert main(["capture", "--record", str(calls), "--", *program]) == 0
    monkeypatch.setenv("PYTHONPATH", str(FOREIGN))  # the library has to be there to build its kernels
    worker = Worker(str(calls), Arch.parse("sm_90a"), Options(), tmp_path / "log")
    try:
        (kernel,) = worker.declared.kernels
        known = Manifest.read(rows_bundle).kernels[kernel.name]
        assert (kernel.captured or {})["call"] == (known.captured or {})["call"]
        (variant,) = worker.expand(kernel.name)
        compiled = worker.compile(kernel.name, variant.table.name, tmp_path / "x.ll", tmp_path / "log")
    finally:
        worker.close()
    assert isinstance(compiled, Compiled)
    assert {"sm_90a": compiled.reads} == (known.captured or {})["reads"]
    (details,) = [item for item in read_details(rows_bundle / "details" / "sm_90a.json") if item.kernel == kernel.name]
    assert compiled.cubin_sha256 == details.cubin_sha256, "the same code as the exercise gave"
