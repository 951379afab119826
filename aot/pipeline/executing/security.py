"""What a TLS connection to a Dask cluster is made with: a file that names certificates, or Dask's own configuration."""

from __future__ import annotations

import json
import ssl
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...files import read_given

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["read_security"]

_NAMES = ("ca", "cert", "key")
_EXAMPLE = 'write ca = "ca.pem", cert = "cert.pem", key = "key.pem"; paths are relative to the file'


def read_security(path: Path | None) -> Any:
    """Dask's ``Security``. Without a file it is what Dask's configuration says (``distributed.comm.tls``)."""
    from distributed.security import Security

    if path is None:
        security = Security(require_encryption=True)
        if not security.tls_ca_file:
            raise UsageError(
                "a tls:// executor needs certificates", hint="pass `--dask-security FILE`, or configure Dask"
            )
        return security
    files = _files(path)
    try:
        ssl.create_default_context(cafile=str(files["ca"]))
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(files["cert"], files["key"], password=_no_password)
    except (OSError, ValueError) as error:  # what is missing is named by Dask in many lines, and late
        raise UsageError(f"`{path}`: the certificates cannot be used: {error}", hint=_EXAMPLE) from None
    return Security(
        require_encryption=True,
        tls_ca_file=str(files["ca"]),
        tls_client_cert=str(files["cert"]),
        tls_client_key=str(files["key"]),
    )


def _no_password() -> str:
    raise ValueError("the key is encrypted, which Dask cannot use")


def _files(path: Path) -> dict[str, Path]:
    data = _parse(path)
    table = _dask_table(data) if "distributed" in data else data
    if table.keys() != set(_NAMES) or not all(isinstance(table[name], str) for name in _NAMES):
        raise UsageError(f"`{path}` has {sorted(map(str, table))}, must have ca, cert and key", hint=_EXAMPLE)
    files = {name: path.parent / table[name] for name in _NAMES}
    for name, file in files.items():
        if not file.is_file():
            raise UsageError(f"`{path}`: {name} is `{file}`, which is not a file", hint=_EXAMPLE)
    return files


def _dask_table(data: Mapping[str, Any]) -> dict[str, Any]:
    """The three names out of a file that is written like Dask's configuration."""
    found: Any = data
    for name in ("distributed", "comm", "tls"):
        found = found.get(name) if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(found.get("client"), dict):
        return {}
    values = {"ca": found.get("ca-file"), "cert": found["client"].get("cert"), "key": found["client"].get("key")}
    return {name: value for name, value in values.items() if value is not None}


def _parse(path: Path) -> dict[str, Any]:
    try:
        data = _read(path)
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {error.strerror}", hint=_EXAMPLE) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"`{path}` cannot be read: {error}", hint=_EXAMPLE) from None
    if not isinstance(data, dict):
        raise UsageError(f"`{path}` is not a table", hint=_EXAMPLE)
    return data


def _read(path: Path) -> object:
    text = read_given(path)
    if path.suffix == ".json":
        return json.loads(text)
    if path.suffix in (".yaml", ".yml"):
        import yaml  # Dask needs it too

        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(str(error).splitlines()[0]) from None
    return tomllib.loads(text)
