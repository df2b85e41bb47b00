"""The schedulers that an experiment is replayed under by default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from inspect import signature
from typing import Any, Final

from dasktune.errors import ConfigError, check
from dasktune.schedulers.create import SCHEDULERS, create_scheduler
from dasktune.schedulers.fifo import FIFOScheduler
from dasktune.schedulers.halving_family.asha import ASHAScheduler
from dasktune.schedulers.halving_family.hyperband import HyperBandScheduler
from dasktune.schedulers.halving_family.promoting import PromotingASHAScheduler
from dasktune.schedulers.median import MedianStoppingRule
from dasktune.schedulers.rungs import rung_budgets
from dasktune.schedulers.trial_scheduler import TrialScheduler
from dasktune.trial.result_keys import TRAINING_ITERATION

#: A scheduler, its name, or its name and arguments.
Contender = TrialScheduler | str | tuple[str, Mapping[str, Any]]

#: What `whatif` accepts: contenders with labels or without.
Schedulers = Mapping[str, Contender] | Iterable[Contender]

#: The label of the replay in which no trial is stopped.
FULL_TRAINING: Final = "FIFOScheduler"

_ETA: Final = 3

#: Names of schedulers that have no `max_t`.
_WITHOUT_MAX_T: Final = frozenset(
    name for name, make in SCHEDULERS.items() if "max_t" not in signature(make).parameters
)


def contenders(given: Schedulers | None, max_t: int) -> dict[str, TrialScheduler]:
    """Return the schedulers to compare, by label; the first one trains every trial to its end.

    Parameters
    ----------
    given : mapping, iterable or None
        Schedulers, their names, or tuples of a name and arguments, with labels as the keys of a
        mapping. By default ASHA, stopping and promoting, with each ``grace_period`` of 1, 3, 9, ...
        below a third of `max_t`; HyperBand; and the median stopping rule, at each result and only
        at rungs.
    max_t : int
        The highest ``training_iteration`` of the curves; the default `max_t` of a scheduler that is
        given by its name.

    Raises
    ------
    ConfigError
        If there is no scheduler, or something else is given for one.

    Examples
    --------
    >>> list(contenders(["asha"], 9))
    ['FIFOScheduler', 'asha']
    >>> contenders([("asha", {"grace_period": 3})], 9)["asha"].max_t
    9
    """
    chosen = _default(max_t) if given is None else _labelled(given)
    made = {label: _scheduler(one, max_t) for label, one in chosen.items()}
    made.pop(FULL_TRAINING, None)
    check(bool(made), "schedulers", "at least one scheduler besides FIFOScheduler", given)
    return {FULL_TRAINING: FIFOScheduler(), **made}


def arguments_note(max_t: int) -> str:
    """Return the arguments of the default schedulers that their labels leave out, as a sentence.

    Parameters
    ----------
    max_t : int
        The highest ``training_iteration`` of the curves.
    """
    return (
        f"ASHA and HyperBand were replayed with max_t={max_t} and reduction_factor={_ETA}, "
        f"MedianStoppingRule with time_attr={TRAINING_ITERATION!r}: give these arguments, too."
    )


def _default(max_t: int) -> dict[str, Contender]:
    rungs = [int(budget) for budget in rung_budgets(1, max_t, _ETA) if budget < max_t] or [1]
    # After a ninth of the training there is little left to save.
    graces = [rung for rung in rungs if rung * _ETA < max_t] or rungs[:1]
    found: dict[str, Contender] = {}
    for kind in (PromotingASHAScheduler, ASHAScheduler):
        for grace in graces:
            label = f"{_name(kind)}(grace_period={grace})"
            found[label] = kind(max_t=max_t, grace_period=grace, reduction_factor=_ETA)
    found["HyperBandScheduler"] = HyperBandScheduler(max_t=max_t, reduction_factor=_ETA)
    grace = max(1, max_t // _ETA**3)
    label = f"MedianStoppingRule(grace_period={grace})"
    found[label] = MedianStoppingRule(time_attr=TRAINING_ITERATION, grace_period=grace)
    # One result says too little of a trial to stop it: the first comparison is at the second rung.
    moments = rungs[1:] or rungs
    label = f"MedianStoppingRule(check_at={moments})"
    found[label] = MedianStoppingRule(time_attr=TRAINING_ITERATION, check_at=moments)
    return found


def _labelled(given: Schedulers) -> dict[str, Contender]:
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, str | TrialScheduler):
        given = [given]
    found: dict[str, Contender] = {}
    for one in given:
        name = _name_of(one)
        label, number = name, 1
        while label in found:
            number += 1
            label = f"{name} {number}"
        found[label] = one
    return found


def _name_of(given: object) -> str:
    match given:
        case str(name) | (str(name), _):
            return name
        case _:
            return _name(type(given))


def _name(kind: type) -> str:
    # The class has the older of its two names.
    return "ASHAScheduler" if kind is ASHAScheduler else kind.__name__


def _scheduler(given: object, max_t: int) -> TrialScheduler:
    if isinstance(given, TrialScheduler):
        return deepcopy(given)  # it gets the experiment's metric and mode
    match given:
        case str(name):
            arguments: Mapping[str, Any] = {}
        case str(name), Mapping() as arguments:
            pass
        case _:
            rule = "trial schedulers, their names, or tuples of a name and arguments"
            raise ConfigError(f"schedulers must be {rule}, got {given!r}")
    defaults = {} if name in _WITHOUT_MAX_T else {"max_t": max_t}
    return create_scheduler(name, **{**defaults, **arguments})
