"""Removes credentials from texts and exceptions, and converts read errors to `StorageError`.

The exceptions of object stores' clients may contain the address with the password, the signed query
or the key. Exceptions are written to logs, to ``error.txt`` and to the journal.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar
from urllib.parse import quote, quote_plus

from dasktune.errors import StorageError, without_passwords

_HIDDEN: Final = "***"
#: Shortest secret that is searched for; the password "a" would hide every "a".
_SHORTEST_TEXT: Final = 4
#: Fewest digits of a number that is searched for; a shorter one may be a port.
_SHORTEST_NUMBER: Final = 6
#: Largest number of chained exceptions that are redacted.
_LONGEST_CHAIN: Final = 100

F = TypeVar("F", bound=Callable[..., Any])


def secrets_of(options: Any) -> tuple[str, ...]:
    """Return every value in `storage_options`, in all forms in which it may be printed.

    All values count as secrets, since the names of secret options differ between stores.

    Parameters
    ----------
    options : object
        Mappings, lists and values, at any depth.

    Returns
    -------
    tuple of str
        The longest first, since one may contain another.

    Examples
    --------
    >>> secrets_of({"key": "AKIA", "client_kwargs": {"token": "a/b c"}, "anon": False})
    ('a%2Fb%20c', 'a%2Fb+c', 'a/b c', 'AKIA')
    """
    forms: set[str] = set()
    for text in _texts(options):
        forms |= {text, repr(text)[1:-1], json.dumps(text)[1:-1], quote(text, ""), quote_plus(text)}
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _texts(item)
        return
    if isinstance(value, bytes | bytearray):
        value = bytes(value).decode("utf-8", "replace")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return
    shortest = _SHORTEST_TEXT if isinstance(value, str) else _SHORTEST_NUMBER
    if len(text := str(value).strip()) >= shortest:
        yield text


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text` without passwords and queries of URLs, and without `secrets`.

    Parameters
    ----------
    text : str
        Any text.
    secrets : iterable of str
        The result of :func:`secrets_of`.

    Examples
    --------
    >>> redact("403 for https://me:pw@host/x?sig=1 and key AKIA", ["AKIA"])
    '403 for https://***@host/x?*** and key ***'
    """
    for secret in secrets:
        text = text.replace(secret, _HIDDEN)
    return _PARAMETERS.sub(r"\1***", _QUERY.sub(r"\1***", without_passwords(text)))


#: The query of a URL, in which a store's client signs a request.
_QUERY: Final = re.compile(r"""(://[^\s'"?<>]{0,2000}\?)[^\s'"<>]+""")


#: Parameters of a URL's path and its fragment, in which some services pass a token.
_PARAMETERS: Final = re.compile(r"""(://[^\s'"?#;<>]{0,2000}[;#](?=[\w.-]{1,100}=))[^\s'"<>]+""")


def redacted_error(error: BaseException, secrets: Iterable[str] = ()) -> BaseException:
    """Return an exception without secrets in it or in the exceptions that it is chained to.

    Parameters
    ----------
    error : exception
        It is changed in place. If its text still has a secret then, a `StorageError` with the same
        traceback is returned instead.
    secrets : iterable of str
        The result of :func:`secrets_of`.

    Examples
    --------
    >>> redacted_error(PermissionError(13, "no access for AKIA"), ["AKIA"])
    PermissionError(13, 'no access for ***')
    """
    hide = functools.partial(redact, secrets=tuple(secrets))
    return _redacted_chain(error, hide, {})


def _redacted_chain(
    error: BaseException, hide: Callable[[str], str], done: dict[int, BaseException]
) -> BaseException:
    if id(error) in done:
        return done[id(error)]
    cause, context, quiet = error.__cause__, error.__context__, error.__suppress_context__
    shown = done[id(error)] = _redacted_alone(error, hide)
    if len(done) > _LONGEST_CHAIN:
        cause = context = None
    shown.__context__ = None if context is None else _redacted_chain(context, hide, done)
    shown.__cause__ = None if cause is None else _redacted_chain(cause, hide, done)
    shown.__suppress_context__ = quiet
    return shown


def _redacted_alone(error: BaseException, hide: Callable[[str], str]) -> BaseException:
    try:
        _redact_in_place(error, hide)
        texts = [str(error), repr(error)]
        mended = [hide(text) for text in texts] == texts
        text = hide(texts[0])
    except Exception:  # the methods of a foreign class may raise anything
        mended, text = False, ""
    if mended:
        return error
    name = type(error).__name__
    return StorageError(f"{name}: {text}" if text else name).with_traceback(error.__traceback__)


def _redact_in_place(error: BaseException, hide: Callable[[str], str]) -> None:
    """Redact the texts in an exception, which keeps its type."""
    arguments = tuple(hide(one) if isinstance(one, str) else one for one in error.args)
    if arguments != error.args:
        error.args = arguments
    for name in ("strerror", "filename", "filename2"):
        text = getattr(error, name, None) if isinstance(error, OSError) else None
        if isinstance(text, str) and hide(text) != text:
            setattr(error, name, hide(text))
    notes = getattr(error, "__notes__", None)
    if notes:
        notes[:] = [hide(str(note)) for note in notes]


def redact_errors(method: F) -> F:
    """Decorate a method: redact the secrets of its object's storage in its exceptions.

    The secrets are the object's ``storage_options``, or those of its ``storage`` or ``filesystem``.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            owner = getattr(self, "storage", None) or getattr(self, "filesystem", self)
            users = _USERINFO.findall(str(getattr(owner, "url", "")))
            options = getattr(owner, "storage_options", None)
            shown = redacted_error(error, secrets_of([users, options]))
            try:
                if shown is error:
                    raise
                raise shown from shown.__cause__
            finally:
                # The error's traceback refers to this frame: the cycle would keep objects alive.
                del shown

    return call  # type: ignore[return-value]


#: User and password of a URL, and the password alone: some filesystems put them into paths.
_USERINFO: Final = re.compile(r"://([^/:]*:([^/]*))@")


@contextmanager
def reading(name: str, place: object) -> Iterator[None]:
    """Turn any exception inside the ``with`` block into a StorageError with the file's name.

    Parameters
    ----------
    name : str
        The file that is read.
    place : Storage
        The directory of the file.
    """
    try:
        yield
    except StorageError:
        raise
    except Exception as error:  # each store's client has its own exceptions
        raise StorageError(f"cannot read {name} in {place}: {error!r}") from error
