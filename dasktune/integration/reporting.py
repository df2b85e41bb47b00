"""What the callbacks for all training packages do alike: choose metrics, report, save models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dasktune.errors import ConfigError, check
from dasktune.rules import is_int, is_safe_name
from dasktune.storage.checkpoint import Checkpoint
from dasktune.trainable import report

__all__ = ["BoostingReporter", "MetricNames", "check_filename", "check_there", "send"]

#: How a user says which metrics are reported, as in Ray Tune.
Metrics = str | Sequence[str] | Mapping[str, str] | None

_RULE: Final = "a name, a list of names, or a dict of names to report to the package's names"


def check_there(package: str, extra: str, problem: str) -> None:
    """Refuse to go on without the package.

    Parameters
    ----------
    package : str
        What it calls itself.
    extra : str
        What installs it with dasktune.
    problem : str
        Why it could not be imported; empty if it could.

    Raises
    ------
    ConfigError
        If there is a problem.
    """
    if problem:
        raise ConfigError(
            f"{package} cannot be imported ({problem}): pip install 'dasktune[{extra}]'"
        )


def check_filename(filename: object) -> None:
    """Refuse what is no name of a file.

    Parameters
    ----------
    filename : object
        What was given.

    Raises
    ------
    ConfigError
        If it is none.
    """
    fits = isinstance(filename, str) and is_safe_name(filename)
    check(fits, "filename", "the name of a file, without a directory", filename)


class MetricNames:
    """Which metrics of a package are reported, and under which names.

    Parameters
    ----------
    metrics : str, sequence of str, or mapping of str to str, optional
        The package's names, or what to report each as: ``{"loss": "eval-logloss"}``. All by
        default.
    package : str
        What it calls itself.

    Raises
    ------
    ConfigError
        If `metrics` is something else.

    Examples
    --------
    >>> names = MetricNames({"loss": "eval-logloss"}, "XGBoost")
    >>> names.choose({"eval-logloss": 0.5, "eval-error": 0.1})
    {'loss': 0.5}
    """

    def __init__(self, metrics: Metrics, package: str) -> None:
        self._package = package
        self._names = _as_mapping(metrics)
        texts = [text for pair in self._names.items() for text in pair]
        check(all(isinstance(text, str) and text for text in texts), "metrics", _RULE, metrics)

    def choose(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is to be reported.

        Parameters
        ----------
        told : mapping
            All metrics, by the package's names.

        Raises
        ------
        ConfigError
            If one of those asked for is not among them.
        """
        absent = self.absent(told)
        hint = f"{self._package} tells of {sorted(told)}."
        check(not absent, "metrics", f"names that {self._package} uses", absent, hint)
        return self.choose_known(told)

    def choose_known(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is to be reported, as far as it is there.

        Parameters
        ----------
        told : mapping
            All metrics, by the package's names.
        """
        if not self._names:
            return dict(told)
        return {own: told[its] for own, its in self._names.items() if its in told}

    def absent(self, told: Mapping[str, Any]) -> list[str]:
        """Return the package's names of those that were asked for and are not there.

        Parameters
        ----------
        told : mapping
            All metrics, by the package's names.
        """
        return [its for its in self._names.values() if its not in told]


def send(
    metrics: Mapping[str, Any],
    save: Callable[[str], object] | None = None,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Report a result, perhaps with a checkpoint.

    Parameters
    ----------
    metrics : mapping
        The result.
    save : callable, optional
        Writes files into the directory whose path it is given. None saves no checkpoint.
    metadata : mapping, optional
        Of the checkpoint.

    Raises
    ------
    TrialInterrupted
        If the trial is to end, through whatever code of the package is on the stack.
    """
    if save is None:
        report(dict(metrics))
        return
    checkpoint = Checkpoint.temporary()
    save(checkpoint.path)
    if metadata is not None:
        checkpoint.set_metadata(metadata)
    report(dict(metrics), checkpoint=checkpoint)


class BoostingReporter:
    """What the callbacks for boosted trees have in common: a result a round, models now and then.

    Parameters
    ----------
    names : MetricNames
        What is reported.
    filename : str
        The model's file in a checkpoint.
    frequency : int
        Rounds from one checkpoint to the next; 0 saves none on the way.
    checkpoint_at_end : bool
        Whether the last result brings a checkpoint.
    results_postprocessing_fn : callable, optional
        Turns the metrics into those that are reported.

    Raises
    ------
    ConfigError
        If an argument breaks its rule.
    """

    def __init__(
        self,
        names: MetricNames,
        filename: str,
        frequency: int,
        checkpoint_at_end: bool,
        results_postprocessing_fn: Callable[[dict[str, Any]], dict[str, Any]] | None,
    ) -> None:
        check_filename(filename)
        check(is_int(frequency, least=0), "frequency", "a number of rounds, or 0", frequency)
        self.filename = filename
        self._names = names
        self._frequency = frequency
        self._at_end = checkpoint_at_end
        self._postprocess = results_postprocessing_fn

    def round_done(
        self,
        told: Mapping[str, Any],
        save: Callable[[str], object] | None,
        *,
        rounds: int,
        last: bool,
    ) -> None:
        """Report a round.

        Parameters
        ----------
        told : mapping
            Its metrics by the package's names.
        save : callable, optional
            Writes the model into a directory; None if there is no model to save.
        rounds : int
            How many the model has, with those that it went on from.
        last : bool
            Whether there will be no further round.
        """
        metrics = self._names.choose(told)
        if self._postprocess is not None:
            metrics = self._postprocess(metrics)
        due = self._frequency > 0 and rounds % self._frequency == 0
        send(metrics, save if due or (last and self._at_end) else None)


def _as_mapping(metrics: Metrics) -> Mapping[Any, Any]:
    given: object = metrics
    if metrics is None:
        return {}
    if isinstance(metrics, str):
        return {metrics: metrics}
    if isinstance(metrics, Mapping):
        return dict(metrics)
    check(isinstance(given, list | tuple), "metrics", _RULE, metrics)
    return {name: name for name in metrics}
