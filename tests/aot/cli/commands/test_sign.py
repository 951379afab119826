"""``python -m aot sign``, ``verify --key``, and what becomes of a signature when a bundle changes."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import aot_runtime
import pytest
from aot_runtime.core.signature import public_key
from places import SAMPLES

from aot.cli.main import main
from aot.versions import install_extras


@pytest.fixture
def bundle(small_bundle_path: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_bundle_path, tmp_path / "bundle"))


@pytest.fixture
def key(tmp_path: Path) -> Path:
    assert main(["sign", "--key", str(tmp_path / "release"), "--new-key"]) == 0
    return tmp_path / "release"


@pytest.fixture
def signed(bundle: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["sign", str(bundle), "--key", str(key)]) == 0
    capsys.readouterr()
    return bundle


def public(key: Path) -> str:
    return f"{key}.pub"


def test_a_key_is_made_and_a_bundle_signed_by_one_command(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "release"
    assert main(["sign", str(bundle), "--key", str(key), "--new-key"]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{bundle / 'manifest.sig'}\n"
    assert f"new key: `{key}`, keep it secret; public key: `{key}.pub`" in printed.err
    assert main(["verify", str(bundle), "--key", public(key)]) == 0
    assert f"{bundle}: sound, signed by a trusted key" in capsys.readouterr().err
    assert aot_runtime.load(bundle, key=public(key)).kernels


def test_signing_speaks_json(bundle: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["sign", str(bundle), "--key", str(key), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["signature"] == str(bundle / "manifest.sig")
    assert bytes.fromhex(data["public_key"]) == public_key(public(key))


def test_nothing_to_sign_is_wrong_usage(key: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sign", "--key", str(key)]) == 2
    assert "there is nothing to sign" in capsys.readouterr().err
    assert main(["sign", "--key", str(key), "--new-key"]) == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["sign", "verify"])
def test_a_missing_key_is_answered_with_a_command_that_makes_one(
    command: str, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([command, str(bundle), "--key", "missing"]) == 2
    hint = capsys.readouterr().err.partition("hint: ")[2]
    program, *words = shlex.split(hint.split("`")[1].removeprefix("python -m "))
    assert program == "aot" and main(words) == 0


def test_a_key_is_never_made_inside_a_bundle(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It would be shipped with the bundle, which would not be sound any more."""
    assert main(["sign", str(bundle), "--new-key", "--key", str(bundle / "lib" / "release")]) == 2
    assert f"lies in the bundle `{bundle}`" in capsys.readouterr().err
    assert main(["verify", str(bundle)]) == 0


