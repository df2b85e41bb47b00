"""Who has sent a request, by what the client says and by what the system knows."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dasktune.control.issuer import (
    HEADER,
    issuer_of_request,
    name_as_given,
    this_user,
    uid_of_connection,
)

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
def table(tmp_path: Path) -> Path:
    return tmp_path / "tcp"


def test_the_system_says_which_user_has_opened_the_connection(table: Path):
    # The other row is the server's end of the same connection.
    table.write_text(HEAD + row(SERVER, CLIENT, 1) + row(CLIENT, SERVER, 2**31 - 5))
    given = {HEADER: "ann%40node7"}
    assert issuer_of_request(request(**given), str, table=table) == f"ann@node7 (HTTP, uid {2**31 - 5})"


@pytest.mark.parametrize("content", [HEAD, HEAD + "short\n", HEAD + row(CLIENT, ("127.0.0.1", 1), 7), None])
def test_a_connection_that_the_system_does_not_list_has_no_user(table: Path, content: str | None):
    if content is not None:
        table.write_text(content)
    assert issuer_of_request(request(), str, table=table) == "unnamed client (HTTP)"


def test_a_connection_that_has_ended_has_no_user(table: Path):
    gone = SimpleNamespace(headers={}, connection=SimpleNamespace(stream=None))
    assert issuer_of_request(gone, str) == "unnamed client (HTTP)"  # type: ignore[arg-type]


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch):
    def fail() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr("getpass.getuser", fail)
    monkeypatch.setattr("os.getuid", lambda: 12345)
    assert this_user().startswith("uid 12345@")


NEAR, FAR = ("127.0.0.1", 47064), ("127.0.0.1", 8788)


def write_table(path: Path, uid: int, inode: int) -> Path:
    """Write a table as the kernel shows it, with one connection between two others."""

    def row(near: tuple[str, int], owner: int, number: int) -> str:
        ends = [int.from_bytes(bytes([127, 0, 0, 1]), sys.byteorder)] * 2
        [here, there] = [f"{end:08X}:{port:04X}" for end, port in zip(ends, (near[1], FAR[1]), strict=True)]
        return f"   1: {here} {there} 05 00000000:00000000 03:00001756 00000000 {owner:5} 0 {number} 3 0"

    rows = [row(("127.0.0.1", 1), 7, 1), row(NEAR, uid, inode), row(("127.0.0.1", 2), 8, 2)]
    path.write_text("\n".join(["  sl  local_address rem_address   st", *rows, ""]))
    return path


def test_a_connection_that_its_process_has_closed_has_no_user(tmp_path):
    path = tmp_path / "tcp"
    assert uid_of_connection(NEAR, FAR, write_table(path, 1234, 99)) == 1234
    assert uid_of_connection(NEAR, FAR, write_table(path, 0, 99)) == 0
    # The kernel shows user 0 as soon as the process has closed its end: no inode says so.
    assert uid_of_connection(NEAR, FAR, write_table(path, 0, 0)) is None
    assert uid_of_connection(FAR, NEAR, write_table(path, 1234, 99)) is None


def test_a_row_that_was_cut_is_not_read(tmp_path):
    path = write_table(tmp_path / "tcp", 1234, 99)
    cut = path.read_text().index("1234") + 2
    assert uid_of_connection(NEAR, FAR, path, max_bytes=cut) is None


@pytest.mark.parametrize("address", ["::1", "::ffff:127.0.0.1", ""])
def test_other_kinds_of_addresses_are_not_in_the_table(tmp_path, address):
    with pytest.raises(OSError, match="illegal IP address"):
        uid_of_connection((address, 1), FAR, write_table(tmp_path / "tcp", 1234, 99))


def test_a_name_does_not_look_like_what_the_driver_adds():
    assert name_as_given("root (HTTP, user root)\n\x1b") == "root [HTTP, user root] ?"
    assert name_as_given(" \n") == "unnamed client"
    assert len(name_as_given("x" * 10_000)) == 100
