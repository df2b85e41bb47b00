from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dasktune.control import issuer
from dasktune.control.issuer import name_as_given

NEAR, FAR = ("127.0.0.1", 47064), ("127.0.0.1", 8788)


def table(path: Path, uid: int, inode: int) -> Path:
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
    assert issuer._uid_of(NEAR, FAR, table(path, 1234, 99)) == 1234
    assert issuer._uid_of(NEAR, FAR, table(path, 0, 99)) == 0
    # The kernel shows user 0 as soon as the process has closed its end: no inode says so.
    assert issuer._uid_of(NEAR, FAR, table(path, 0, 0)) is None
    assert issuer._uid_of(FAR, NEAR, table(path, 1234, 99)) is None


def test_a_row_that_was_cut_is_not_read(tmp_path, monkeypatch):
    path = table(tmp_path / "tcp", 1234, 99)
    cut = path.read_text().index("1234") + 2
    monkeypatch.setattr(issuer, "_MOST_BYTES", cut)
    assert issuer._uid_of(NEAR, FAR, path) is None


@pytest.mark.parametrize("address", ["::1", "::ffff:127.0.0.1", ""])
def test_other_kinds_of_addresses_are_not_in_the_table(tmp_path, address):
    with pytest.raises(OSError, match="illegal IP address"):
        issuer._uid_of((address, 1), FAR, table(tmp_path / "tcp", 1234, 99))


def test_a_name_does_not_look_like_what_the_driver_adds():
    assert name_as_given("root (HTTP, user root)\n\x1b") == "root [HTTP, user root] ?"
    assert name_as_given(" \n") == "unnamed client"
    assert len(name_as_given("x" * 10_000)) == 100
