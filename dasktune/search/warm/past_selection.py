"""`select_past`, which chooses the experiments that ``TuneConfig(learn_from=...)`` learns from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, Final

from dasktune.errors import TuneError, without_passwords
from dasktune.search.space_searcher import searched_axes
from dasktune.search.spaces.flat_space import FlatSpace
from dasktune.search.warm.config_features import ConfigFeatures
from dasktune.search.warm.past_experiments import LEAST_TRIALS, PastExperiment
from dasktune.space import Domain, Variants
from dasktune.text.formatting import one_line, plural
from dasktune.trial.metrics import Mode

#: The largest number of full trials that are taken from all experiments together.
MOST_TRIALS: Final = 1000

#: The largest number of experiments whose journals are read.
MOST_READ: Final = 100

#: Number of experiments that a message names.
_MOST_NAMED: Final = 5

#: The format of ``experiment.json``. Experiments of a newer dasktune may have another one.
_FORMAT: Final = 1

# Why an experiment is left out.
_UNREADABLE: Final = "cannot be read"
_OTHER_TRAINABLE: Final = "other trainable"
_OTHER_METRIC: Final = "other metric"
_OTHER_MODE: Final = "other mode"
_TOO_FEW: Final = f"fewer than {LEAST_TRIALS} full trials"
_NOTHING_COMMON: Final = "no parameter in common"
_OLDER: Final = "older than needed"


@dataclass(frozen=True, slots=True)
class FoundExperiment:
    """An experiment that was found in one of the places.

    Parameters
    ----------
    name : str
        Its name in messages.
    url : str
        Its directory.
    spec : mapping or None
        The content of its ``experiment.json``; None if that cannot be read.
    created : float
        When it began, in seconds since 1970; minus infinity if that is not known.
    """

    name: str
    url: str
    spec: Mapping[str, Any] | None
    created: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedPast:
    """The new experiment, for which earlier ones are wanted.

    Parameters
    ----------
    trainable : str
        The name of its trainable.
    code : str or None
        Where the trainable is defined, such as ``"package.module:train"``; None if that is not
        known.
    metric : str
        The metric to optimise.
    mode : {"min", "max"}
        Whether to minimise or maximise it.
    axes : mapping of str to Domain
        The domains of the search space by path.
    """

    trainable: str
    code: str | None
    metric: str
    mode: Mode
    axes: Mapping[str, Domain]

    @classmethod
    def of(
        cls, space: Mapping[str, Any], *, trainable: str, code: str | None, metric: str, mode: Mode
    ) -> WantedPast:
        """Return what an experiment with this search space can learn from.

        Parameters
        ----------
        space : mapping
            The ``param_space``.
        trainable, code, metric, mode
            As for the class.

        Raises
        ------
        ConfigError
            If `WarmStart` cannot search the space: also if there is nothing to learn from yet, so
            that the first experiment is refused and not only the second.
        """
        axes = searched_axes(Variants(space), "param_space", "WarmStart")
        FlatSpace(axes, "WarmStart", "param_space")
        return cls(trainable=trainable, code=code, metric=metric, mode=mode, axes=axes)

    @property
    def keys(self) -> frozenset[str]:
        """The keys of a configuration, flat or nested, that have searched parameters."""
        return frozenset(key for path in self.axes for key in (path, path.partition("/")[0]))

    def objection(self, spec: Mapping[str, Any] | None) -> str | None:
        """Return why an experiment is not wanted, from its specification; None if it is.

        The same trainable has the same name. If it is known of both where they are defined, the
        last part of the module or the file must be the same as well.

        Parameters
        ----------
        spec : mapping or None
            The content of its ``experiment.json``; None if that cannot be read.

        Examples
        --------
        >>> goal = {"metric": "loss", "mode": "min"}
        >>> wanted = WantedPast(trainable="train", code="churn.model:train", axes={}, **goal)
        >>> wanted.objection({"trainable": "train", "code": "/home/ann/model.py:train", **goal})
        >>> wanted.objection({"trainable": "train", "code": "/home/ann/mnist.py:train", **goal})
        'other trainable'
        """
        if spec is None or spec.get("format", _FORMAT) != _FORMAT:
            return _UNREADABLE
        then, now = _short_address(spec.get("code")), _short_address(self.code)
        if spec.get("trainable") != self.trainable or (None not in (then, now) and then != now):
            return _OTHER_TRAINABLE
        if spec.get("metric") != self.metric:
            return _OTHER_METRIC
        return None if spec.get("mode") == self.mode else _OTHER_MODE


@dataclass(frozen=True, slots=True)
class PastSelection:
    """What a searcher learns from.

    Parameters
    ----------
    past : mapping of str to list
        The pairs ``(config, value)`` of each experiment by its name in messages, the newest first.
    left_out : mapping of str to int
        The number of experiments that were left out, by the reason.
    """

    past: Mapping[str, list[tuple[Mapping[str, Any], float]]]
    left_out: Mapping[str, int]

    def text(self, places: Sequence[str]) -> str:
        """Return one line that says what was found.

        Parameters
        ----------
        places : sequence of str
            Where experiments were looked for.

        Examples
        --------
        >>> pairs = [({"x": number / 9}, 0.5) for number in range(10)]
        >>> PastSelection({"march": pairs, "may": pairs}, {"other mode": 1}).text(["~/tuning"])
        'learns from 2 experiments with 20 trials: march (10), may (10); 1 left out: other mode (1)'
        >>> PastSelection({}, {}).text(["~/tuning"])
        'samples at random: ~/tuning has no experiment to learn from'
        """
        reasons = ", ".join(f"{reason} ({times})" for reason, times in sorted(self.left_out.items()))
        total = sum(self.left_out.values())
        left_out = f"; {total} left out: {reasons}" if total else ""
        if not self.past:
            where = " and ".join(map(one_line, places))
            has = "has" if len(places) == 1 else "have"
            return f"samples at random: {where} {has} no experiment to learn from{left_out}"
        named = [f"{one_line(name)} ({len(pairs)})" for name, pairs in self.past.items()]
        more = [] if len(named) <= _MOST_NAMED else [f"{len(named) - _MOST_NAMED} more"]
        experiments, trials = len(self.past), sum(map(len, self.past.values()))
        return (
            f"learns from {experiments} {plural('experiment', experiments)} with {trials} "
            f"{plural('trial', trials)}: {', '.join(named[:_MOST_NAMED] + more)}{left_out}"
        )


def select_past(
    found: Sequence[FoundExperiment], wanted: WantedPast, read: Callable[[FoundExperiment], PastExperiment]
) -> PastSelection:
    """Choose the experiments to learn from, and their full trials.

    Experiments of the same trainable, metric and mode are read from the newest to the oldest, until
    1,000 full trials are found or 100 experiments are read. Of an experiment with more trials than
    are needed then, evenly spread ones are taken. Of their configurations only the parameters are
    kept that the new experiment searches, with what is nested beside them.

    Parameters
    ----------
    found : sequence of FoundExperiment
        All experiments that were found, in any order.
    wanted : WantedPast
        The new experiment.
    read : callable
        Reads the trials of an experiment. If it raises a TuneError, the experiment is left out.
    """
    past: dict[str, list[tuple[Mapping[str, Any], float]]] = {}
    left_out: Counter[str] = Counter()
    needed, readings, keys = MOST_TRIALS, MOST_READ, wanted.keys
    for one in sorted(found, key=lambda each: (-each.created, each.url)):
        reason = wanted.objection(one.spec)
        if reason is None and (needed < LEAST_TRIALS or not readings):
            reason = _OLDER
        if reason is not None:
            left_out[reason] += 1
            continue
        readings -= 1
        try:
            pairs = read(one).full_values(wanted.metric)
        except TuneError:
            left_out[_UNREADABLE] += 1
            continue
        if len(pairs) < LEAST_TRIALS:
            left_out[_TOO_FEW] += 1
        elif not _has_common_parameter(wanted.axes, pairs):
            left_out[_NOTHING_COMMON] += 1
        else:
            # What else a configuration has, such as a text that is the same in all, is not kept:
            # the trials are stored with the new experiment.
            taken: list[tuple[Mapping[str, Any], float]] = [
                ({key: value for key, value in config.items() if key in keys}, reached)
                for config, reached in _spread(pairs, needed)
            ]
            needed -= len(taken)
            past[_unused_name(one, past)] = taken
    return PastSelection(past, left_out)


def _unused_name(one: FoundExperiment, used: Collection[str]) -> str:
    """Return a name for an experiment that no other one has. Names are shown and stored.

    Examples
    --------
    >>> one = FoundExperiment("a", "ftp://me:hunter2@host/a", None, 0.0)
    >>> _unused_name(one, ["a"]), _unused_name(one, ["a", "ftp://***@host/a"])
    ('ftp://***@host/a', 'ftp://***@host/a (2)')
    """
    url = without_passwords(one.url)
    names = chain([one.name, url], (f"{url} ({number})" for number in count(2)))
    return next(name for name in names if name not in used)


def _spread(pairs: list[Any], most: int) -> list[Any]:
    """Return at most so many pairs, evenly spread.

    A searcher that learns has better trials at its end, so the last ones are not typical.

    Examples
    --------
    >>> _spread([0, 1, 2, 3, 4, 5], 3), _spread([0, 1], 3)
    ([0, 2, 4], [0, 1])
    """
    taken = min(most, len(pairs))
    return [pairs[index * len(pairs) // taken] for index in range(taken)]


def _has_common_parameter(
    axes: Mapping[str, Domain], pairs: Sequence[tuple[Mapping[str, Any], float]]
) -> bool:
    return bool(ConfigFeatures(axes, [config for config, _ in pairs]).table([]).shape[1])


def _short_address(code: object) -> tuple[str, str] | None:
    """Return the last part of a trainable's module or file, and its name there.

    Examples
    --------
    >>> _short_address("/home/ann/train.py:fit"), _short_address("churn.train:fit")
    (('train', 'fit'), ('train', 'fit'))
    """
    if not isinstance(code, str):
        return None
    where, _, name = code.rpartition(":")
    file = where.replace("\\", "/").rpartition("/")[2].removesuffix(".py")
    return file.rpartition(".")[2], name
