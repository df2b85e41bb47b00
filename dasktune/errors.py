"""The exceptions of dasktune.

::

    TuneError                     base class of dasktune's exceptions
    ├── ConfigError (ValueError)  an argument breaks its rule; raised before any trial starts
    │   ├── RecursiveDependencyError   values of a search space depend on each other in a cycle
    │   ├── PreflightError             the cluster or the storage cannot run this experiment
    │   └── ReportError                what a trial reports or returns breaks its rule
    ├── TrialError                user code failed; carries the trial and its traceback
    ├── ClusterError              the Dask cluster cannot be used
    │   └── ClusterLost           the cluster was lost and has not come back
    ├── ControlError              a command to a running experiment was not carried out
    ├── StorageError              the experiment's storage failed or holds something unusable
    │   ├── CheckpointNotFound    there is no committed checkpoint at this path
    │   └── CheckpointDamaged     files of a committed checkpoint are missing or have changed
    └── InvalidTransition         a bug in dasktune; carries the trial's history

All of them can be pickled, because workers send them to the driver and the client.
"""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = [
    "CheckpointDamaged",
    "CheckpointNotFound",
    "ClusterError",
    "ClusterLost",
    "ConfigError",
    "ControlError",
    "InvalidTransition",
    "PreflightError",
    "RecursiveDependencyError",
    "ReportError",
    "StorageError",
    "TrialError",
    "TuneError",
    "check",
    "without_passwords",
]

#: The text between ``://`` and ``@`` may be a password. A password with a slash makes the URL
#: invalid, and is hidden anyway unless it looks like a port. The limits bound the search time.
_USER: Final = re.compile(r"""://(?:[^/\s'"<>]{0,2000}|[^/:\s'"<>]{0,2000}:(?!\d*/)[^\s'"<>]{0,2000})@""")
#: A user or password that no URL may contain, with quotes, brackets or spaces. The password begins
#: after a colon that no port follows, and ends before the last ``@`` of a word; it has at most 200
#: characters. A quote in the user precedes a letter or digit; others end a quoted URL.
_ODD_USER: Final = re.compile(
    r"""://(?:[^/:@\s'"<>]|['"<>](?=\w)){0,200}:(?![\s/]|\d{1,5}(?:[^\w@]|$))(?:(?!://|@)[^\n]){0,200}@(?:[^\s/'"<>@]{0,200}@)*"""
)
#: A parameter of a URL that is called like a credential, in its path, query or fragment.
_CREDENTIAL: Final = re.compile(
    r"([;#?&][\w.-]{0,50}(?:token|secret|sig|signature|passw\w{0,4}|credential|key)=)[^\s'\"<>&;#]+",
    re.IGNORECASE,
)


class TuneError(Exception):
    """Base class of dasktune's exceptions.

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
    """Values of a search space depend on each other in a cycle, so none can be resolved.

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


class ReportError(ConfigError):
    """What a trial reports or returns breaks its rule, such as a result without the metric.

    If no trial of the experiment has a result yet, every trial would fail in the same way. Then the
    experiment ends, and `fit` raises this error.

    Examples
    --------
    >>> issubclass(ReportError, ConfigError)
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
        # Without the traceback, so that a list of failures stays readable.
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
    """The Dask cluster was lost and has not come back in time.

    Examples
    --------
    >>> str(ClusterLost("the scheduler at tcp://10.0.0.5:8786 is gone"))
    'the scheduler at tcp://10.0.0.5:8786 is gone'
    """


class ControlError(TuneError):
    """A command to a running experiment was not executed and has changed nothing.

    Parameters
    ----------
    message : str
        The reason.
    kind : str
        ``"unknown"`` (there is no such trial), ``"over"`` (the trial or the experiment has ended),
        ``"conflict"`` (not possible in this state), ``"invalid"`` (invalid arguments), ``"busy"``
        (too many waiting commands), ``"refused"`` (the server rejected the request), or
        ``"unreachable"`` (no answer: the command may have been executed).

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
    """There is no committed checkpoint at this path.

    Examples
    --------
    >>> issubclass(CheckpointNotFound, StorageError)
    True
    """


class CheckpointDamaged(StorageError):
    """A committed checkpoint cannot be used: its files are missing or have changed since.

    Examples
    --------
    >>> issubclass(CheckpointDamaged, StorageError)
    True
    """


class InvalidTransition(TuneError):
    """An event or action does not fit a trial's status: a bug in dasktune.

    Parameters
    ----------
    message : str
        The event and the trial.
    story : tuple of str, default=()
        The trial's history, oldest event first.

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
    """Raise :class:`ConfigError` with the standard message unless `condition` holds.

    Parameters
    ----------
    condition : bool
        Whether the argument obeys its rule.
    name : str
        The argument's name, as the user typed it.
    rule : str
        The rule, to be read after "must be".
    value : object
        The value of the argument.
    hint : str, default=""
        A sentence that says what to do.

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
    """Return `text` with ``***`` for the user, the password and the credentials in each URL.

    Parameters
    ----------
    text : str
        A URL, or a text with URLs in it.

    Examples
    --------
    >>> without_passwords("cannot open ftp://me:hunter2@host/x")
    'cannot open ftp://***@host/x'
    """
    if "@" in text:
        text = _ODD_USER.sub("://***@", _USER.sub("://***@", text))
    return _CREDENTIAL.sub(r"\1***", text) if "://" in text else text
