"""The contract of searchers as tests, also for searchers of other packages."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from numpy.random import SeedSequence

from dasktune.search.search_algorithm import SearchAlgorithm, SearchSpec
from dasktune.search.searcher import Searcher
from dasktune.search.searcher_adapter import SearchGenerator
from dasktune.space import Variants, choice, lograndint, loguniform, quniform, randint, uniform
from dasktune.testing.search_drill import SearchDrill, SearchTrouble
from dasktune.trial.metrics import Metric, Modes

_SEEDS: Final = range(3)

#: Every kind of failure at once.
_TROUBLE: Final = SearchTrouble(failures=0.2, silent=0.2, undefined=0.3)


class SearcherContract(ABC):
    """The contract of :class:`~dasktune.search.Searcher`, as tests.

    Derive a class whose name begins with ``Test``, implement `make_searcher`, and let pytest
    collect it. Each test simulates experiments of a few dozen trials: suggestions are requested,
    and trials report, are paused, resume, end and fail. Results have ``loss`` (lower is better) and
    ``accuracy`` (higher is better).

    Attributes
    ----------
    metric : str or list of str, default="loss"
        The experiment's metric.
    mode : {"min", "max"} or list of them, default="min"
        Whether lower or higher values are better.
    space : mapping
        The experiment's ``param_space``: two floats, two integers and a choice, nested. Use plain
        values if the searcher defines its own space.
    num_samples : int, default=24
        The number of trials of an experiment.
    max_concurrent : int, default=0
        The searcher's own limit of unfinished trials; 0 is no limit.
    points_to_evaluate : sequence of mapping, default=()
        The points that `make_searcher` gives the searcher to suggest first.
    has_equal_states : bool, default=True
        Whether two searchers have equal states after the same events. Set it to False if a library
        stores the time in its state, for example; then only suggestions are compared.

    Examples
    --------
    >>> class TestMine(SearcherContract):
    ...     def make_searcher(self):
    ...         from dasktune.search import QuasiRandomSearch
    ...         return QuasiRandomSearch()
    >>> TestMine().test_a_state_survives_json_and_goes_on_as_if_nothing_had_happened()
    """

    metric: Metric = "loss"
    mode: Modes = "min"
    space: Mapping[str, Any] = {
        "x": uniform(-2, 2),
        "model": {
            "lr": loguniform(1e-4, 1e-1),
            "dropout": quniform(0, 0.5, 0.1),
            "layers": randint(1, 5),
            "width": lograndint(8, 64),
            "activation": choice(["relu", "tanh", "gelu"]),
        },
        "epochs": 9,
    }
    num_samples: int = 24
    max_concurrent: int = 0
    points_to_evaluate: Sequence[Mapping[str, Any]] = ()
    has_equal_states: bool = True

    @abstractmethod
    def make_searcher(self) -> Searcher | SearchAlgorithm:
        """Return a new searcher with the same arguments each time; the experiment seeds it."""

    def test_suggestions_are_points_of_the_space(self) -> None:
        """Each configuration fits into JSON, with all constants and valid values of all domains."""
        domains = Variants(self.space).domains
        for drill in self._drills():
            drill.run()
            assert drill.configs, "it suggests nothing"
            for config in drill.configs:
                for path, value in Variants(self.space).domain_values(config).items():
                    assert domains[path].is_valid(value), f"{path}={value!r} is not in the space"

    def test_the_search_comes_to_its_end(self) -> None:
        """The searcher makes at most the requested number of suggestions, and then finishes.

        Without an unfinished trial it must suggest something or have finished, because no event
        could make it suggest again. So an ended trial must not count in its limit.
        """
        for drill in self._drills(trouble=_TROUBLE, pauses=True):
            drill.run()
            assert drill.finished
            assert not drill.open
            assert len(drill.configs) <= self.num_samples

    def test_who_has_finished_has_no_more_suggestions(self) -> None:
        """A finished searcher stays finished."""
        for drill in self._drills():
            drill.run()
            for again in ("again", "and again"):
                assert drill.search.next_trial(again).finished

    def test_presets_come_first(self) -> None:
        """The points to evaluate are suggested first, in their order, with their values."""
        search = self._made()
        for number, preset in enumerate(self.points_to_evaluate):
            answer = search.next_trial(f"p{number}")
            config = answer.config
            assert config is not None, "it does not suggest a preset"
            assert _lies_over(preset, config), f"expected {preset}, but it suggests {config}"
            search.on_trial_complete(f"p{number}", {"loss": 0.5, "accuracy": 0.5})

    def test_the_same_seed_gives_the_same_suggestions(self) -> None:
        """Suggestions depend on seed and events only, not on a clock or global random numbers."""
        for one, other in zip(self._drills(pauses=True), self._drills(pauses=True), strict=True):
            one.run()
            other.run()
            assert one.answers == other.answers
            self._assert_equal_states(one.search, other.search)

    def test_it_may_be_asked_in_a_thread(self) -> None:
        """Suggestions do not depend on which thread requests them and which reports events.

        The runner does so on a cluster, unless ``answers_at_once`` is set.
        """
        if self._made().answers_at_once:
            return
        drills = zip(self._drills(pauses=True), self._drills(pauses=True, in_thread=True), strict=True)
        for one, other in drills:
            one.run()
            other.run()
            assert one.answers == other.answers
            self._assert_equal_states(one.search, other.search)

    def test_a_state_survives_json_and_goes_on_as_if_nothing_had_happened(self) -> None:
        """A searcher restored at any event continues like one that was never restored."""
        first, second = (self._drills(pauses=True, trouble=_TROUBLE) for _ in range(2))
        for whole, cut in zip(first, second, strict=True):
            whole.run()
            for events in (0, 1, 2, 5, 9, 14, 20):
                cut.run(events=events)
                cut.search = self._restored(cut.search)
            cut.run()
            assert cut.answers == whole.answers
            self._assert_equal_states(cut.search, whole.search)

    def test_a_saved_state_does_not_change_afterwards(self) -> None:
        """Later events do not change a saved state, which is written in the background."""
        for drill in self._drills(pauses=True):
            drill.run(events=20)
            state = drill.search.state_dict()
            text = json.dumps(state)
            drill.run()
            assert json.dumps(state) == text

    def test_undefined_results_do_no_harm(self) -> None:
        """Undefined metrics, failed trials and trials without results raise no exception."""
        for trouble in (
            SearchTrouble(undefined=1.0),
            SearchTrouble(failures=1.0),
            SearchTrouble(silent=1.0),
            SearchTrouble(failures=1.0, undefined=1.0),
        ):
            for drill in self._drills(trouble=trouble):
                drill.run()
                assert drill.finished

    def test_an_answer_may_be_taken_back(self) -> None:
        """A suggestion that a restored experiment withdraws does not count towards a limit."""
        for drill in self._drills(trouble=SearchTrouble(refused=0.3), pauses=True):
            drill.run()
            assert drill.finished

    def test_a_limit_holds(self) -> None:
        """The number of unfinished trials never exceeds the searcher's limit."""
        if not self.max_concurrent:
            return
        for drill in self._drills(slots=3 * self.max_concurrent):
            drill.after = lambda drill=drill: self._check_limit(drill)  # type: ignore[misc]
            drill.run()

    def _check_limit(self, drill: SearchDrill) -> None:
        assert len(drill.open) <= self.max_concurrent, f"unfinished: {list(drill.open)}"

    def _drills(self, *, slots: int = 5, **how: Any) -> Iterator[SearchDrill]:
        for seed in _SEEDS:
            yield SearchDrill(self._made(), slots=slots, seed=seed, **how)

    def _assert_equal_states(self, one: SearchAlgorithm, other: SearchAlgorithm) -> None:
        texts = [json.dumps(search.state_dict()) for search in (one, other)]
        assert not self.has_equal_states or texts[0] == texts[1]

    def _made(self) -> SearchAlgorithm:
        made = self.make_searcher()
        search = SearchGenerator(made) if isinstance(made, Searcher) else made
        search.setup(
            SearchSpec(
                space=self.space,
                num_samples=self.num_samples,
                metric=self.metric,
                mode=self.mode,
                seed=SeedSequence(5),
            )
        )
        return search

    def _restored(self, search: SearchAlgorithm) -> SearchAlgorithm:
        restored = self._made()
        restored.load_state_dict(json.loads(json.dumps(search.state_dict())))
        return restored


def _lies_over(preset: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    return all(
        _lies_over(value, config[key]) if isinstance(value, Mapping) else config[key] == value
        for key, value in preset.items()
    )
