"""The command line as its users meet it: data on stdout, words on stderr, an exit code, never a traceback."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from places import SAMPLES

from aot.cli.main import COMMANDS, main
from aot.cli.main import run as run_command
from aot.cli.parser import GROUPS, SHELLS
from aot.cli.report import print_message
from aot.versions import install_extras

FILL = str(SAMPLES / "fill.py")


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


Run = Callable[..., Done]


def without_traceback(done: Done) -> Done:
    """The log of what an author's kernel raised may be quoted, each line marked; an error of ours has none."""
    assert not re.search(r"^(?!    \| )\s*Traceback", done.err, re.MULTILINE), done.err
    return done


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """``python -m aot ...`` in an empty directory."""

    def aot(*arguments: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Done:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)), **(env or {})}
        command = [sys.executable, "-m", "aot", *map(str, arguments)]
        done = subprocess.run(command, cwd=cwd or tmp_path, env=environment, capture_output=True, text=True)
        return without_traceback(Done(done.returncode, done.stdout, done.stderr))

    return aot


@pytest.fixture
def run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The same in this process, which has imported everything: for what other tests run in a process of its own."""
    monkeypatch.chdir(tmp_path)

    def aot(*arguments: str | Path) -> Done:
        capsys.readouterr()
        return without_traceback(Done(main([str(word) for word in arguments]), *capsys.readouterr()))

    return aot


def assert_refused(done: Done, code: int, *said: str) -> None:
    """Nothing on stdout; on stderr one error, and what to do."""
    assert (done.code, done.out) == (code, ""), done.err
    assert done.err.count("error: ") == 1, done.err
    for text in said:
        assert text in done.err


# -- usage ---------------------------------------------------------------------------------------------------------


def test_help_documents_the_exit_codes_and_every_command(run: Run) -> None:
    done = run("--help")
    assert done.code == 0
    words = " ".join(done.out.split())
    assert "Exit codes: 0 success; 1 some kernels failed, or a bundle does not verify; 2 wrong usage." in words
    places = [re.search(rf"^  {command} ", done.out, re.MULTILINE) for command in COMMANDS]
    assert all(places)
    titles = [re.search(rf"^{title}:", done.out, re.MULTILINE) for title in GROUPS]
    assert all(titles)
    assert "new" in next(iter(GROUPS.values()))  # what one begins with


def test_help_says_what_a_command_does_even_if_python_drops_documentation() -> None:
    done = subprocess.run([sys.executable, "-OO", "-m", "aot", "diff", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "Compare two bundles" in done.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_completions_name_commands_and_their_options(shell: str, run_here: Run, tmp_path: Path) -> None:
    done = run_here("--print-completion", shell)
    assert done.code == 0
    assert all(command in done.out for command in COMMANDS)
    assert "allow-incomplete" in done.out
    if shell == "bash":
        (tmp_path / "aot.sh").write_text(done.out)
        subprocess.run(["bash", "-n", tmp_path / "aot.sh"], check=True)


def test_completions_without_shtab_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["--print-completion", "bash"]) == 2
    assert "pip install shtab" in capsys.readouterr().err
    assert main(["--", "build"]) == 2


@pytest.mark.parametrize(
    "arguments",
    [("bake",), ("--",), ("build", "--arch"), ("verify",), ("inspect", "a", "b"), ("build", "--arch", "sm90", "--nope"),
     ("build", "--arch", "sm90", "--cuda", "11"), ("build", "--arch", "sm90", "--jobs", "two")],
)  # fmt: skip
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    message, _, hint = err.partition("\n\n")
    assert message.startswith("error: ") and "\n" not in message
    assert hint.startswith("hint: ") and hint.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("biuld",), "hint: did you mean `build`? commands: "),
        (("serve", "x"), "hint: `python -m aot_runtime serve BUNDLE -- PROGRAM`"),
        (("verfy", "x"), "hint: did you mean `verify`? commands: "),
        (("qqqq",), "hint: commands: new, list, build"),
        (("build", "--arhc", "sm90"), "hint: "),
        (("build", "--arch", "sm90", "--line-inf0"), "hint: did you mean `--line-info`?"),
        (("cache", "--older-then=3d"), "hint: did you mean `--older-than`?"),
        (("prune", "x", "--out", "y"), "hint: `python -m aot prune --help` lists its arguments"),
        (("build", "--arch", "sm90", "--host", "amd"), "hint: did you mean `amd64`? known: "),
        (("build", "--arch", "sm90", "--host", "sparc"), "hint: known: "),
        (("build", "--arch", "sm80", "sm90"), "hint: `--source PATH` names the kernels, and `--arch sm80,sm90`"),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    err = capsys.readouterr().err
    assert "Exit codes: " in err
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", err, re.MULTILINE)


def test_quiet_leaves_results_and_drops_what_is_said_beside_them(
    small_bundle_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for before in (("verify", "-q"), ("-q", "verify")):
        assert main([*before, str(small_bundle_path)]) == 0
        assert capsys.readouterr() == ("", "")
    assert main(["verify", str(small_bundle_path)]) == 0
    assert capsys.readouterr().err.endswith(": sound\n")


def test_colour_is_for_terminals_and_can_be_turned_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    print_message("error: wrong")
    assert capsys.readouterr().err == "error: wrong\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    print_message("error: wrong")
    assert capsys.readouterr().err == "\x1b[1;31merror:\x1b[0m wrong\n"
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            print_message("error: wrong")
        assert capsys.readouterr().err == "error: wrong\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--jobs", "0"), "`--jobs` is 0"),
        (("--timeout", "0"), "`--timeout` is 0"),
        (("--timeout", "-3"), "`--timeout` is -3"),
        (("--timeout", "nan"), "`--timeout` is nan"),
        (("--timeout", "inf"), "`--timeout` is inf"),
        (("--keep", "ptx,elf"), "cannot keep 'elf'"),
        (("--host", "riscv64"), "unknown host: 'riscv64'"),
        (("--glibc", "new"), "not a glibc version: 'new'"),
        (("--glibc", "2.5"), "glibc 2.5 is too old"),
        (("--name", "a b"), "'a b' cannot name a bundle"),
        (("--name", "../x"), "'../x' cannot name a bundle"),
    ],
)
def test_a_value_that_makes_no_sense_is_named(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["build", "--kernels", FILL, "--arch", "sm90", *arguments])
    assert_refused(Done(code, *capsys.readouterr()), 2, said, "\nhint: ")


# -- list ----------------------------------------------------------------------------------------------------------


def test_list_shows_what_is_declared(run: Run) -> None:
    done = run("list", "--kernels", FILL, "--arch", "sm90")
    assert done.code == 0
    assert "reading declarations" in done.err  # which takes seconds
    assert re.search(r"^fill_guarded +sm_90a +4 +0  no$", done.out, re.MULTILINE)
    assert "\n  fill_guarded (sm_90a): n <= 100; n % 8 == 0; n <= 1000; value == 0.5\n" in done.out
    assert re.search(r"^\d+ variants, 0 cached; time for the rest: not known", done.out, re.MULTILINE)
    epilogue = done.out.partition("fill_epilogue: ")[2].partition("\nfill")[0]
    assert epilogue.startswith("A compile-time class that the caller names.\n  parameters: out\n")
    assert "\n  choices: epilogue: identity|relu\n" in epilogue
    assert re.search(r"\n  architectures: .*sm_90a", epilogue)
    assert "\n  contract: none" in epilogue


def test_list_as_json_is_json_alone(run_here: Run) -> None:
    done = run_here("list", "--kernels", FILL, "--arch", "sm90", "--json")
    data = json.loads(done.out)
    assert done.code == 0
    (fill,) = [kernel for kernel in data["kernels"] if kernel["name"] == "fill"]
    assert fill["axes"] == {"dtype": ["f16", "bf16", "f32"], "aligned": ["aligned", "not_aligned"]}
    assert [parameter["name"] for parameter in fill["parameters"]] == ["out", "value"]
    (guarded,) = [one for one in data["plan"] if one["kernel"] == "fill_guarded"]
    assert (len(guarded["variants"]), guarded["guards"][0], guarded["contract"]) == (4, "n <= 100", False)
    assert (data["estimate"], data["failures"]) == (None, [])


def test_list_shows_the_rest_of_a_folder_with_a_broken_file(run_here: Run, tmp_path: Path) -> None:
    shutil.copy(FILL, tmp_path / "fill.py")
    (tmp_path / "broken.py").write_text("import nothing_like_this")
    done = run_here("list", "--kernels", tmp_path, "--arch", "sm90")
    assert done.code == 1
    assert "fill_epilogue" in done.out
    assert re.search(r"^failed: `.*broken\.py` raises on import: .*:1: ModuleNotFoundError", done.err, re.MULTILINE)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("nowhere/at/all", "`nowhere/at/all` does not exist"),
        ("no_such_module", "there is no module `no_such_module`"),
        (".", "no kernel is declared in `.`"),
    ],
)
def test_a_source_without_kernels_is_refused(run_here: Run, source: str, said: str) -> None:
    assert_refused(run_here("list", "--kernels", source), 2, said, "\nhint: ")


# -- build ---------------------------------------------------------------------------------------------------------


def test_build_prints_exactly_the_path_and_reports_on_stderr(run: Run, tmp_path: Path) -> None:
    done = run(
        "build",
        "--kernels",
        FILL,
        "--kernel",
        "fill_stream*",
        "--arch",
        "sm80,sm_80",
        "--arch",
        "sm90",
        "--out",
        "my bundle",
    )
    assert (done.code, done.out) == (0, "my bundle\n"), done.err
    assert re.search(r"\[2/2\] sm_(80|90a) fill_stream_zero: ", done.err)
    assert "bundle fill: 1 kernel (fill_stream_zero), 2 variants, sm_80, sm_90a" in done.err
    assert "\x1b" not in done.err
    verified = run("verify", "my bundle")
    assert (verified.code, verified.out, verified.err) == (0, "", "my bundle: sound\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my bundle"]


TWO = """
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
import aot

