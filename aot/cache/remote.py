"""A cache on another machine, behind the folder here: anything that fsspec can reach.

Only what is found by a digest of all that shaped it goes there: compiled variants and linked libraries. A remote
that is slow or fails is not used for the rest of the build after two failures in a row, with one warning.
"""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from ..errors import UsageError
from ..versions import install_extras
from .entries import LARGEST, EntryError
from .store import Store, checked, sealed

__all__ = ["Remote", "SharedStore", "without_secrets"]

KINDS = frozenset({"variants", "libraries"})
SECONDS = 6.0  # for one request, and for the connection before the first
ATTEMPTS = 2  # failures in a row until the remote is no longer used

_T = TypeVar("_T")


def without_secrets(url: str, text: str | None = None) -> str:
    """A URL to show, or a text that may quote it: without user names, passwords, tokens and options."""
    rest = url.partition("://")[2]
    authority, _, _ = rest.partition("/")
    account = authority.rpartition("@")[0]
    options = re.split(r"[?#]", rest, maxsplit=1)[1:]
    secrets = [
        account,
        *account.split(":"),
        *options,
        *(part for each in options for part in re.split("[&=]", each)[1:]),
    ]
    shown = url if text is None else text
    for secret in sorted({one for one in secrets if len(one) > 2}, key=len, reverse=True):
        shown = shown.replace(secret, "***")
    return shown


class Remote:
    """Entries below a URL. Nothing that goes wrong there is an error here."""

    def __init__(self, url: str, files: Any, root: str, *, read_only: bool, warn: Callable[[str], None]) -> None:
        self.url, self.files, self.root, self.read_only, self.warn = url, files, root, read_only, warn
        self.lock = threading.Lock()
        self.failures = 0

    @classmethod
    def open(cls, url: str, *, read_only: bool, warn: Callable[[str], None]) -> Remote:
        """The remote of a URL; it is not asked anything yet."""
        try:
            import fsspec
        except ModuleNotFoundError:
            raise UsageError(f"`--cache {without_secrets(url)}` needs fsspec", hint=install_extras("remote")) from None
        try:
            files, root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            raise UsageError(
                f"`--cache {without_secrets(url)}`: {without_secrets(url, str(error))}",
                hint=f"{install_extras('remote')} adds s3",
            ) from None
        except ValueError as error:
            known = ", ".join(sorted(fsspec.available_protocols()))
            raise UsageError(
                f"`--cache {without_secrets(url)}`: {without_secrets(url, str(error))}", hint=f"known: {known}"
            ) from None
        except Exception as error:  # what connects at once, as ftp does
            unreached = cls(url, None, "", read_only=read_only, warn=warn)
            unreached.failures = ATTEMPTS - 1
            unreached._note_failure(error)
            return unreached
        return cls(url, files, root.rstrip("/"), read_only=read_only, warn=warn)

    def get(self, kind: str, key: str) -> bytes | None:
        """An entry as it was written, its digest not checked yet; None if there is none."""
        if kind not in KINDS:
            return None
        return self._ask(lambda: self._read(self._path(kind, key)))

    def put(self, kind: str, key: str, content: bytes) -> None:
        if kind in KINDS and not self.read_only:
            self._ask(lambda: self._write(self._path(kind, key), sealed(kind, key, content)))

    def _path(self, kind: str, key: str) -> str:
        return f"{self.root}/{kind}/{key[:2]}/{key}"

    def _read(self, path: str) -> bytes | None:
        try:
            content: bytes = self.files.cat_file(path, end=LARGEST)
        except FileNotFoundError:
            return None
        return content

    def _write(self, path: str, content: bytes) -> None:
        try:
            self.files.pipe_file(path, content)
        except FileNotFoundError:
            if _is_object_store(self.files):  # has no folders: here it is the bucket that is missing
                raise
            self.files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self.files.pipe_file(path, content)

    def _ask(self, request: Callable[[], _T]) -> _T | None:
        """The answer to a request; None if it fails or takes too long."""
        if self.failures >= ATTEMPTS:
            return None
        try:
            answer = _within(SECONDS, request)
        except Exception as error:  # a file system may raise anything
            self._note_failure(error)
            return None
        self.failures = 0
        return answer

    def _note_failure(self, error: Exception) -> None:
        with self.lock:
            self.failures += 1
            if self.failures == ATTEMPTS:
                text = without_secrets(self.url, str(error)).strip() or type(error).__name__
                shown = without_secrets(self.url)
                self.warn(f"the rest of this build ignores the cache at `{shown}`: {text.splitlines()[0]}")


def _is_object_store(files: Any) -> bool:
    protocols = files.protocol if isinstance(files.protocol, (tuple, list)) else (files.protocol,)
    return not _OBJECT_STORES.isdisjoint(protocols)


_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "az", "oci", "oss"})


class SharedStore(Store):
    """A folder here with a remote behind it: what is missing here is looked for there, and kept here."""

    def __init__(self, local: Store, remote: Remote) -> None:
        super().__init__(local.root, limit=local.limit, warn=local.warn)
        self.remote = remote

    def get(self, kind: str, key: str, decode: Callable[[bytes], _T]) -> _T | None:
        found = super().get(kind, key, decode)
        if found is None and (sealed_content := self.remote.get(kind, key)) is not None:
            with suppress(EntryError):  # damaged there counts as absent there
                content = checked(kind, key, sealed_content)
                found = decode(content)
                super().put(kind, key, content)
        return found

    def put(self, kind: str, key: str, content: bytes) -> bool:
        kept = super().put(kind, key, content)
        self.remote.put(kind, key, content)
        return kept


def _within(seconds: float, request: Callable[[], _T]) -> _T:
    """Wait that long for a request. One that hangs keeps a thread of its own, which does not outlive the process."""
    answers: queue.SimpleQueue[tuple[_T | None, Exception | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((request(), None))
        except Exception as error:
            answers.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        answer, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]
