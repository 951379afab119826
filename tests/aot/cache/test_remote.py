"""A cache on another machine, here a real S3 server in a process of its own, and what becomes of a dead one."""

from __future__ import annotations

import os
import queue
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from written import WRITE

import aot.cache.remote
from aot.bundle.verifying.verify import verify
from aot.cache.remote import Remote, SharedStore, without_secrets
from aot.cache.store import Store, checked
from aot.cli.main import main
from aot.errors import UsageError
from aot.versions import install_extras

KEY, OTHER = "ab" * 32, "cd" * 32
KERNEL = (
    WRITE.replace("VALUE", "1")
    + """
@aot.kernel(parameters=(aot.Out("out", shape="out.shape", dtype="out.dtype"),), archs=("sm_90a",),
            axes={"dtype": ("f16", "f32")})
def fill(target, dtype):
    return aot.Spec(launch, {"out": aot.Tensor(dtype, ("n",)), "stream": aot.Stream()})
"""
)


# The system chooses the port: one that was free before could be taken by the time the server asks for it.
SERVE = """
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
input()
"""


class S3:
    """An S3 server; asked over HTTP alone, as anybody could."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"
        # The server's, and what stands for credentials.
        self.environment = {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def request(self, path: str, content: bytes | None = None, method: str = "GET") -> bytes:
        somebody = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request"}
        request = urllib.request.Request(f"{self.address}/{path}", data=content, headers=somebody, method=method)
        with urllib.request.urlopen(request) as answer:
            return bytes(answer.read())

    def keys(self, bucket: str) -> list[str]:
        return re.findall(r"<Key>(.*?)</Key>", self.request(f"{bucket}?list-type=2").decode())

    def damage(self, bucket: str, key: str) -> None:
        content = self.request(f"{bucket}/{key}")
        self.request(f"{bucket}/{key}", content[:-1] + bytes([content[-1] ^ 1]), "PUT")


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    command = [sys.executable, "-c", SERVE]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    yield S3(int(process.stdout.readline()))
    process.kill()
    process.communicate()


@pytest.fixture
def s3(server: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[S3, str]]:
    """The server, and a bucket of its own."""
    bucket = re.sub("[^a-z0-9]", "", tmp_path.name)
    server.request(bucket, b"", "PUT")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(aot.cache.remote, "SECONDS", 300)  # other tests may take the processor from the server
    yield server, bucket
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()


class Warnings(list[str]):
    def __call__(self, text: str) -> None:
        self.append(text)


def open_store(folder: Path, url: str, *, read_only: bool = False) -> tuple[SharedStore, Warnings]:
    warnings = Warnings()
    return SharedStore(Store(folder), Remote.open(url, read_only=read_only, warn=warnings)), warnings


def test_what_one_machine_put_another_finds_and_keeps(s3: tuple[S3, str], tmp_path: Path) -> None:
    server, bucket = s3
    here, _ = open_store(tmp_path / "here", f"s3://{bucket}/some/prefix")
    there, warnings = open_store(tmp_path / "there", f"s3://{bucket}/some/prefix")
    assert there.get("variants", KEY, bytes) is None
    assert here.put("variants", KEY, b"code")
    assert server.keys(bucket) == [f"some/prefix/variants/{KEY[:2]}/{KEY}"]
    assert there.get("variants", KEY, bytes) == b"code"
    server.request(f"{bucket}/{server.keys(bucket)[0]}", None, "DELETE")
    assert there.get("variants", KEY, bytes) == b"code"
    assert warnings == []


def test_only_what_is_the_same_everywhere_is_shared(s3: tuple[S3, str], tmp_path: Path) -> None:
    server, bucket = s3
    store, _ = open_store(tmp_path, f"s3://{bucket}")
    for kind in ("plans", "recall"):
        store.put(kind, KEY, b"of this machine")
    assert server.keys(bucket) == []


def test_an_entry_damaged_there_is_a_miss_and_is_mended(s3: tuple[S3, str], tmp_path: Path) -> None:
    server, bucket = s3
    open_store(tmp_path / "here", f"s3://{bucket}")[0].put("libraries", KEY, b"code")
    server.damage(bucket, server.keys(bucket)[0])
    there, warnings = open_store(tmp_path / "there", f"s3://{bucket}")
    assert there.get("libraries", KEY, bytes) is None
    there.put("libraries", KEY, b"code")
    assert open_store(tmp_path / "third", f"s3://{bucket}")[0].get("libraries", KEY, bytes) == b"code"
    assert warnings == []


def test_a_read_only_remote_is_read_alone(s3: tuple[S3, str], tmp_path: Path) -> None:
    server, bucket = s3
    open_store(tmp_path / "here", f"s3://{bucket}")[0].put("variants", KEY, b"code")
    store, warnings = open_store(tmp_path / "there", f"s3://{bucket}", read_only=True)
    store.put("variants", OTHER, b"mine")
    assert (store.get("variants", KEY, bytes), store.get("variants", OTHER, bytes)) == (b"code", b"mine")
    assert len(server.keys(bucket)) == 1
    assert warnings == []


def test_many_builders_may_use_one_remote_at_once(s3: tuple[S3, str], tmp_path: Path) -> None:
    _, bucket = s3
    stores = [open_store(tmp_path / str(i), f"s3://{bucket}")[0] for i in range(2)]
    keys = [f"{i:064x}" for i in range(8)]
    threads = [
        threading.Thread(target=store.put, args=("variants", key, key.encode())) for key in keys for store in stores
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    third, warnings = open_store(tmp_path / "third", f"s3://{bucket}")
    assert [third.get("variants", key, bytes) for key in keys] == [key.encode() for key in keys]
    assert warnings == []


def test_a_bucket_that_does_not_exist_is_named_once_and_is_not_made(server: S3, s3: object, tmp_path: Path) -> None:
    store, warnings = open_store(tmp_path, "s3://no-such-bucket/prefix")
    for key in (KEY, OTHER, KEY, OTHER):
        assert store.put("variants", key, b"code")
    (warning,) = warnings
    assert "the rest of this build ignores the cache at `s3://no-such-bucket/prefix`: " in warning
    assert b"no-such-bucket" not in server.request("")


@pytest.mark.parametrize("url", ["file://{}/shared", "memory://shared/{}"])
def test_other_schemes_work_as_well(url: str, tmp_path: Path) -> None:
    url = url.format(tmp_path)
    assert open_store(tmp_path / "here", url)[0].put("variants", KEY, b"code")
    assert open_store(tmp_path / "there", url)[0].get("variants", KEY, bytes) == b"code"


def test_a_remote_that_never_answers_is_asked_twice_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, warnings = open_store(tmp_path, "memory://hangs")
    asked, end = queue.SimpleQueue[str](), threading.Event()
    monkeypatch.setattr(aot.cache.remote, "SECONDS", 0.1)
    monkeypatch.setattr(store.remote.files, "cat_file", lambda path, **_: (asked.put(path), end.wait()))
    for _ in range(5):
        assert store.get("variants", KEY, bytes) is None
    for _ in range(2):  # each in a thread of its own, which may begin after the time is over
        asked.get(timeout=60)
    assert asked.empty() and len(warnings) == 1
    assert "no answer within 0.1 s" in warnings[0]
    end.set()


@pytest.mark.parametrize(
    ("url", "said"),
    [("nonsense://bucket", "Protocol not known: nonsense"), ("gs://bucket", "gcsfs")],
)
def test_a_scheme_that_cannot_be_reached_is_wrong_usage(url: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        open_store(tmp_path, url)
    assert caught.value.hint


def test_a_remote_that_cannot_be_connected_to_is_left_alone(tmp_path: Path) -> None:
    """Some file systems connect as soon as they are opened."""
    store, warnings = open_store(tmp_path, "ftp://127.0.0.1:1/cache")  # a port that nobody listens at
    assert store.put("variants", KEY, b"code") and store.get("variants", KEY, bytes) == b"code"
    assert len(warnings) == 1 and "ignores the cache at `ftp://127.0.0.1:1/cache`: " in warnings[0]


def test_without_fsspec_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(UsageError) as caught:
        open_store(tmp_path, "s3://bucket")
    assert caught.value.hint == install_extras("remote")


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., str]:
    """Build on the machine of that name: with its own folder and bundle. Returns what was said."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "fill.py").write_text(KERNEL)

    def run(machine: str, url: str, *arguments: str) -> str:
        command = [sys.executable, "-m", "aot", "build", "--arch", "sm90", "--out", str(tmp_path / machine / "out")]
        command += ["--name", "fill", "--cudart", "shared", "--no-archives", "--jobs", "1", "--cache", url, *arguments]
        environment = {**os.environ, "AOT_CACHE": str(tmp_path / machine / "cache")}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert verify(tmp_path / machine / "out") == []
        return done.stderr

    return run


