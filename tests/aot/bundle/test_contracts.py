"""Contracts travel in the bundle, and run from there, unaltered and without leaving anything behind."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from aot_runtime.description.records import FileRecord
from aot_runtime.errors import BundleError, DigestError

from aot.bundle.contracts import contract_sources, load_contracts
from aot.bundle.manifest import Manifest
from aot.errors import BuildError

CONTRACT = "from ._shared import VALUE\ndef reference(): return VALUE\ndef inputs(make, dtype): yield {}\n"


def bundle(path: Path, **files: str) -> Manifest:
    records = {}
    for stem, text in files.items():
        name = f"contracts/{stem}.py"
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
        records[name] = FileRecord(hashlib.sha256(text.encode()).hexdigest(), len(text))
    return Manifest("b", True, {}, {}, records)


def test_contracts_import_what_they_share_and_leave_no_cache(tmp_path: Path) -> None:
    manifest = bundle(tmp_path, __init__="", _shared="VALUE = 7\n", double=CONTRACT)
    contracts = load_contracts(tmp_path, manifest, ["double", "absent"])
    assert list(contracts) == ["double"]
    assert contracts["double"].reference() == 7
    assert contracts["double"].cost is None
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["__init__.py", "_shared.py", "contracts", "double.py"]


def test_contracts_in_folders_import_from_their_folder_and_from_above(tmp_path: Path) -> None:
    files = {
        "_root": "VALUE = 7\n",
        "rows/__init__": "FACTOR = 2\n",
        "rows/_shared": "from .._root import VALUE\nfrom . import FACTOR\nVALUE *= FACTOR\n",
        "rows/rows": CONTRACT,
        "single": "from ._root import VALUE\n" + CONTRACT.partition("\n")[2],
    }
    contracts = load_contracts(tmp_path, bundle(tmp_path, **files), ["rows", "single"])
    assert {kernel: contract.reference() for kernel, contract in contracts.items()} == {"rows": 14, "single": 7}


def test_a_bundle_gets_the_folders_below_contracts(tmp_path: Path) -> None:
    for name in ("contracts/_root", "contracts/rows/__init__", "contracts/rows/_own", "contracts/rows/one"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.py").write_text("")
    (tmp_path / "_above.py").write_text("")
    sources = contract_sources({"kernel": str(tmp_path / "contracts/rows/one.py")})
    assert sorted(sources) == ["_root.py", "rows/__init__.py", "rows/_own.py", "rows/kernel.py"]
    (tmp_path / "contracts/rows/__init__.py").unlink()  # then a folder above has the name by chance
    assert sorted(contract_sources({"kernel": str(tmp_path / "contracts/rows/one.py")})) == ["_own.py", "kernel.py"]


def test_two_bundles_do_not_mix(tmp_path: Path) -> None:
    for value in (1, 2):
        path = tmp_path / str(value)
        manifest = bundle(path, _shared=f"VALUE = {value}\n", double=CONTRACT)
        assert load_contracts(path, manifest, ["double"])["double"].reference() == value


def test_a_pipe_or_a_device_in_the_place_of_a_contract_is_not_read(tmp_path: Path) -> None:
    manifest = bundle(tmp_path, _shared="VALUE = 7\n", double=CONTRACT)
    contract = tmp_path / "contracts/double.py"
    for put in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        contract.unlink()
        put(contract)
        with pytest.raises(BundleError, match="not a regular file"):
            load_contracts(tmp_path, manifest, ["double"])


def test_an_altered_contract_does_not_run(tmp_path: Path) -> None:
    manifest = bundle(tmp_path, double="raise SystemExit\n")
    (tmp_path / "contracts/double.py").write_text("raise SystemExit  # altered\n")
    with pytest.raises(DigestError, match="not the file that the bundle was built with"):
        load_contracts(tmp_path, manifest, ["double"])


def test_a_contract_without_a_reference_is_refused(tmp_path: Path) -> None:
    manifest = bundle(tmp_path, double="def inputs(make, dtype): yield {}\n")
    with pytest.raises(BundleError, match="no function `reference`"):
        load_contracts(tmp_path, manifest, ["double"])


def test_a_contract_that_imports_what_no_bundle_carries_is_refused(tmp_path: Path) -> None:
    manifest = bundle(tmp_path, double="from . import single\n")
    with pytest.raises(BundleError, match="the contract of double cannot be imported: cannot import name 'single'"):
        load_contracts(tmp_path, manifest, ["double"])


@pytest.mark.parametrize("line", ["from . import other", "from .other import VALUE", "from .. import above"])
@pytest.mark.parametrize("file", ["one", "_shared"])
def test_a_contract_that_imports_another_is_refused_when_a_bundle_is_built(
    line: str, file: str, tmp_path: Path
) -> None:
    folder = tmp_path / "contracts/rows"
    folder.mkdir(parents=True)
    for name in ("__init__", "_shared", "one", "other", "../above"):
        (folder / f"{name}.py").write_text("from . import _shared\n" if name == "one" else "")
    assert sorted(contract_sources({"one": str(folder / "one.py")})) == [
        "rows/__init__.py",
        "rows/_shared.py",
        "rows/one.py",
    ]
    (folder / f"{file}.py").write_text(f"{line}\n")
    with pytest.raises(BuildError, match=rf"`{folder / file}.py` imports `(other|above).py`") as caught:
        contract_sources({"one": str(folder / "one.py")})
    assert caught.value.hint == "move what contracts share to a file whose name starts with an underscore"


def test_shared_files_of_two_folders_must_agree(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "_shared.py").write_text("")
        (tmp_path / folder / "one.py").write_text("")
    sources = {"one": str(tmp_path / "a/one.py"), "two": str(tmp_path / "b/one.py")}
    assert sorted(contract_sources(sources)) == ["_shared.py", "one.py", "two.py"]
    (tmp_path / "b/_shared.py").write_text("different")
    with pytest.raises(BuildError, match="two different files"):
        contract_sources(sources)
