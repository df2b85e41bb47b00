"""The trainable of incremental searches: each step is one call of ``partial_fit``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final

from sklearn.base import clone

from dasktune.sklearn.compat import SklearnContext
from dasktune.sklearn.incremental.blocks import Block, BlockOrder, Blocks
from dasktune.trainable import Trainable

#: Seconds of training after which a checkpoint is requested between two scores. The loss of a
#: worker costs at most this time and one call.
_SAVE_EVERY: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelJob:
    """The settings that all models of a search share, without the data.

    Parameters
    ----------
    estimator : estimator
        Cloned for each model.
    scorer : callable
        ``scorer(estimator, X, y, **params)`` returns a number.
    orders : sequence of BlockOrder
        The order of blocks of each bracket.
    fit_params, score_params : mapping
        Parameters of `partial_fit` and of the scorer with a single value.
    fit_columns, score_columns : mapping of str to str
        Parameters with a value for each sample: ``{name of the parameter: name in the blocks}``.
    sklearn_context : SklearnContext, optional
        The configuration to restore on the worker; None if the models are trained in the process
        that called the search.
    """

    estimator: Any
    scorer: Callable[..., Any]
    orders: Sequence[BlockOrder]
    fit_params: Mapping[str, Any] = field(default_factory=dict)
    score_params: Mapping[str, Any] = field(default_factory=dict)
    fit_columns: Mapping[str, str] = field(default_factory=dict)
    score_columns: Mapping[str, str] = field(default_factory=dict)
    sklearn_context: SklearnContext | None = None


class ModelTrial(Trainable):
    """Trains a model on one block in each step, and scores it at the scheduler's milestones.

    ``training_iteration`` is the number of calls of `partial_fit`.
    """

    def setup(  # type: ignore[override]
        self, config: dict[str, Any], job: ModelJob, blocks: Blocks
    ) -> None:
        """Create the model.

        Parameters
        ----------
        config : dict
            ``bracket`` and ``model``, their numbers, and ``params``, the model's parameters.
        job : ModelJob
            The settings that all models share.
        blocks : Blocks
            The data.
        """
        self._job = job
        self._blocks = blocks
        self._bracket: int = config["bracket"]
        # Parameters may be estimators themselves, so they are cloned, too.
        self._model = clone(job.estimator).set_params(**clone(config["params"], safe=False))
        self._saved_at = time.monotonic()
        #: The number and training rows of the last block; the next step may use it again.
        self._block: tuple[int, Block] | None = None

    def step(self) -> dict[str, Any]:
        """Train on the next block."""
        if self._job.sklearn_context is None:
            return self._step()
        result: dict[str, Any] = self._job.sklearn_context.call(self._step)
        return result

    def _step(self) -> dict[str, Any]:
        begun = time.perf_counter()
        block = self._next_block()
        # A small block may have no training rows.
        if len(block):
            # Models share the block for many passes, and `partial_fit` may change its samples.
            block = deepcopy(block)
            targets = () if block.y is None else (block.y,)
            columns = _named(block, self._job.fit_columns)
            self._model.partial_fit(block.X, *targets, **self._job.fit_params, **columns)
        trained = time.perf_counter()
        result: dict[str, Any] = {"partial_fit_time": trained - begun}
        if self.is_milestone():
            result["score"] = self._score()
            result["score_time"] = time.perf_counter() - trained
        elif time.monotonic() - self._saved_at > _SAVE_EVERY:
            result["should_checkpoint"] = True
        return result

    def _next_block(self) -> Block:
        number = self._job.orders[self._bracket][self.iteration]
        if self._block is None or self._block[0] != number:
            self._block = None  # free its memory before the next block is loaded
            self._block = number, self._blocks.training(self._bracket, number)
        return self._block[1]

    def _score(self) -> float:
        test = deepcopy(self._blocks.held_out(self._bracket))  # the models share it, too
        targets = () if test.y is None else (test.y,)
        columns = _named(test, self._job.score_columns)
        score = self._job.scorer(self._model, test.X, *targets, **self._job.score_params, **columns)
        try:
            return float(score)
        except (TypeError, ValueError):
            raise ValueError(f"scoring must return a number, got {score!r}") from None

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Return a checkpoint of the model."""
        self._saved_at = time.monotonic()
        return {"model": self._model}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the model from a checkpoint."""
        self._model = checkpoint["model"]


def _named(block: Block, names: Mapping[str, str]) -> dict[str, Any]:
    return {name: block.weights[column] for name, column in names.items()}
