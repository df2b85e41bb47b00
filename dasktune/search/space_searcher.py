"""`SpaceSearcher`, the base class of searchers over dasktune's domains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.random import Generator, SeedSequence, default_rng

from dasktune.errors import check
from dasktune.search.searcher import EvaluatedPoint, Searcher
from dasktune.space import Categorical, Domain, Function, Variants, overlay
from dasktune.space.checks import as_int
from dasktune.trial.metrics import Metric, Modes


class SpaceSearcher(Searcher):
    """Base class of searchers over domains, with presets and a random stream per suggestion.

    Parameters
    ----------
    space : mapping or None
        The search space; the experiment's ``param_space`` if None.
    metric, mode : optional
        As in :class:`Searcher`.
    points_to_evaluate : sequence of mapping or None
        Complete or partial configurations that are suggested before all others (the presets).
    seed : int or None
        The seed of all randomness; the experiment's if None.

    Raises
    ------
    ConfigError
        If an argument is invalid.
    """

    #: Whether the searcher learns from results, and so needs metric and mode.
    learns: bool = True
    #: Whether the searcher can optimise several metrics at once.
    takes_several_metrics: bool = False

    #: The state that `restore` has read, from which the next experiment begins.
    _restored: Mapping[str, Any] | None = None
    #: Whether the searcher already has this state, as its space, metric and mode were known.
    _has_restored: bool = False
    #: Evaluated points that were added before the searcher could learn them.
    _untold: Sequence[EvaluatedPoint] = ()

    def __init__(
        self,
        space: Mapping[str, Any] | None,
        *,
        metric: Metric,
        mode: Modes,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None,
        seed: int | None,
    ) -> None:
        super().__init__(metric=metric, mode=mode)
        presets = [] if points_to_evaluate is None else points_to_evaluate
        rule = "a list of dicts"
        check(isinstance(presets, list | tuple), "points_to_evaluate", rule, points_to_evaluate)
        hint = f"{type(self).__name__} searches dasktune's domains: give a dict of them."
        valid = space is None or isinstance(space, Mapping)
        check(valid, "space", "a dict", space, hint)
        self.space = space
        self.points_to_evaluate = tuple(presets)
        self._seed = None if seed is None else as_int("seed", seed, least=0)
        #: The number of suggestions made.
        self._count = 0
        #: Four 32-bit integers, derived from the seed, from which all random streams are spawned.
        self._entropy: list[int] = []
        if space is not None:
            self._set_space(space, "space")

    def set_search_properties(
        self, metric: Metric, mode: Modes, config: Mapping[str, Any], **spec: Any
    ) -> bool:
        """Take metric, mode, space and seed from the experiment if the constructor got none.

        Raises
        ------
        ConfigError
            If metric or mode is missing or differs between searcher and experiment, if there are
            several metrics but the searcher takes one, or if the searcher cannot search the space.
        """
        super().set_search_properties(metric, mode, config, **spec)
        self._check_goals()
        if self.space is None:
            self._set_space(config, "param_space")
        # The searcher may have learned evaluated points since it has the state.
        restored = self.state_dict() if self._has_restored else self._restored
        self._restored, self._has_restored = None, False
        self._start(spec.get("seed"))
        if restored is not None:
            self.load_state_dict(restored)
        # Also without a state: the searcher may have been used in an interrupted experiment.
        self._abandon_open_trials()
        self._learn_waiting_points()
        return self.space is None

    def _start(self, seed: SeedSequence | None) -> None:
        """Set the random streams; the space, metric and mode are known by now."""
        seed = seed if self._seed is None else SeedSequence(self._seed)
        self._entropy = default_rng(seed).integers(2**32, size=4, dtype="uint64").tolist()

    def _start_without_experiment(self) -> None:
        """Start with the constructor's arguments alone if no experiment has set others."""
        if not self._entropy:
            hint = "Give it to the constructor, or let an experiment call set_search_properties()."
            check(self.space is not None, "space", "given before suggest()", None, hint)
            self._check_goals()
            self._start(None)
            self._learn_waiting_points()

    def _restore_state(self, state: Mapping[str, Any]) -> None:
        # The state replaces what the searcher has learned until now, and what it would learn.
        self._restored, self._untold = state, ()
        is_complete = not self.learns or None not in (self.metric, self.mode)
        self._has_restored = self.space is not None and is_complete
        if self._has_restored:
            self._start_without_experiment()
            self.load_state_dict(state)

    def _abandon_open_trials(self) -> None:
        """Stop counting the unfinished trials of an earlier experiment."""

    def _learn_waiting_points(self) -> None:
        """Learn the points in `_untold`; a restored state, which replaces all, is loaded before."""
        untold, self._untold = self._untold, ()
        for point in untold:
            self.learn_point(point)

    @classmethod
    def convert_search_space(cls, spec: Mapping[str, Any], join: bool = False) -> dict[str, Any]:
        """Return a search space in the form that the constructor takes as `space`.

        Parameters
        ----------
        spec : mapping
            The search space, which may contain constants.
        join : bool, default=False
            Whether the result contains the constants of `spec`, too.

        Raises
        ------
        ConfigError
            If the space has a grid, or is not a dict.

        Examples
        --------
        >>> from dasktune.search import QuasiRandomSearch
        >>> from dasktune.space import uniform
        >>> QuasiRandomSearch.convert_search_space({"model": {"lr": uniform(0, 1), "depth": 3}})
        {'model': {'lr': Float(lower=0.0, upper=1.0, sampler=Uniform())}}
        """
        return searched_domains(spec, join, cls.__name__)

    def _check_goals(self) -> None:
        if not self.learns:
            return
        goal, hint = (self.metric, self.mode), "Set them in TuneConfig or in the searcher."
        check(None not in goal, "metric and mode", "set", goal, hint)
        is_single = isinstance(self.metric, str) and isinstance(self.mode, str)
        hint = f"{type(self).__name__} optimises one metric; OptunaSearch and AxSearch optimise several."
        is_supported = is_single or self.takes_several_metrics
        check(is_supported, "metric", "the name of one metric", self.metric, hint)

    def _set_space(self, space: Mapping[str, Any], name: str) -> None:
        self._variants = Variants(space)
        #: The domains to search: ``{path: domain}``.
        self._axes = searched_axes(self._variants, name, type(self).__name__)
        self._presets = [Variants(overlay(space, preset)) for preset in self.points_to_evaluate]
        # With a space of its own, the searcher suggests the constants of this space, too. The
        # constants of `param_space` are not suggested, because SearchGenerator adds them.
        is_own = self.space is not None
        #: The top-level keys of each suggestion.
        self._keys = [key for key in space if is_own or _is_searched(key, self._variants)]

    @property
    def searched_parameters(self) -> list[str]:
        """The parameters with their bounds or numbers of options, which a model depends on."""
        axes = getattr(self, "_axes", {}) if self.learns else {}
        # Not the options: the text of an object may differ in the next process.
        return [f"{k}: {len(x) if isinstance(x, Categorical) else x.domain_str}" for k, x in axes.items()]

    def _next_preset(self, rng: Generator) -> dict[str, Any] | None:
        """Return the next preset, with random missing values; None if all were suggested."""
        if self._count >= len(self._presets):
            return None
        return self._presets[self._count].draw(0, rng).config

    def _next_rng(self) -> Generator:
        """Return the random stream of the next suggestion."""
        return default_rng(SeedSequence(self._entropy, spawn_key=(self._count,)))

    def _searched_part(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return {key: config[key] for key in self._keys}


def searched_axes(variants: Variants, name: str, kind: str) -> dict[str, Domain]:
    """Return the domains of a search space by path, without functions, which are computed.

    Parameters
    ----------
    variants : Variants
        The search space.
    name, kind : str
        The names of the argument and of the searcher, for errors.

    Raises
    ------
    ConfigError
        If the space has a grid.
    """
    grids = variants.grid_paths
    hint = f"{kind} cannot search a grid: use choice() instead of grid_search()."
    check(not grids, name, "without grid_search", ", ".join(grids), hint)
    return {path: domain for path, domain in variants.domains.items() if not isinstance(domain, Function)}


def searched_domains(spec: Mapping[str, Any], join: bool, kind: str) -> dict[str, Any]:
    """Return the domains of a search space, nested as there, without its constants.

    Parameters
    ----------
    spec : mapping
        The search space.
    join : bool
        Whether to keep the constants.
    kind : str
        The name of the searcher, for errors.

    Raises
    ------
    ConfigError
        If the space has a grid, or is not a dict.
    """
    given: object = spec
    check(isinstance(given, Mapping), "spec", "a dict with domains", spec)
    grids = Variants(spec).grid_paths
    hint = f"{kind} cannot search a grid: use choice() instead of grid_search()."
    check(not grids, "spec", "without grid_search", ", ".join(grids), hint)
    return dict(spec) if join else _only_domains(spec)


def _only_domains(node: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _only_domains(child) if isinstance(child, Mapping) else child
        for key, child in node.items()
        if not isinstance(child, str) and Variants({"node": child}).domains
    }


def _is_searched(key: object, variants: Variants) -> bool:
    return any(path.split("/")[0] == key for path in variants.domains)
