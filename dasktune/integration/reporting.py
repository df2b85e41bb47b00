"""Shared code of the callbacks for training packages: select metrics, report, save models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dasktune.config.validation import is_int, is_safe_name
from dasktune.errors import ConfigError, check
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.trainable import report

#: The user's selection of metrics, as in Ray Tune.
Metrics = str | Sequence[str] | Mapping[str, str] | None

_RULE: Final = "a name, a list of names, or a dict of names to report to the package's names"


def check_installed(package: str, distribution: str, problem: str) -> None:
    """Check that a package could be imported.

    Parameters
    ----------
    package : str
        The package's display name.
    distribution : str
        The name by which pip installs it.
    problem : str
        The import error; empty if the package was imported.

    Raises
    ------
    ConfigError
        If there was an import error.
    """
    if problem:
        raise ConfigError(f"{package} cannot be imported ({problem}): pip install {distribution}")


def check_filename(filename: object) -> None:
    """Check the argument `filename`.

    Parameters
    ----------
    filename : object
        The user's value.

    Raises
    ------
    ConfigError
        If it is not a file name without a directory.
    """
    fits = isinstance(filename, str) and is_safe_name(filename)
    check(fits, "filename", "the name of a file, without a directory", filename)


class MetricNames:
    """Selects the metrics of a package to report, and renames them.

    Parameters
    ----------
    metrics : str, sequence of str, or mapping of str to str, optional
        The package's names, or ``{reported name: package's name}``, such as
        ``{"loss": "eval-logloss"}``. All metrics by default.
    package : str
        The package's display name.

    Raises
    ------
    ConfigError
        If `metrics` has another type.

    Examples
    --------
    >>> names = MetricNames({"loss": "eval-logloss"}, "XGBoost")
    >>> names.select({"eval-logloss": 0.5, "eval-error": 0.1})
    {'loss': 0.5}
    """

    def __init__(self, metrics: Metrics, package: str) -> None:
        self._package = package
        self._names = _as_mapping(metrics)
        texts = [text for pair in self._names.items() for text in pair]
        check(all(isinstance(text, str) and text for text in texts), "metrics", _RULE, metrics)

    def select(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metrics to report.

        Parameters
        ----------
        values : mapping
            All metrics, by the package's names.

        Raises
        ------
        ConfigError
            If a selected metric is missing.
        """
        missing = self.missing(values)
        hint = f"{self._package} has {sorted(values)}."
        check(not missing, "metrics", f"names that {self._package} uses", missing, hint)
        return self.select_available(values)

    def select_available(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metrics to report that are available.

        Parameters
        ----------
        values : mapping
            All metrics, by the package's names.
        """
        if not self._names:
            return dict(values)
        return {reported: values[name] for reported, name in self._names.items() if name in values}

    def missing(self, values: Mapping[str, Any]) -> list[str]:
        """Return the package's names of the selected metrics that are missing.

        Parameters
        ----------
        values : mapping
            All metrics, by the package's names.
        """
        return [name for name in self._names.values() if name not in values]


def report_result(
    metrics: Mapping[str, Any],
    save: Callable[[str], object] | None = None,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Report a result, with a checkpoint if `save` is given.

    Parameters
    ----------
    metrics : mapping
        The result.
    save : callable, optional
        ``save(path)`` writes the checkpoint's files into a directory.
    metadata : mapping, optional
        Metadata of the checkpoint.

    Raises
    ------
    TrialInterrupted
        If the trial must end. The exception passes through the package's code on the stack.
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
    """Reports each round of a boosting package, with a checkpoint every `frequency` rounds.

    Parameters
    ----------
    names : MetricNames
        The metrics to report.
    filename : str
        Name of the model's file in a checkpoint.
    frequency : int
        Number of rounds between two checkpoints; with 0, none is saved before the end.
    checkpoint_at_end : bool
        Whether the last result has a checkpoint.
    results_postprocessing_fn : callable, optional
        Converts the metrics before they are reported.

    Raises
    ------
    ConfigError
        If an argument is invalid.
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

    def on_round_end(
        self, values: Mapping[str, Any], save: Callable[[str], object] | None, *, rounds: int, last: bool
    ) -> None:
        """Report a round.

        Parameters
        ----------
        values : mapping
            The metrics of the round, by the package's names.
        save : callable, optional
            Writes the model into a directory; None if there is no model to save.
        rounds : int
            Number of rounds of the model, including rounds before the training was resumed.
        last : bool
            Whether this is the last round.
        """
        metrics = self._names.select(values)
        if self._postprocess is not None:
            metrics = self._postprocess(metrics)
        due = self._frequency > 0 and rounds % self._frequency == 0
        report_result(metrics, save if due or (last and self._at_end) else None)


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
