"""The exceptions of dasktune.

::

    TuneError                     everything that dasktune raises on purpose
    ├── ConfigError (ValueError)  an argument breaks its rule; raised before any trial starts
    │   ├── RecursiveDependencyError   a search space whose values wait for each other
    │   └── PreflightError             the cluster or the storage cannot run this experiment
    ├── TrialError                user code failed; carries the trial and its traceback
    ├── ClusterError              the Dask cluster cannot be used
    │   └── ClusterLost           it was there, and is gone for good
    ├── ControlError              a command to a running experiment was not carried out
    ├── StorageError              the experiment's storage failed or holds something unusable
    │   └── CheckpointNotFound    no committed checkpoint stands at that place
    └── InvalidTransition         a bug in dasktune; carries the trial's story

Every one of them survives pickling, because they cross process borders.
"""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = [
    "CheckpointNotFound",
    "ClusterError",
    "ClusterLost",
    "ConfigError",
    "ControlError",
    "InvalidTransition",
    "PreflightError",
    "RecursiveDependencyError",
    "StorageError",
    "TrialError",
    "TuneError",
    "check",
    "without_passwords",
]

#: What stands between ``://`` and ``@`` may be a password. One with a slash in it makes it no URL,
#: and is hidden all the same unless it looks like a port. The limits keep strange texts from taking
#: long.
_USER: Final = re.compile(
    r"""://(?:[^/\s'"<>]{0,2000}|[^/:\s'"<>]{0,2000}:(?!\d*/)[^\s'"<>]{0,2000})@"""
)


class TuneError(Exception):
    """Base of everything that dasktune raises on purpose.

    Examples
    --------
    >>> issubclass(ConfigError, TuneError), issubclass(TrialError, TuneError)
    (True, True)
    """


class ConfigError(TuneError, ValueError):
    """An argument breaks its rule.

    The message reads ``<name> must be <rule>, got <value!r>`` and says what to do.

    Examples
    --------
    >>> check(0.5 < 0.1, "lower", "less than upper=0.1", 0.5)
    Traceback (most recent call last):
        ...
    dasktune.errors.ConfigError: lower must be less than upper=0.1, got 0.5
    """


class RecursiveDependencyError(ConfigError):
    """Values of a search space wait for each other, so that none can be resolved.

    Examples
    --------
    >>> from dasktune.space import resolve, sample_from
    >>> try:
    ...     resolve({"a": sample_from(lambda c: c["b"]), "b": sample_from(lambda c: c["a"])})
    ... except RecursiveDependencyError:
    ...     print("a waits for b, and b for a")
    a waits for b, and b for a
    """


class PreflightError(ConfigError):
    """The cluster or the storage cannot run this experiment; no trial was started.

    Examples
    --------
    >>> issubclass(PreflightError, ConfigError)
    True
    """


class TrialError(TuneError):
    """User code failed in a trial.

    Parameters
    ----------
    trial_id : str
        The trial whose code failed.
    message : str
        The last line of the traceback: exception type and text.
    traceback : str, default=""
        The traceback as the worker printed it.

    Examples
    --------
    >>> error = TrialError("a_00001", "ValueError: lr too large")
    >>> error
    TrialError('a_00001', 'ValueError: lr too large')
    >>> print(error)
    trial a_00001 failed: ValueError: lr too large
    """

    def __init__(self, trial_id: str, message: str, traceback: str = "") -> None:
        super().__init__(trial_id, message, traceback)
        self.trial_id = trial_id
        self.message = message
        self.traceback = traceback

    def __repr__(self) -> str:
        # A list of failures would be a wall of tracebacks.
        return f"TrialError({self.trial_id!r}, {self.message!r})"

    def __str__(self) -> str:
        text = f"trial {self.trial_id} failed: {self.message}"
        return f"{text}\n\n{self.traceback}" if self.traceback else text


class ClusterError(TuneError):
    """The Dask cluster cannot be used.

    Examples
    --------
    >>> issubclass(ClusterLost, ClusterError)
    True
    """


class ClusterLost(ClusterError):
    """The Dask cluster was there and is gone for good.

    Examples
    --------
    >>> str(ClusterLost("the scheduler at tcp://10.0.0.5:8786 is gone"))
    'the scheduler at tcp://10.0.0.5:8786 is gone'
    """


class ControlError(TuneError):
    """A command to a running experiment was not carried out, and has changed nothing.

    Parameters
    ----------
    message : str
        Why not.
    kind : str
        ``"unknown"`` (there is no such trial), ``"over"`` (the trial or the experiment has ended),
        ``"conflict"`` (not in this state), ``"invalid"`` (it makes no sense), ``"busy"`` (too much
        waits), ``"refused"`` (a server did not take it), ``"unreachable"`` (there is no answer: it
        may have been carried out nevertheless).

    Examples
    --------
    >>> ControlError("there is no trial 'x'", "unknown").kind
    'unknown'
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message, kind)
        self.message = message
        self.kind = kind

    def __str__(self) -> str:
        return self.message


class StorageError(TuneError):
    """The experiment's storage failed, or holds something that cannot be used.

    Examples
    --------
    >>> from dasktune import Tuner
    >>> try:
    ...     Tuner.restore("/nothing/is/here", print)
    ... except StorageError:
    ...     print("no experiment")
    no experiment
    """


class CheckpointNotFound(StorageError):
    """No committed checkpoint stands at that place.

    Examples
    --------
    >>> issubclass(CheckpointNotFound, StorageError)
    True
    """


class InvalidTransition(TuneError):
    """A trial was told something that its status does not allow: a bug in dasktune.

    Parameters
    ----------
    message : str
        What happened to which trial.
    story : tuple of str, default=()
        What the trial went through before, oldest first.

    Examples
    --------
    >>> print(InvalidTransition("a_00001 was told nonsense", ("started",)))
    a_00001 was told nonsense. This is a bug in dasktune; the trial's story:
      started
    """

    def __init__(self, message: str, story: tuple[str, ...] = ()) -> None:
        super().__init__(message, story)
        self.message = message
        self.story = story

    def __str__(self) -> str:
        lines = "".join(f"\n  {line}" for line in self.story)
        return f"{self.message}. This is a bug in dasktune; the trial's story:{lines}"


def check(condition: bool, name: str, rule: str, value: Any, hint: str = "") -> None:
    """Raise :class:`ConfigError` with the standard sentence unless `condition` holds.

    Parameters
    ----------
    condition : bool
        Whether the argument obeys its rule.
    name : str
        The argument as the user typed it.
    rule : str
        What it must be, to be read after "must be".
    value : object
        What it was.
    hint : str, default=""
        What to do about it, as one sentence.

    Raises
    ------
    ConfigError
        If `condition` is false.

    Examples
    --------
    >>> check(False, "mode", "'min' or 'max'", "maximum")
    Traceback (most recent call last):
        ...
    dasktune.errors.ConfigError: mode must be 'min' or 'max', got 'maximum'
    """
    if not condition:
        sentence = without_passwords(f"{name} must be {rule}, got {value!r}")
        raise ConfigError(f"{sentence}. {hint}" if hint else sentence)


def without_passwords(text: str) -> str:
    """Return `text` with ``***`` for the user and the password in each URL.

    Parameters
    ----------
    text : str
        A URL, or a text with URLs in it.

    Examples
    --------
    >>> without_passwords("cannot open ftp://me:hunter2@host/x")
    'cannot open ftp://***@host/x'
    """
    return _USER.sub("://***@", text) if "@" in text else text
