"""Keeping credentials out of texts and exceptions, and strange exceptions out of our callers.

The clients of object stores put into their exceptions whatever they know: the address with the
password, the signed query, the key. Exceptions end in logs, in ``error.txt`` and in the journal.
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

__all__ = ["mask_errors", "masked", "masked_error", "reading", "secrets_of"]

_HIDDEN: Final = "***"
#: Characters from which on a text is looked for; "a" as a password would hide every "a".
_SHORTEST_TEXT: Final = 4
#: Digits from which on a number is; it is no port then.
_SHORTEST_NUMBER: Final = 6
#: Exceptions of exceptions that are looked at.
_LONGEST_CHAIN: Final = 100

F = TypeVar("F", bound=Callable[..., Any])


def secrets_of(options: Any) -> tuple[str, ...]:
    """Return every value among `storage_options`, in all the ways that it may be printed.

    What of them is secret cannot be told from their names, as each store has its own.

    Parameters
    ----------
    options : object
        Mappings, lists and what is in them, at any depth.

    Returns
    -------
    tuple of str
        The longest first, since one may be part of another.

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


def masked(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text` without passwords and queries of URLs, and without `secrets`.

    Parameters
    ----------
    text : str
        Anything.
    secrets : iterable of str
        Of :func:`secrets_of`.

    Examples
    --------
    >>> masked("403 for https://me:pw@host/x?sig=1 and key AKIA", ["AKIA"])
    '403 for https://***@host/x?*** and key ***'
    """
    for secret in secrets:
        text = text.replace(secret, _HIDDEN)
    return _QUERY.sub(r"\1***", without_passwords(text))


#: The query of a URL, in which a store's client signs a request.
_QUERY: Final = re.compile(r"""(://[^\s'"?<>]{0,2000}\?)[^\s'"<>]+""")


def masked_error(error: BaseException, secrets: Iterable[str] = ()) -> BaseException:
    """Return an exception that tells no secrets, nor do those that it came from.

    Parameters
    ----------
    error : exception
        It is changed: its texts are masked. If what it prints cannot be mended so, another one
        is returned in its stead, with its traceback.
    secrets : iterable of str
        Of :func:`secrets_of`.

    Examples
    --------
    >>> masked_error(PermissionError(13, "no access for AKIA"), ["AKIA"])
    PermissionError(13, 'no access for ***')
    """
    hide = functools.partial(masked, secrets=tuple(secrets))
    return _masked_chain(error, hide, {})


def _masked_chain(
    error: BaseException, hide: Callable[[str], str], done: dict[int, BaseException]
) -> BaseException:
    if id(error) in done:
        return done[id(error)]
    cause, context, quiet = error.__cause__, error.__context__, error.__suppress_context__
    shown = done[id(error)] = _masked_alone(error, hide)
    if len(done) > _LONGEST_CHAIN:
        cause = context = None
    shown.__context__ = None if context is None else _masked_chain(context, hide, done)
    shown.__cause__ = None if cause is None else _masked_chain(cause, hide, done)
    shown.__suppress_context__ = quiet
    return shown


def _masked_alone(error: BaseException, hide: Callable[[str], str]) -> BaseException:
    try:
        _mend(error, hide)
        texts = [str(error), repr(error)]
        mended = [hide(text) for text in texts] == texts
        text = hide(texts[0])
    except Exception:  # somebody else's class may do anything
        mended, text = False, ""
    if mended:
        return error
    name = type(error).__name__
    return StorageError(f"{name}: {text}" if text else name).with_traceback(error.__traceback__)


def _mend(error: BaseException, hide: Callable[[str], str]) -> None:
    """Mask the texts that an exception is made of, so that it keeps its type."""
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


def mask_errors(method: F) -> F:
    """Let what a method raises tell none of the secrets of its object's storage.

    The object has them as ``storage_options``, or it has a ``storage`` or a ``filesystem`` that
    has.
    """

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            owner = getattr(self, "storage", None) or getattr(self, "filesystem", self)
            users = _USERINFO.findall(str(getattr(owner, "url", "")))
            options = getattr(owner, "storage_options", None)
            shown = masked_error(error, secrets_of([users, options]))
            try:
                if shown is error:
                    raise
                raise shown from shown.__cause__
            finally:
                # Its traceback has this frame, and with it all that the callers hold.
                del shown

    return call  # type: ignore[return-value]


#: User and password of a URL, and the password alone: some filesystems make paths of them.
_USERINFO: Final = re.compile(r"://([^/:]*:([^/]*))@")


@contextmanager
def reading(name: str, place: object) -> Iterator[None]:
    """Turn whatever is raised inside into a StorageError that says what could not be read.

    Parameters
    ----------
    name : str
        What is read.
    place : Storage
        Where it lies.
    """
    try:
        yield
    except StorageError:
        raise
    except Exception as error:  # each store's client has its own exceptions
        raise StorageError(f"cannot read {name} in {place}: {error!r}") from error
