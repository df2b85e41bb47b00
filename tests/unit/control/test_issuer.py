"""Who has sent a request, by what the client says and by what the system knows."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dasktune.control import issuer
from dasktune.control.issuer import HEADER, issuer_of_request, this_user

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def as_in_table(address: str, port: int) -> str:
    return f"{int.from_bytes(socket.inet_aton(address), sys.byteorder):08X}:{port:04X}"


def row(near: tuple[str, int], far: tuple[str, int], uid: int) -> str:
    numbers = f"01 00000000:00000000 00:00000000 00000000 {uid} 0 1"
    return f"   0: {as_in_table(*near)} {as_in_table(*far)} {numbers}\n"


CLIENT, SERVER = ("127.0.0.1", 50_000), ("127.0.0.1", 4321)


def request(**headers: str) -> Any:
    ends = SimpleNamespace(getpeername=lambda: CLIENT, getsockname=lambda: SERVER)
    connection = SimpleNamespace(stream=SimpleNamespace(socket=ends))
    return SimpleNamespace(headers=headers, connection=connection)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tcp"
    monkeypatch.setattr(issuer, "_CONNECTIONS", path)
    return path


def test_the_system_says_which_user_has_opened_the_connection(table: Path):
    # The other row is the server's end of the same connection.
    table.write_text(HEAD + row(SERVER, CLIENT, 1) + row(CLIENT, SERVER, 2**31 - 5))
    given = {HEADER: "ann%40node7"}
    assert issuer_of_request(request(**given), str) == f"ann@node7 (HTTP, uid {2**31 - 5})"


@pytest.mark.parametrize("content", [HEAD, HEAD + "short\n", HEAD + row(CLIENT, ("127.0.0.1", 1), 7), None])
def test_a_connection_that_the_system_does_not_list_has_no_user(table: Path, content: str | None):
    if content is not None:
        table.write_text(content)
    assert issuer_of_request(request(), str) == "unnamed client (HTTP)"


def test_a_connection_that_has_ended_has_no_user(table: Path):
    gone = SimpleNamespace(headers={}, connection=SimpleNamespace(stream=None))
    assert issuer_of_request(gone, str) == "unnamed client (HTTP)"  # type: ignore[arg-type]


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch):
    def fail() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr("getpass.getuser", fail)
    monkeypatch.setattr("os.getuid", lambda: 12345)
    assert this_user().startswith("uid 12345@")
