"""Makes a trainable of which each trial trains on several processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, Final, Literal

from dasktune.errors import ConfigError, check
from dasktune.trainable.api.binding import BoundFunction, validate_trainable
from dasktune.trainable.ranks import RankRequest, RankSettings, Reduction
from dasktune.trial.resources import (
    ElasticPlacement,
    HostPlacement,
    PlacementGroupFactory,
    as_placement_group,
)

Metrics = dict[str, Any]

#: Variables that dasktune sets for each rank.
_RESERVED: Final = frozenset(
    {
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NODE_RANK",
        "RANK",
        "WORLD_SIZE",
    }
)


def with_ranks(
    trainable: Any,
    ranks: int | Callable[[dict[str, Any]], int],
    resources_per_rank: Any = None,
    *,
    min_ranks: int | None = None,
    wait_for_ranks_s: float = 10.0,
    grow_after_s: float = 60.0,
    per_host: int | None = None,
    reduce: Literal["rank0", "mean"] | Callable[[list[Metrics]], Metrics] = "rank0",
    start_timeout_s: float = 300.0,
    rendezvous_timeout_s: float | None = 600.0,
    report_timeout_s: float | None = None,
    env: Mapping[str, str] | None = None,
    preload: Sequence[str] | None = (),
) -> Any:
    """Let each trial of a function train on several processes, called ranks.

    Every rank calls the function with the same configuration. The environment variables of
    ``torchrun`` are set, so ``torch.distributed.init_process_group()`` needs no arguments.
    :func:`report` waits until all ranks have called it, and all ranks end at the same report.

    Parameters
    ----------
    trainable : callable
        A function of the configuration.
    ranks : int or callable
        Number of ranks, at least 1, or a function that returns it for a configuration.
    resources_per_rank : mapping, Resources or PlacementGroupFactory, optional
        The resources of each rank, in one bundle; one CPU by default. GPUs must be whole. The
        strategy of a `PlacementGroupFactory` counts hosts: ``"PACK"``, the default, uses the fewest
        hosts, and equally many ranks on each of them if that needs no more.
    min_ranks : int, optional
        The fewest ranks with which a trial starts if there is no room for all of them, for example
        after the loss of a worker; see the notes. By default a trial waits for room for all.
    wait_for_ranks_s : float, default=10.0
        Seconds for which a trial waits for room for all of its ranks, counted from the moment at
        which there is room for `min_ranks`; at least 0.
    grow_after_s : float, default=60.0
        Seconds for which a trial trains with fewer ranks at least, before it starts again with all
        of them; at least 0.
    per_host : int, optional
        The exact number of ranks on each host, which divides the number of ranks. It must agree
        with a strict strategy: the number of ranks with ``"STRICT_PACK"``, 1 with
        ``"STRICT_SPREAD"``.
    reduce : {"rank0", "mean"} or callable, default="rank0"
        How the metrics of all ranks become one result: those of rank 0, the mean, or a function of
        the list of all metrics by rank, which rank 0 calls. ``"mean"`` keeps the metrics of rank 0,
        but each number at their top level becomes the mean over the ranks that report a number of
        that name; nested numbers stay those of rank 0.
    start_timeout_s : float, default=300.0
        Seconds within which the function must have been called on all ranks.
    rendezvous_timeout_s : float, optional
        Seconds that a rank may wait for the others in ``torch.distributed.init_process_group`` or
        ``jax.distributed.initialize``, 600 by default; None for the limit of the package alone.
    report_timeout_s : float, optional
        Seconds that ranks may take from one report to the next, and that the others wait for the
        last one. By default ``FailureConfig(report_timeout_s=...)``, which is no limit.
    env : mapping of str to str, optional
        Further environment variables of all ranks. Python imports modules from the directories of
        its ``PYTHONPATH`` first, also those of `preload`.
    preload : sequence of str, default=()
        Modules such as ``"torch"`` that each worker imports once. Its ranks are forks of a process
        that has imported them and dasktune, and start without importing them again. This needs
        Linux. Elsewhere, with None, and if an import starts threads or initialises CUDA, each rank
        is a fresh interpreter.

    Returns
    -------
    callable
        A new trainable; the given one is not changed.

    Raises
    ------
    ConfigError
        If an argument breaks its rule, or the trainable is a class or has resources already.

    Notes
    -----
    With `min_ranks` a trial waits for `wait_for_ranks_s`, because a lost worker is mostly replaced
    within seconds. Then it starts with as many ranks as fit, from its last checkpoint. When it has
    run for `grow_after_s` and there is room for all ranks, :func:`should_checkpoint` becomes True,
    and the trial leaves with its next checkpoint to start again with all of them. None of this is a
    failure. `get_context().get_world_size()` may thus differ from start to start. Increase both
    times if a start takes minutes, for example because it loads a large model: each loss of a
    worker then costs two starts, one with fewer ranks and one with all.

    Examples
    --------
    >>> import dasktune as tune
    >>> def train(config):
    ...     rank = tune.get_context().get_world_rank()
    ...     tune.report({"loss": config["lr"] * rank})
    >>> trainable = tune.with_ranks(train, 4, {"cpu": 2}, reduce="mean")
    """
    validate_trainable(trainable)
    hint = "Class trainables cannot be distributed: write a function."
    check(not isinstance(trainable, type), "trainable", "a function for with_ranks()", trainable, hint)
    bound = trainable if isinstance(trainable, BoundFunction) else BoundFunction(trainable)
    hint = "Give the resources of a rank to with_ranks() and not to with_resources()."
    check(bound.resources is None, "resources", "given once", bound.resources, hint)
    check(_is_count(ranks) or callable(ranks), "ranks", "an integer of at least 1, or a function", ranks)
    per_rank = _bundle(resources_per_rank)
    strategy = as_placement_group(resources_per_rank).strategy
    check(per_host is None or _is_count(per_host), "per_host", "an integer of at least 1, or None", per_host)
    is_valid = min_ranks is None or _is_count(min_ranks)
    check(is_valid, "min_ranks", "an integer of at least 1, or None", min_ranks)
    for name, seconds in (("wait_for_ranks_s", wait_for_ranks_s), ("grow_after_s", grow_after_s)):
        check(_is_number(seconds) and seconds >= 0, name, "a number of seconds, at least 0", seconds)
    if per_host is not None:
        # A strict strategy may contradict it whatever the number of ranks is.
        HostPlacement([per_rank] * per_host, strategy, per_host)
    known = reduce in ("rank0", "mean") if isinstance(reduce, str) else callable(reduce)
    check(known, "reduce", "'rank0', 'mean' or a function of a list of metrics", reduce)
    _check_seconds("start_timeout_s", start_timeout_s)
    if rendezvous_timeout_s is not None:
        _check_seconds("rendezvous_timeout_s", rendezvous_timeout_s)
    if report_timeout_s is not None:
        _check_seconds("report_timeout_s", report_timeout_s)
    reduction: Reduction = "function" if callable(reduce) else reduce
    settings = RankSettings(
        reduction=reduction,
        start_timeout_s=start_timeout_s,
        rendezvous_timeout_s=rendezvous_timeout_s,
        report_timeout_s=report_timeout_s,
        env=_checked_env(env or {}),
        preload=_checked_modules(preload),
        min_ranks=min_ranks,
        wait_for_ranks_s=wait_for_ranks_s,
        grow_after_s=grow_after_s,
    )
    request = RankRequest(settings=settings, reduce=reduce if callable(reduce) else None)
    resources = _Bundles(ranks, per_rank, strategy, per_host, min_ranks)
    return replace(bound, resources=resources if callable(ranks) else resources({}), ranks=request)


def rank_settings(trainable: Any) -> RankSettings | None:
    """Return the settings of a distributed trainable; None for any other trainable.

    Examples
    --------
    >>> rank_settings(print) is None
    True
    """
    request = trainable.ranks if isinstance(trainable, BoundFunction) else None
    return None if request is None else request.settings


class _Bundles:
    """Returns the resources of a trial for its configuration: one bundle for each rank."""

    def __init__(
        self,
        ranks: int | Callable[[dict[str, Any]], int],
        bundle: dict[str, float],
        strategy: str,
        per_host: int | None,
        min_ranks: int | None,
    ) -> None:
        self._ranks = ranks
        self._bundle = bundle
        self._strategy = strategy
        self._per_host = per_host
        self._min_ranks = min_ranks

    def __call__(self, config: dict[str, Any]) -> PlacementGroupFactory:
        count = self._ranks(config) if callable(self._ranks) else self._ranks
        check(_is_count(count), "ranks(config)", "an integer of at least 1", count)
        request = HostPlacement([self._bundle] * int(count), self._strategy, self._per_host)
        if self._min_ranks is None or self._min_ranks == count:
            return request
        return ElasticPlacement(request, self._min_ranks, int(count))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _bundle(resources: Any) -> dict[str, float]:
    bundles = as_placement_group(resources).bundles
    check(len(bundles) == 1, "resources_per_rank", "one bundle", resources)
    gpus = bundles[0].get("GPU", 0)
    hint = "Two ranks cannot share a GPU: NCCL refuses it."
    check(gpus == int(gpus), "resources_per_rank['gpu']", "a whole number", gpus, hint)
    return bundles[0]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _check_seconds(name: str, value: Any) -> None:
    check(_is_number(value) and value > 0, name, "a number of seconds above 0", value)


def _checked_env(env: Mapping[str, str]) -> dict[str, str]:
    given: object = env
    texts = isinstance(given, Mapping) and all(
        isinstance(part, str) for item in given.items() for part in item
    )
    check(texts, "env", "a dict of strings", env)
    if taken := sorted(_RESERVED & env.keys()):
        raise ConfigError(f"env must be free of the variables that dasktune sets, got {taken}")
    return dict(env)


def _checked_modules(preload: Sequence[str] | None) -> tuple[str, ...] | None:
    if preload is None:
        return None
    given: object = preload
    names = given if isinstance(given, list | tuple) else (None,)
    check(
        all(map(_is_module_name, names)),
        "preload",
        "a list of names of modules, or None",
        preload,
        'Write ["torch"].',
    )
    return tuple(preload)


def _is_module_name(name: object) -> bool:
    return isinstance(name, str) and all(part.isidentifier() for part in name.split("."))