@cute.kernel
def write(out: cute.Tensor):
    out[cute.arch.thread_idx()[0]] = out.element_type(1)

class Launch:
    def __init__(self, threads):
        self.threads = threads
    @cute.jit
    def __call__(self, out: cute.Tensor, stream: CUstream):
        write(out).launch(grid=[1, 1, 1], block=[self.threads, 1, 1], stream=stream)

def declare(name, threads):
    @aot.kernel(parameters=(aot.In("out"),), archs=("sm_80", "sm_90a"), name=name)
    def make(target):
        return aot.Spec(Launch(threads), {"out": aot.Tensor("f32", ("n",)), "stream": aot.Stream()})
    return make

good = declare("good", 32)
wide = declare("wide", 2048)
"""


def test_build_with_failures_is_exit_code_1_and_the_rest_is_usable(run_here: Run, tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(TWO)
    build = ("build", "--kernels", "two.py", "--cudart", "shared", "--no-archives", "--cache", "cache")
    done = run_here(*build, "--arch", "all,all", "--json", "--jobs", "2")
    assert done.code == 1, done.err
    data = json.loads(done.out)
    assert (data["path"], data["complete"], data["kernels"]) == ("dist/two", False, {"good": 2})
    assert sorted(problem["arch"] for problem in data["failures"]) == ["sm_80", "sm_90a"]
    assert re.search(r"^failed: sm_80 wide: a block of \(2048, 1, 1\) has 2048 threads", done.err, re.MULTILINE)
    assert "Traceback" not in done.err
    verified = run_here("verify", "dist/two")
    assert verified.code == 1
    assert "incomplete: wide failed to build for sm_80: a block of (2048, 1, 1) has 2048 threads" in verified.out
    inspected = run_here("inspect", "dist/two")
    assert inspected.code == 0
    assert "INCOMPLETE, 2 failures" in inspected.out
    assert "failed: sm_90a wide: a block of (2048, 1, 1)" in inspected.out
    # A build that does not try the kernel again does not make the bundle whole; taking the kernel out does.
    more = run_here(*build, "--arch", "sm80", "--kernel", "good", "--add")
    assert (more.code, "INCOMPLETE: 2 failed in earlier builds" in more.err) == (0, True), more.err
    assert run_here("verify", "dist/two").code == 1
    assert run_here("prune", "dist/two", "--kernel", "wide", "--arch", "sm80").code == 0
    assert "wide failed to build for sm_80" not in run_here("verify", "dist/two").out
    assert run_here("prune", "dist/two", "--kernel", "wide").code == 0
    assert run_here("verify", "dist/two").code == 0


def test_build_of_nothing_but_failures_writes_nothing(run_here: Run, tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(TWO)
    done = run_here("build", "--kernels", "two.py", "--arch", "sm90", "--kernel", "wide")
    assert_refused(done, 1, "failed: sm_90a wide: a block of", "error: every kernel failed")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["two.py"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--arch", "sm_90b"), ("unknown architecture: 'sm_90b'", "hint: did you mean `sm_90", "known: sm80")),
        (("--arch", "sm90,sm7"), ("unknown architecture: 'sm7'",)),
        (("--arch", ","), ("unknown architecture: ''",)),
        (("--arch", "sm_121a"), ("no kernel is written for sm_121a", "hint: they are written for sm_80")),
        (("--arch", "all", "--kernel", "gemm"), ("no kernel matches gemm", "hint: there are: fill, fill_clusters")),
        (("--arch", "sm80", "--kernel", "fill_clusters"), ("no kernel is written for sm_80", "sm_90a, sm_100f")),
    ],
)
def test_what_does_not_exist_is_answered_with_what_does(
    run_here: Run, tmp_path: Path, arguments: tuple[str, ...], said: tuple[str, ...]
) -> None:
    assert_refused(run_here("build", "--kernels", FILL, *arguments), 2, *said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", ""),
        ("sign", "--new-key", "--key", ""),
        ("sign", "--new-key", "--key="),
        ("build", "--kernels", FILL, "--arch", "sm90", "--name", ""),
        ("build", "--arch", "sm90", "--kernels", ""),
        ("cache", "--clear", "--cache", ""),
        ("explain", "bundle", "scale", "--device", ""),
    ],
)
def test_a_variable_that_is_not_set_is_wrong_usage_and_not_the_present_folder(
    run_here: Run, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    assert_refused(
        run_here(*arguments), 2, "empty" if arguments[-2] == "inspect" else "followed by nothing", "variable"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("--out=~/kernels",), ("--out", "~/kernels"), ("--cache=~",)])
def test_a_home_that_the_shell_has_left_alone_is_no_folder_of_that_name(
    run_here: Run, tmp_path: Path, words: tuple[str, ...]
) -> None:
    assert_refused(run_here("build", "--kernels", FILL, "--arch", "sm90", *words), 2, "has not replaced `~`", "$HOME")
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_is_not_a_bundle_is_left_alone(run_here: Run, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.tex").write_text("years")
    (tmp_path / "file").write_text("")
    for out, said in (
        ("work", "holds something that is not a bundle"),
        ("file", "is not a directory"),
        ("file/x", "is not a"),
    ):
        assert_refused(run_here("build", "--kernels", FILL, "--arch", "sm90", "--out", out), 2, said, "\nhint: ")
    assert (tmp_path / "work" / "thesis.tex").read_text() == "years"


def test_a_scratch_directory_that_does_not_exist_is_an_error_in_words(run: Run, tmp_path: Path) -> None:
    program = (
        "import tempfile, sys; tempfile.tempdir = sys.argv.pop(1); from aot.cli.main import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "gone"), "build", "--kernels", FILL, "--arch", "sm90"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert_refused(without_traceback(Done(done.returncode, done.stdout, done.stderr)), 1, "No such file or directory")


# -- what is not installed -----------------------------------------------------------------------------------------


@pytest.fixture
def hide(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, str]]:
    """An environment in which a package cannot be found, as if it were not installed."""

    def environment(package: str) -> dict[str, str]:
        shim = tmp_path_factory.mktemp("shim")
        (shim / "sitecustomize.py").write_text(
            "from importlib.machinery import PathFinder\n"
            "real = PathFinder.find_spec\n"
            "def find_spec(name, path=None, target=None):\n"
            f"    return None if name.split('.')[0] == {package!r} else real(name, path, target)\n"
            "PathFinder.find_spec = find_spec\n"
        )
        return {"PYTHONPATH": os.pathsep.join([str(shim), *map(os.path.abspath, sys.path)])}

    return environment


@pytest.mark.parametrize("arguments", [("list",), ("build", "--arch", "sm90"), ("build", "--arch", "all")])
def test_without_cute_dsl_the_commands_that_need_it_say_so(
    run: Run, hide: Callable[[str], dict[str, str]], arguments: tuple[str, ...], tmp_path: Path
) -> None:
    done = run(*arguments, "--kernels", FILL, env=hide("cutlass"))
    assert done.code in (1, 2)
    assert_refused(done, done.code, "CuTe DSL is not installed", f"hint: {install_extras('build')}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [("list",), ("build", "--arch", "sm90")])
def test_another_version_of_cute_dsl_is_not_called_missing(
    run: Run, arguments: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    shim = tmp_path_factory.mktemp("shim")
    (shim / "nvidia_cutlass_dsl-4.5.3.dist-info").mkdir()
    (shim / "nvidia_cutlass_dsl-4.5.3.dist-info" / "METADATA").write_text("Name: nvidia-cutlass-dsl\nVersion: 4.5.3\n")
    path = os.pathsep.join([str(shim), *map(os.path.abspath, sys.path)])
    done = run(*arguments, "--kernels", FILL, env={"PYTHONPATH": path})
    assert_refused(
        done, done.code, "CuTe DSL 4.5.3 is installed, which is not a supported version; supported are 4.6, 4.7, 4.8",
        "hint: `pip install 'nvidia-cutlass-dsl>=4.6,<4.9'`",
    )  # fmt: skip
    assert "not installed" not in done.err


def test_without_cute_dsl_a_bundle_can_be_verified_and_inspected(
    run: Run, hide: Callable[[str], dict[str, str]], small_bundle_path: Path
) -> None:
    assert run("inspect", small_bundle_path, env=hide("cutlass")).code == 0
    assert run("inspect", small_bundle_path, env=hide("rich")).code == 0  # which draws on terminals alone
    assert run("verify", small_bundle_path, env=hide("cutlass")).code == 0


@pytest.mark.parametrize(
    ("command", "package"),
    [
        ("build --arch sm90 --kernels", "platformdirs"),
        ("verify", "elftools"),
        ("verify", "capstone"),
        ("cache", "elftools"),
        ("sign --key release --new-key", "elftools"),
    ],
)
def test_without_its_extra_a_command_says_what_to_install(
    run: Run, hide: Callable[[str], dict[str, str]], command: str, package: str, small_bundle_path: Path
) -> None:
    done = run(*command.split(), small_bundle_path, env=hide(package))
    extra = {"build": "build", "sign": "sign"}.get(command.split()[0], "tools")
    assert_refused(done, 2, f"`{package}", "is not installed", f"hint: {install_extras(extra)}")


def test_without_ziglang_the_build_says_what_to_install(
    run: Run, hide: Callable[[str], dict[str, str]], tmp_path: Path
) -> None:
    done = run("build", "--kernels", FILL, "--kernel", "fill_stream_zero", "--arch", "sm90", env=hide("ziglang"))
    assert_refused(done, 1, "ziglang, the compiler for all hosts, is not installed", "hint: `pip install")
    assert not (tmp_path / "dist" / "fill").exists()


@pytest.mark.parametrize("command", ["list", "build --arch sm90", "new mine", "wheel bundle", "doctor"])
def test_a_current_folder_that_was_removed_is_named(
    run_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert_refused(run_here(*command.split()), 2, "the current folder was removed", "hint: change to one")
    monkeypatch.chdir(tmp_path)


# -- verify and inspect --------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(small_bundle_path: Path, tmp_path: Path) -> Path:
    copy = Path(shutil.copytree(small_bundle_path, tmp_path / "damaged"))
    (copy / "details" / "sm_80.json").unlink()
    (copy / "extra").write_text("")
    return copy


def test_verify_lists_what_differs_and_is_exit_code_1(run: Run, damaged: Path) -> None:
    done = run("verify", damaged)
    assert (done.code, done.err) == (1, f"{damaged}: 2 problems\n")
    assert done.out == "details/sm_80.json is missing\nextra is not in the manifest\n"


def test_verify_as_json_is_json_alone(run_here: Run, damaged: Path, small_bundle_path: Path) -> None:
    sound, broken = run_here("verify", small_bundle_path, "--json"), run_here("verify", damaged, "--json")
    assert (sound.code, broken.code) == (0, 1)
    assert json.loads(sound.out) == {
        "bundle": str(small_bundle_path),
        "sound": True,
        "problems": [],
        "signed": False,
        "signature_checked": False,
        "stale": None,
    }
    assert json.loads(broken.out)["problems"] == ["details/sm_80.json is missing", "extra is not in the manifest"]
    assert (sound.err, broken.err) == ("", "")


def test_inspect_shows_kernels_resources_and_toolchain(run: Run, small_bundle_path: Path) -> None:
    done = run("inspect", small_bundle_path)
    assert (done.code, done.err) == (0, "")
    assert "small: complete" in done.out
    assert "glibc >= 2.28, CUDA runtime static" in done.out
    assert re.search(r"^sm_80 +525\.60\.13 +3  never run on a GPU$", done.out, re.MULTILINE)
    assert "nvidia-cutlass-dsl 4." in done.out
    assert re.search(r"^  arch +epilogue +registers +shared +block +cubin +run$", done.out, re.MULTILINE)
    assert re.search(r"^  sm_90a +relu +\d+ +0 +160 +\d+ KB +no$", done.out, re.MULTILINE)
    assert max(map(len, done.out.replace(str(small_bundle_path), "").splitlines())) <= 80


def test_inspect_as_json_is_json_alone(run_here: Run, small_bundle_path: Path) -> None:
    done = run_here("inspect", small_bundle_path, "--json", "--kernel", "fill_stream_zero")
    data = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    assert [(variant["arch"], variant["name"]) for variant in data["variants"]] == [
        ("sm_80", "fill_stream_zero"), ("sm_90a", "fill_stream_zero"),
    ]  # fmt: skip
    assert data.keys() >= {"name", "complete", "hosts", "files", "toolchain", "requires", "failures"}


def test_inspect_of_a_kernel_that_is_not_there_names_those_that_are(run_here: Run, small_bundle_path: Path) -> None:
    done = run_here("inspect", small_bundle_path, "--kernel", "gemm")
    assert_refused(done, 2, "no kernel matches gemm", "hint: there are: fill_epilogue, fill_stream_zero")


@pytest.mark.parametrize("command", ["verify", "inspect"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "holds no manifest.json"),
        ("{", "is not valid JSON"),
        ("[]", "expected an object"),
        ('{"schema": 9}', "`protocol` is missing"),
        ('{"schema": 1}', "has schema 1, which no released version wrote"),
    ],
)
def test_what_is_not_a_bundle_is_refused(
    run_here: Run, tmp_path: Path, command: str, content: str | None, said: str
) -> None:
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    assert_refused(run_here(command, tmp_path), 2, said, "\nhint: ")


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_a_bundle_that_does_not_exist_is_refused(run_here: Run, command: str) -> None:
    assert_refused(run_here(command, "nowhere"), 2, "`nowhere` is not a bundle: it does not exist", "\nhint: ")


@pytest.mark.parametrize("damage", ["gone", "{", '{"variants": [{}]}'])
def test_inspect_of_damaged_details_is_an_error_in_words(run_here: Run, damaged: Path, damage: str) -> None:
    if damage != "gone":
        (damaged / "details" / "sm_80.json").write_text(damage)
    assert_refused(run_here("inspect", damaged), 2, "sm_80.json`")


def test_a_reader_that_goes_away_is_no_error(small_bundle_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    command = [sys.executable, "-m", "aot", "inspect", str(small_bundle_path), "--json"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, env=environment, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_error_as_json_that_nobody_reads_is_no_traceback(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "aot", "inspect", str(tmp_path / "absent"), "--json"]
    done = subprocess.run(command, env=environment, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_closed_stdout_is_no_error(small_bundle_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    command = f"{shlex.quote(sys.executable)} -m aot inspect {shlex.quote(str(small_bundle_path))} >&-"
    done = subprocess.run(["sh", "-c", command], env=environment, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("streams", ["2>&-", "2>/dev/full", ">&- 2>&-", "<&- >&- 2>&-"])
def test_an_exit_code_does_not_depend_on_where_messages_go(
    streams: str, small_bundle_path: Path, tmp_path: Path
) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    for bundle, code in ((tmp_path / "absent", 2), (small_bundle_path, 0)):
        command = f"{shlex.quote(sys.executable)} -m aot inspect {shlex.quote(str(bundle))} {streams}"
        done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (code, "")


def test_what_the_caller_closed_is_not_taken_by_the_next_file(tmp_path: Path) -> None:
    program = (
        "import os; from aot.cli.main import main; main(['--version']); print(os.open('.', os.O_RDONLY), file=file)"
    )
    done = subprocess.run(
        ["sh", "-c", f"exec {shlex.quote(sys.executable)} -c \"file = open('out', 'w'); {program}\" <&- >&- 2>&-"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
    )
    assert done.returncode == 0
    assert int((tmp_path / "out").read_text()) > 2


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_a_full_disk_behind_stdout_is_an_error_and_no_traceback(
    options: tuple[str, ...], small_bundle_path: Path
) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    command = [sys.executable, "-m", "aot", "inspect", str(small_bundle_path), *options]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "error: No space left on device\n\nhint: the disk is full\n")


def test_an_error_at_a_path_has_a_next_step(run_here: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_refused(run_here("new", "file/project"), 1, "file", "hint: a file lies where a folder must be")


# -- check and bench -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["check", "bench"])
def test_what_needs_a_gpu_says_so_in_one_sentence(run: Run, small_bundle_path: Path, command: str) -> None:
    done = run(command, small_bundle_path, env={"CUDA_VISIBLE_DEVICES": ""})
    assert_refused(done, 2, f"`{command}` needs ")


@pytest.mark.parametrize(
    "words",
    [["inspect"], ["verify"], ["diff", "BUNDLE"], ["doctor"], ["wheel"], ["explain", "fill_epilogue", "out=f32[8]"]],
)
def test_what_needs_no_compiler_runs_without_one(words: list[str], small_bundle_path: Path, tmp_path: Path) -> None:
    command, *rest = [str(small_bundle_path) if word == "BUNDLE" else word for word in words]
    extra = {"explain": ["--device", "9.0"], "wheel": ["--out", str(tmp_path)]}.get(command, [])
    code = (
        "import sys\n"
        "for name in ('cutlass', 'ziglang', 'cuda', 'distributed', 'fsspec'): sys.modules[name] = None\n"
        "from aot.cli.main import main\n"
        f"sys.exit(main({[command, str(small_bundle_path), *rest, *extra, '--json']!r}))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert "error" not in json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("command", ["check", "bench"])
def test_checking_and_measuring_need_nothing_that_builds(run: Run, small_bundle_path: Path, command: str) -> None:
    code = (
        "import sys\n"
        "for name in ('rich', 'elftools', 'capstone', 'platformdirs', 'cutlass', 'ziglang'): sys.modules[name] = None\n"
        "from aot.cli.main import main\n"
        f"sys.exit(main(['{command}', {str(small_bundle_path)!r}, '--kernel', '*', '--kernel', 'absent']))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert_refused(Done(done.returncode, done.stdout, done.stderr), 2, "no kernel matches absent", "hint: there are: ")


INTERRUPT = """
import os, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), 2)

