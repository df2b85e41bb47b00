"""Who issues a command: what a client says of itself, and what the transport knows of it.

A client names its user and host. This is for the journal only, and proves nothing: a client with
the token may write any name. The system knows more of a connection on one machine: the user whose
process has opened it.
"""

from __future__ import annotations

import getpass
import os
import platform
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from dasktune.text.formatting import one_line

if TYPE_CHECKING:
    from tornado.httputil import HTTPServerRequest

#: The header of a request with the user and the host of the client, percent-encoded in UTF-8.
HEADER: Final = "Dasktune-User"
#: Longest name of a client, in columns.
_LONGEST: Final = 100
_BRACKETS: Final = str.maketrans("()", "[]")
#: The kernel's table of connections over IPv4.
_CONNECTIONS: Final = Path("/proc/net/tcp")
#: Most bytes that are read of it: a command must not wait for a table of a million connections.
_MAX_BYTES: Final = 4 << 20


def this_user() -> str:
    """Return the user and the host of this process, such as ``"ann@node7"``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # the user has no name, as in many containers
        user = f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"
    return one_line(f"{user}@{platform.node() or 'unknown'}", _LONGEST)


def user_header() -> str:
    """Return the value of the header `HEADER` for requests of this process."""
    return quote(this_user(), safe="@ ")


def name_as_given(text: str) -> str:
    """Return the name that a client gives of itself, as one short line.

    Parentheses become brackets: what is in parentheses after the name comes from the driver.

    Parameters
    ----------
    text : str
        The name; empty if the client has given none.

    Examples
    --------
    >>> name_as_given("ann@node7"), name_as_given("ann (HTTP, user ann)"), name_as_given("")
    ('ann@node7', 'ann [HTTP, user ann]', 'unnamed client')
    """
    return one_line(text.translate(_BRACKETS), _LONGEST) or "unnamed client"


def issuer_of_request(
    request: HTTPServerRequest, hide: Callable[[str], str], *, table: Path = _CONNECTIONS
) -> str:
    """Return who has sent a request, for the journal.

    Parameters
    ----------
    request : HTTPServerRequest
        The request.
    hide : callable
        Returns a text without secrets.
    table : Path, optional
        The kernel's table of connections.
    """
    # Secrets are hidden before the text is cut, which would leave a part of them.
    given = hide(one_line(unquote(request.headers.get(HEADER, ""), errors="replace")))
    user = _user_of_connection(request, table)
    return f"{name_as_given(given)} (HTTP{user and ', '}{user})"


def _user_of_connection(request: HTTPServerRequest, table: Path) -> str:
    """Return the user whose process on this machine has opened a connection; empty if unknown."""
    connection: Any = request.connection
    try:
        peer, here = (connection.stream.socket.getpeername(), connection.stream.socket.getsockname())
        uid = uid_of_connection(peer[:2], here[:2], table)
    except (OSError, AttributeError, ValueError, IndexError):  # another system, or it has ended
        return ""
    if uid is None:
        return ""
    with suppress(KeyError, ImportError):
        import pwd

        return one_line(f"user {pwd.getpwuid(uid).pw_name}", _LONGEST)
    return f"uid {uid}"


def uid_of_connection(
    near: tuple[str, int], far: tuple[str, int], table: Path, *, max_bytes: int = _MAX_BYTES
) -> int | None:
    """Return the user who owns an end of a connection on this machine; None if that is unknown.

    If the process has closed its end already, the kernel shows user 0 and no inode.

    Parameters
    ----------
    near, far : tuple of str and int
        Addresses and ports of that end and of the other one.
    table : Path
        The kernel's table of connections.
    max_bytes : int, default=4194304
        Most bytes that are read of it.

    Raises
    ------
    OSError
        If the table cannot be read, or an address is not one of IPv4.
    """
    pair = [_address_in_table(near), _address_in_table(far)]
    with open(table, encoding="ascii") as file:
        *lines, _ = file.read(max_bytes).split("\n")  # the last line may be cut
    for fields in map(str.split, lines[1:]):
        if fields[1:3] == pair:
            return int(fields[7]) if int(fields[9]) else None
    return None


def _address_in_table(address: tuple[str, int]) -> str:
    # The kernel writes the address as a number in the machine's byte order.
    number = int.from_bytes(socket.inet_aton(address[0]), byteorder=sys.byteorder)
    return f"{number:08X}:{address[1]:04X}"
