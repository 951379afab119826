"""Where things are kept from build to build: compiled code, zig's cache, NVIDIA's libraries for other hosts.

Compiled code lies in the folder that is named, else in the user's cache; its entries are checked one by one when they
are read. What zig and pip left is not checked, so that it lies in a folder that nobody else may write to: the same
one if it belongs to this user alone, else a folder of this user in there. If that cannot be made, as with a HOME that
is missing or may only be read, the user's cache and at last a temporary folder take its place.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError
from ..files import is_marked

__all__ = ["TOOLS", "Places", "clear_tools", "find_places", "folders_of", "own_folder", "size_of_tools"]

TOOLS = ("zig", "wheels")
_VARIABLE = "AOT_CACHE"
_NOWHERE = "none"
_ROOM = 64 << 20  # bytes; zig's cache takes 3 MB for each host, NVIDIA's libraries 2 MB


@dataclass(frozen=True)
class Places:
    tools: Path  # zig's cache and NVIDIA's libraries lie below
    artifacts: Path | None  # compiled and linked code; None: it is not kept
    remote: str | None  # a URL: what is not among the artifacts is looked for there


def find_places(cache: str | None, environment: Mapping[str, str]) -> Places:
    """From what ``--cache`` names, else the environment: a folder, ``none``, or a URL beside the folder."""
    texts = [text for text in (cache, environment.get(_VARIABLE)) if text]
    folders = [text for text in texts if "://" not in text]
    remote = texts[0] if texts and "://" in texts[0] else None
    user = _user_folder()
    if folders and folders[0] != _NOWHERE:
        named = Path(folders[0]).absolute()  # tools run in other folders
        return Places(own_folder([named] if user is None else [named, user]), named, remote)
    tools = own_folder([] if user is None else [user])
    return Places(tools, None if folders else _default_artifacts(user, tools), remote)


def _default_artifacts(user: Path | None, tools: Path) -> Path:
    """The user's, even if they may only be read; else beside the tools. Unlike a Path, ``os.path`` raises nothing."""
    if user is not None and os.path.isdir(user / "artifacts"):
        return user / "artifacts"
    return tools / "artifacts"


def _user_folder() -> Path | None:
    """The user's cache; None if no home is known."""
    import platformdirs

    try:
        folder = Path(platformdirs.user_cache_dir("cute-aot"))
    except RuntimeError:  # there is no HOME, and the system does not know the user
        return None
    return folder if folder.is_absolute() else None


def own_folder(candidates: Iterable[Path] = ()) -> Path:
    """A folder that this user alone may write to: one of those, or a part of it, else a temporary one.

    A tool that finds no room in its cache fails, so that a disk with little room is passed over if another has more.
    """
    full: list[Path] = []
    for folder in filter(None, map(_try_own, candidates)):
        if _has_room(folder):
            return folder
        full.append(folder)
    if full and not _has_room(Path(tempfile.gettempdir())):
        return full[0]
    with suppress(OSError):
        return _make_own(_temporary())
    return Path(tempfile.mkdtemp(prefix="cute-aot-"))


def _try_own(candidate: Path) -> Path | None:
    with suppress(OSError):
        candidate.mkdir(mode=0o700, parents=True, exist_ok=True)
        return candidate if _is_own(candidate) else _make_own(candidate / f"user-{os.geteuid()}")
    return None


def _has_room(folder: Path) -> bool:
    return shutil.disk_usage(folder).free >= _ROOM


def _temporary() -> Path:
    return Path(tempfile.gettempdir()) / f"cute-aot-{os.geteuid()}"


def _make_own(folder: Path) -> Path:
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not _is_own(folder):
        raise PermissionError(f"`{folder}` belongs to another user, or others can write to it")
    return folder


def _is_own(folder: Path) -> bool:
    facts = os.lstat(folder)
    if not stat.S_ISDIR(facts.st_mode):
        facts = os.stat(folder)  # a link to a folder is as good as who owns the link and the folder
        if os.lstat(folder).st_uid not in (os.geteuid(), 0):
            return False
    open_to_others = facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return facts.st_uid == os.geteuid() and not open_to_others and os.access(folder, os.W_OK | os.X_OK)


# Looking after a cache.


def folders_of(cache: str | None, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """The folders of one cache, for commands that look after it: its compiled code first, then where tools are.

    It is the cache that is named, and no other one. Nothing is created.
    """
    text = cache or environment.get(_VARIABLE) or ""
    own = f"user-{os.geteuid()}"
    if text == _NOWHERE:
        raise UsageError("the cache is turned off", hint="pass `--cache DIR`")
    if text and "://" not in text:
        named = Path(text).absolute()
        try:
            with os.scandir(named):
                return named, named / own
        except FileNotFoundError:
            seen = "does not exist"
        except NotADirectoryError:
            seen = "is not a folder"
        except OSError as error:
            seen = f"cannot be read: {error.strerror}"
        raise UsageError(f"the cache `{named}` {seen}", hint="name a folder that builds use as their cache")
    user, temporary = _user_folder(), _temporary()
    bases = [temporary] if user is None else [user, temporary]
    first = next((base for base in bases if os.path.isdir(base / "artifacts")), bases[0])
    every = [first / "artifacts", *(path for base in bases for path in (base, base / "artifacts", base / own))]
    return tuple(dict.fromkeys(every))


def size_of_tools(folder: Path, name: str) -> tuple[int, int]:
    """Files and bytes of what builds put there for a tool."""
    count = size = 0
    for path, _, names in (step for made in _made_for(folder, name) for step in os.walk(made)):
        for each in names:
            with suppress(OSError):  # a build may be at work there
                size += os.lstat(os.path.join(path, each)).st_size
                count += 1
    return count, size


def clear_tools(folder: Path) -> None:
    """Remove what builds put there for their tools. A folder that has such a name by chance stays."""
    for name in TOOLS:
        for made in _made_for(folder, name):
            shutil.rmtree(made, ignore_errors=True)
        with suppress(OSError):  # not there, or something else is in it
            (folder / name).rmdir()


def _made_for(folder: Path, name: str) -> list[Path]:
    with suppress(OSError):
        return sorted(path for path in (folder / name).iterdir() if is_marked(path))
    return []