def contents(bundle: Path) -> dict[str, bytes]:
    return {str(path.relative_to(bundle)): path.read_bytes() for path in bundle.rglob("*") if path.is_file()}


def test_a_second_machine_compiles_nothing_and_damage_there_is_compiled_again(
    s3: tuple[S3, str], build: Callable[..., str], tmp_path: Path
) -> None:
    server, bucket = s3
    url = f"s3://{bucket}/kernels"
    assert build("first", url).count("sm_90a fill__") == 2
    said = build("second", url, "--cache-read-only")
    assert "2 of 2 variants are in the cache" in said
    (one, _) = [key for key in server.keys(bucket) if "/variants/" in key]
    server.damage(bucket, one)
    assert build("third", url).count("sm_90a fill__") == 1
    assert contents(tmp_path / "first" / "out") == contents(tmp_path / "second" / "out")
    assert contents(tmp_path / "first" / "out") == contents(tmp_path / "third" / "out")
    with open_store(tmp_path / "fourth", url)[0].remote.files.open(f"{bucket}/{one}") as mended:
        checked("variants", one.rpartition("/")[2], mended.read())  # raises if it is damaged
    assert "warning" not in said


def test_a_dead_remote_costs_one_warning(
    s3: tuple[S3, str], build: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as silent:  # it has the port, and listens to nobody
        silent.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        said = build("first", "s3://bucket/prefix")
    assert said.count("warning: the rest of this build ignores the cache at `s3://bucket/prefix`") == 1
    assert said.count("sm_90a fill__") == 2


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:hunter2@bucket/prefix",
        "https://host/folder?sig=hunter2&expires=1",
        "https://hunter2@host/folder#hunter2",
        "nosuch://anna:hunter2@host/folder",
    ],
)
def test_secrets_in_a_url_are_not_shown(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "hunter2" not in without_secrets(url)
    assert "hunter2" not in without_secrets(url, f"cannot reach {url} with hunter2")
    assert "folder" in without_secrets(url) or "prefix" in without_secrets(url)
    said: list[str] = []
    with suppress(UsageError):
        remote = Remote.open(url, read_only=False, warn=said.append)
        for _ in range(2):
            remote._note_failure(OSError(f"cannot reach {url}"))
        assert len(said) == 1
    with pytest.raises(UsageError) as error:
        Remote.open(f"nosuch://{url.partition('://')[2]}", read_only=False, warn=said.append)
    assert main(["cache", "--cache", url]) == 2
    assert "hunter2" not in f"{said} {error.value.message} {capsys.readouterr()}"


def test_a_url_without_secrets_is_shown_as_it_is() -> None:
    assert without_secrets("s3://bucket/prefix") == "s3://bucket/prefix"
