"""Grid and random search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from numpy.random import PCG64DXSM, Generator, SeedSequence, default_rng

from dasktune.errors import check
from dasktune.search.search_algorithm import SearchAlgorithm, SearchSpec, Suggestion
from dasktune.space import RandomSource, Variants, experiment_tag, overlay, random_generator
from dasktune.space.checks import as_int

#: The number of draws by which the generator advances between two streams. As in numpy's
#: ``jumped``: 2**128 divided by the golden ratio, so that any number of streams are far apart.
_JUMP: Final = 210306068529402873165736369884012333109


@dataclass(slots=True)
class _Position:
    """The position in the sequence of variants; a sample is one pass over the grid."""

    number: int = 0
    sample: int = 0
    point: int = 0


class BasicVariantGenerator(SearchAlgorithm):
    """Grid and random search: every grid point `num_samples` times, other domains at random.

    Presets come first. Each preset replaces one sample and fixes the values that it contains; the
    other grid axes are still searched. All presets are tried, even if there are more of them than
    samples.

    Parameters
    ----------
    points_to_evaluate : sequence of mapping, optional
        The presets: complete or partial configurations, nested like the search space.
    max_concurrent : int, default=0
        The largest number of unfinished trials; 0 for no limit.
    constant_grid_search : bool, default=False
        Whether random values are drawn once for each sample and used at all points of the grid,
        unless they depend on grid values.
    random_state : int, Generator, RandomState or SeedSequence, optional
        The seed of all randomness; by default the experiment's.

    Raises
    ------
    ConfigError
        If an argument is invalid.

    Notes
    -----
    Each variant has its own random stream, identified by its sample and its grid point. So a
    variant depends only on the seed and its position, except for functions in ``sample_from`` that
    use another random generator. The saved state is the position and 128 bits. A trial costs the
    same in a grid of 10 points and in one of 10**12.

    Examples
    --------
    >>> from numpy.random import SeedSequence
    >>> from dasktune.search.search_algorithm import SearchSpec
    >>> from dasktune.space import grid_search, randint
    >>> space = {"a": grid_search([1, 2]), "b": randint(7, 8)}
    >>> search = BasicVariantGenerator(points_to_evaluate=[{"a": 2}])
    >>> search.setup(SearchSpec(space=space, num_samples=2, metric=None, mode=None,
    ...                         seed=SeedSequence(0)))
    >>> search.total_samples
    3
    >>> search.next_trial("t0").config
    {'a': 2, 'b': 7}
    >>> search.next_trial("t1").tag
    '1_a=1,b=7'
    """

    #: Variants are cheap and depend on no result, so the driver can request many ahead.
    lookahead = 64
    answers_at_once = True

    def __init__(
        self,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        max_concurrent: int = 0,
        constant_grid_search: bool = False,
        random_state: RandomSource = None,
    ) -> None:
        presets = [] if points_to_evaluate is None else points_to_evaluate
        rule = "a list of dicts"
        check(isinstance(presets, list | tuple), "points_to_evaluate", rule, points_to_evaluate)
        self.points_to_evaluate = tuple(presets)
        self.max_concurrent = as_int("max_concurrent", max_concurrent, least=0)
        self.constant_grid_search = constant_grid_search
        self._random_state = None if random_state is None else random_generator(random_state)
        self._position = _Position()
        #: Trials that have not ended and are not paused: an ordered set, as a dict.
        self._live: dict[str, None] = {}
        #: The random values that are the same at all points of the current sample.
        self._constants: Any = None

    def setup(self, spec: SearchSpec) -> None:
        """Receive the search problem; called once, before any other method.

        Parameters
        ----------
        spec : SearchSpec
            The search problem; `num_samples` is at least 1, or -1 for no limit.

        Raises
        ------
        ConfigError
            If the space, a preset or `num_samples` is invalid, or if `max_concurrent` differs from
            the experiment's limit.
        """
        number = as_int("num_samples", spec.num_samples)
        check(number >= 1 or number == -1, "num_samples", ">= 1, or -1 for no limit", number)
        agreed = spec.max_concurrent in (0, self.max_concurrent) or self.max_concurrent == 0
        rule, hint = f"equal to max_concurrent_trials={spec.max_concurrent}", "Set it in one place."
        check(agreed, "max_concurrent", rule, self.max_concurrent, hint)
        self.max_concurrent = self.max_concurrent or spec.max_concurrent
        self._num_samples = number
        self._variants = Variants(spec.space)
        self._presets = [Variants(overlay(spec.space, preset)) for preset in self.points_to_evaluate]
        source = default_rng(spec.seed) if self._random_state is None else self._random_state
        self._seed(source.integers(2**32, size=4, dtype="uint64").tolist())

    @property
    def total_samples(self) -> int | None:
        """The number of trials, or None if there is no limit."""
        if self._num_samples == -1:
            return None
        rest = max(0, self._num_samples - len(self._presets))
        return sum(preset.size for preset in self._presets) + rest * self._variants.size

    def next_trial(self, trial_id: str) -> Suggestion:
        """Return the configuration of the next trial.

        Parameters
        ----------
        trial_id : str
            The name of the new trial.

        Raises
        ------
        ConfigError
            If the values of the space cannot be resolved, or a function in it raises.
        """
        position = self._position
        if self._num_samples != -1 and position.sample >= max(self._num_samples, len(self._presets)):
            return Suggestion(config=None, finished=True)
        if self.max_concurrent and len(self._live) >= self.max_concurrent:
            return Suggestion(config=None)
        variants = self._variants_of(position.sample)
        if self.constant_grid_search and self._constants is None:
            self._constants = variants.draw_constants(self._stream(position.sample, -1))
        rng = self._stream(position.sample, position.point)
        variant = variants.draw(position.point, rng, start=self._constants)
        tag = experiment_tag(position.number, variant.resolved)
        self._advance(variants.size)
        self._live[trial_id] = None
        return Suggestion(config=variant.config, tag=tag)

    def adopt(self, trial_id: str, config: Mapping[str, Any] | None) -> None:
        """Count a trial of an earlier session as unfinished if it has a configuration."""
        if config is None:
            self._live.pop(trial_id, None)
        else:
            self._live[trial_id] = None

    def _variants_of(self, sample: int) -> Variants:
        return self._presets[sample] if sample < len(self._presets) else self._variants

    def _advance(self, size: int) -> None:
        position = self._position
        position.number += 1
        position.point += 1
        if position.point == size:
            position.sample, position.point = position.sample + 1, 0
            self._constants = None

    def _stream(self, sample: int, point: int) -> Generator:
        """Return the random stream of a position, valid until the next call.

        Point -1 is the stream of the values that all points of the sample share. Seeding a new
        generator costs several times as much as drawing a configuration, so all streams are parts
        of one generator's cycle of 2**128 draws.
        """
        self._bits.state = self._origin
        self._bits.advance(((sample << 64) + point + 1) * _JUMP)
        return self._generator

    def _seed(self, entropy: list[int]) -> None:
        self._entropy = entropy
        self._bits = PCG64DXSM(SeedSequence(entropy))
        self._origin = self._bits.state
        self._generator = Generator(self._bits)

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Handle the end of a trial.

        Parameters
        ----------
        trial_id : str
            The trial.
        result : mapping, optional
            The trial's last result; ignored.
        error : bool, default=False
            Whether the trial failed; ignored.
        """
        self._live.pop(trial_id, None)

    def on_trial_pause(self, trial_id: str) -> None:
        """Exclude a paused trial from the limit until it resumes.

        Parameters
        ----------
        trial_id : str
            The trial.
        """
        self._live.pop(trial_id, None)

    def on_trial_unpause(self, trial_id: str) -> None:
        """Count a resumed trial towards the limit again.

        Parameters
        ----------
        trial_id : str
            The trial.
        """
        self._live[trial_id] = None

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the sequence, the random seed and the unfinished trials."""
        position = self._position
        return {
            "number": position.number,
            "sample": position.sample,
            "point": position.point,
            "entropy": list(self._entropy),
            "live": list(self._live),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned; called after :meth:`setup`.

        Parameters
        ----------
        state : mapping
            The state.

        Raises
        ------
        ConfigError
            If the saved position is not a point of the grid, which is smaller now.
        """
        position = _Position(state["number"], state["sample"], state["point"])
        size = self._variants_of(position.sample).size
        hint = "Restore with the grids that the experiment was started with."
        check(
            position.point < size, "param_space", f"a grid of more than {position.point} points", size, hint
        )
        self._position = position
        self._seed(list(state["entropy"]))
        self._live = dict.fromkeys(state["live"])
        self._constants = None
