"""What ``--executor`` may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot.errors import UsageError
from aot.pipeline.address import Address, parse_address, parse_cluster


@pytest.mark.parametrize(
    "text", ["dask://host", "ray://host:1", "host:8786", "dask://:1", "dask://host:many", "dask://h:1/x"]
)
def test_what_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not an executor") as caught:
        parse_address(text)
    assert caught.value.hint == "write it like dask://host:8786 or tls://host:8786"


@pytest.mark.parametrize(
    ("text", "address", "shown"),
    [
        ("dask://scheduler.cluster:8786", Address("scheduler.cluster", 8786), "tcp://scheduler.cluster:8786"),
        ("tcp://10.0.0.1:1", Address("10.0.0.1", 1), "tcp://10.0.0.1:1"),
        ("tls://[::1]:8786", Address("::1", 8786, encrypted=True), "tls://[::1]:8786"),
    ],
)
def test_an_address_is_host_and_port_and_whether_tls_is_used(text: str, address: Address, shown: str) -> None:
    assert parse_address(text) == address
    assert str(address) == shown


def test_certificates_ask_for_tls_and_are_wrong_usage_without_a_cluster(tmp_path: Path) -> None:
    file = tmp_path / "dask.toml"
    assert parse_cluster("dask://host:1", file) == Address("host", 1, encrypted=True, security=file)
    assert parse_cluster("dask://host:1") == Address("host", 1)
    assert parse_cluster(None) is None
    with pytest.raises(UsageError, match="`--dask-security` needs a cluster"):
        parse_cluster(None, file)
