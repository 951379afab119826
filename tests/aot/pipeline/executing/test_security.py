"""The file that names certificates: three names, in three formats or as Dask writes them; the rest is wrong usage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from certificates import make_certificates

from aot.errors import UsageError
from aot.pipeline.executing.security import read_security

NAMES = {"ca": "ca.pem", "cert": "cert.pem", "key": "key.pem"}
DASK = {"distributed": {"comm": {"tls": {"ca-file": "ca.pem", "client": {"cert": "cert.pem", "key": "key.pem"}}}}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("dask.toml", "".join(f'{key} = "{value}"\n' for key, value in NAMES.items())),
        ("dask.json", json.dumps(NAMES)),
        ("dask.yaml", "".join(f"{key}: {value}\n" for key, value in NAMES.items())),
        ("own.json", json.dumps(DASK)),
    ],
)
def test_every_format_gives_the_same(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    security = read_security(folder / name)
    assert security.require_encryption
    assert security.tls_ca_file == str(folder / "ca.pem")
    assert (security.tls_client_cert, security.tls_client_key) == (str(folder / "cert.pem"), str(folder / "key.pem"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read"),
        ("[]", "is not a table"),
        ("[" * 100_000, "cannot be read"),
        ('{"ca": "ca.pem"}', "must have ca, cert and key"),
        (json.dumps({**NAMES, "passphrase": "x"}), "must have ca, cert and key"),
        (json.dumps({**NAMES, "key": 3}), "must have ca, cert and key"),
        (json.dumps({"distributed": {}}), "must have ca, cert and key"),
        (json.dumps({**NAMES, "key": "none.pem"}), "which is not a file"),
        (json.dumps({**NAMES, "key": "ca.pem"}), "certificates cannot be used"),
        (json.dumps({**NAMES, "ca": "key.pem"}), "certificates cannot be used"),
    ],
)
def test_what_is_wrong_is_one_sentence(folder: Path, text: str, said: str) -> None:
    (folder / "wrong.json").write_text(text)
    with pytest.raises(UsageError, match=said) as caught:
        read_security(folder / "wrong.json")
    assert caught.value.hint


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_security(tmp_path / "none.toml")


def test_without_a_file_dasks_own_configuration_decides(folder: Path) -> None:
    import dask

    with pytest.raises(UsageError, match="needs certificates"):
        read_security(None)
    with dask.config.set({"distributed.comm.tls.ca-file": str(folder / "ca.pem")}):
        assert read_security(None).tls_ca_file == str(folder / "ca.pem")
