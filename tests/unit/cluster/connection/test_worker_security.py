"""The certificates of a client that code on a worker opens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from distributed import Security

from dasktune.cluster.connection.open_client import security_of_worker


def worker(**files: str) -> Any:
    security = Security(tls_ca_file="ca", tls_worker_cert="cert", tls_worker_key="key", **files)
    return SimpleNamespace(security=security, scheduler=SimpleNamespace(address="tls://a:1"))


def files_of_client(security: Any) -> tuple[str, str, str]:
    files = security.get_tls_config_for_role("client")
    return files["ca_file"], files["cert"], files["key"]


def test_a_client_on_a_worker_uses_the_worker_s_certificate() -> None:
    one = worker()
    assert files_of_client(security_of_worker(one)) == ("ca", "cert", "key")
    assert one.security.tls_client_cert is None


def test_a_certificate_for_clients_comes_first() -> None:
    one = worker(tls_client_cert="own", tls_client_key="own key")
    assert files_of_client(security_of_worker(one)) == ("ca", "own", "own key")