def test_a_public_key_is_not_said_to_be_read_by_others(
    bundle: Path, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sign", str(bundle), "--key", public(key)]) == 2
    err = capsys.readouterr().err
    assert "is a public key" in err and "warning" not in err


def test_a_key_that_others_may_read_is_noted(bundle: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key.chmod(0o640)
    assert main(["sign", str(bundle), "--key", str(key)]) == 0
    assert f"warning: others may read the private key `{key}`" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_new_key_that_git_would_commit_is_announced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tree" / "keys").mkdir(parents=True)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path / "tree", check=True)
    (tmp_path / "tree" / ".gitignore").write_text("*.key\n")
    for name, warned in (("tree/keys/release", True), ("tree/keys/release.key", False), ("release", False)):
        assert main(["sign", "--new-key", "--key", str(tmp_path / name), "-q"]) == 0
        said = capsys.readouterr().err
        assert (f"warning: git would commit the private key `{tmp_path / name}`" in said) is warned, name


def test_signing_without_cryptography_says_what_to_install(
    bundle: Path, key: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert main(["sign", str(bundle), "--key", str(key)]) == 2
    assert f"hint: {install_extras('sign')}" in capsys.readouterr().err


def test_verify_refuses_by_the_signature_before_anything_else(
    signed: Path, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["sign", "--key", str(tmp_path / "other"), "--new-key"])
    capsys.readouterr()
    assert main(["verify", str(signed), "--key", public(tmp_path / "other")]) == 1
    printed = capsys.readouterr()
    assert "is not by a trusted key" in printed.out and "1 problem\n" in printed.err
    assert main(["verify", str(signed), "--key", public(tmp_path / "other"), "--key", public(key)]) == 0
    (signed / "manifest.json").write_text("not even JSON")
    assert main(["verify", str(signed), "--key", public(key)]) == 1
    assert "or its manifest was altered" in capsys.readouterr().out
    (signed / "manifest.sig").unlink()
    assert main(["verify", str(signed), "--key", public(key)]) == 1
    assert "is not signed: it has no manifest.sig" in capsys.readouterr().out


def test_verify_with_a_key_still_looks_at_every_file(
    signed: Path, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (header,) = signed.glob("include/*.h")
    header.write_text(header.read_text() + "\n")
    assert main(["verify", str(signed), "--key", public(key), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["signed"] and data["signature_checked"] and not data["sound"]
    assert header.name in data["problems"][0]


def test_verify_without_a_key_says_that_the_signature_was_not_checked(
    signed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(signed)]) == 0
    assert "sound; its signature was not checked, pass `--key` for that" in capsys.readouterr().err
    (signed / "manifest.sig").write_bytes(bytes(63))
    assert main(["verify", str(signed)]) == 1
    assert "manifest.sig is not a signature: a file of 64 bytes" in capsys.readouterr().out


def test_a_key_that_is_none_is_wrong_usage(signed: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(signed), "--key", str(key)]) == 2
    printed = capsys.readouterr()
    assert "is a private key" in printed.err and "BEGIN" not in printed.err


# Commands that change a bundle drop its signature, and say so.

DROPPED = "the bundle has changed, and its signature was dropped; sign it again: `python -m aot sign"


def assert_dropped(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert DROPPED in capsys.readouterr().err
    assert not (bundle / "manifest.sig").exists()
    assert main(["verify", str(bundle)]) == 0


def test_prune_drops_the_signature(signed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prune", str(signed), "--arch", "sm_80"]) == 0
    assert_dropped(signed, capsys)


def test_merge_drops_the_signature(signed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pruned = Path(shutil.copytree(signed, tmp_path / "pruned"))
    assert main(["prune", str(pruned), "--arch", "sm_80"]) == 0
    capsys.readouterr()
    assert main(["merge", str(signed), str(pruned), "--out", str(tmp_path / "joined")]) == 0
    assert "signatures of what it is joined from do not cover it" in capsys.readouterr().err
    assert not (tmp_path / "joined" / "manifest.sig").exists()


def test_recording_a_check_drops_the_signature(
    signed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    details = json.loads((signed / "details" / "sm_80.json").read_text())
    variant = details["variants"][0]
    verified = {"arch": "sm_80", "variant": variant["name"], "cubin_sha256": variant["cubin_sha256"]}
    report = {"machine": {"gpu": "A100", "date": "2026-11-15"}, "verified": [verified]}
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert main(["check", str(signed), "--record", str(tmp_path / "report.json")]) == 0
    assert_dropped(signed, capsys)


def test_growing_drops_the_signature_and_building_the_same_keeps_it(
    artifacts_of_run: Path, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "dist"

    def build(arch: str, *more: str) -> None:
        source = str(SAMPLES / "fill.py")
        arguments = ["build", "--kernels", source, "--kernel", "fill_stream_zero", "--arch", arch, "--out", str(out)]
        assert main([*arguments, "--name", "small", "--cache", str(artifacts_of_run), "--jobs", "1", *more]) == 0

    build("sm_90a")
    assert main(["sign", str(out), "--key", str(key)]) == 0
    build("sm_90a")
    assert main(["verify", str(out), "--key", public(key)]) == 0, "nothing has changed"
    capsys.readouterr()
    build("sm_80", "--add")
    assert_dropped(out, capsys)