sys.modules.pop({module!r}, None)
sys.meta_path.insert(0, Interrupting())
"""


@pytest.mark.parametrize("module", ["signal", "aot.cli.main"])  # the first that is imported, and the largest
def test_an_interrupt_while_the_program_is_imported_shows_no_traceback(tmp_path: Path, module: str) -> None:
    (tmp_path / "usercustomize.py").write_text(INTERRUPT.format(module=module))
    path = os.pathsep.join([str(tmp_path), *map(os.path.abspath, sys.path)])
    command = [
        sys.executable,
        "-c",
        "import runpy, usercustomize; runpy.run_module('aot', run_name='__main__', alter_sys=True)",
    ]
    # A shell lets commands in the background ignore interrupts, and so would this test's process.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, preexec_fn=heed, capture_output=True, text=True)
    assert done.returncode in (-2, 130)
    assert done.stderr == ""


def test_the_package_imports_nothing_before_the_program_can_handle_interrupts() -> None:
    code = "import sys, aot; print([n for n in sys.modules if n.startswith(('aot.', 'aot_runtime'))]); aot.UsageError"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_memory_that_runs_out_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def execute(arguments: argparse.Namespace) -> int:
        raise MemoryError

    assert run_command(lambda arguments: argparse.Namespace(execute=execute), []) == 1
    said = capsys.readouterr().err
    assert "error: memory ran out" in said and "hint: " in said and "report it" not in said
