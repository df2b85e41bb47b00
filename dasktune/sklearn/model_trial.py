"""A model of an incremental search on its worker: one step is one call of `partial_fit`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sklearn.base import clone

from dasktune.sklearn.blocks import Block, BlockOrder, Blocks
from dasktune.sklearn.compat import Surroundings
from dasktune.trainable import Trainable

__all__ = ["ModelJob", "ModelTrial"]

#: Seconds of training after which a model is saved before it is scored again. A lost worker costs a
#: model so much and one call more.
_SAVE_EVERY: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelJob:
    """What all models of a search have in common, but for the data.

    Parameters
    ----------
    estimator : estimator
        Each model is a clone of it.
    scorer : callable
        ``scorer(estimator, X, y, **params)`` returns a number.
    orders : sequence of BlockOrder
        Of each bracket.
    fit_params, score_params : mapping
        For `partial_fit` and for the scorer, but for what has a value for each sample.
    fit_columns, score_columns : mapping of str to str
        What has one: how it is called there, and in the blocks.
    surroundings : Surroundings, optional
        To be restored where the model is; None if that is where the search was called.
    """

    estimator: Any
    scorer: Callable[..., Any]
    orders: Sequence[BlockOrder]
    fit_params: Mapping[str, Any] = field(default_factory=dict)
    score_params: Mapping[str, Any] = field(default_factory=dict)
    fit_columns: Mapping[str, str] = field(default_factory=dict)
    score_columns: Mapping[str, str] = field(default_factory=dict)
    surroundings: Surroundings | None = None


class ModelTrial(Trainable):
    """Trains a model on one block in each step, and scores it where that is to be judged.

    ``training_iteration`` is the number of calls of `partial_fit`.
    """

    def setup(  # type: ignore[override]
        self, config: dict[str, Any], job: ModelJob, blocks: Blocks
    ) -> None:
        """Make the model.

        Parameters
        ----------
        config : dict
            ``bracket``, ``model`` and ``params``.
        job : ModelJob
            How it is trained and scored.
        blocks : Blocks
            On what.
        """
        self._job = job
        self._blocks = blocks
        self._bracket: int = config["bracket"]
        # Parameters may be estimators themselves, so they are cloned, too.
        self._model = clone(job.estimator).set_params(**clone(config["params"], safe=False))
        self._saved_at = time.monotonic()
        #: The block that was trained on last: it may be the next one, too.
        self._block: tuple[int, Block] | None = None

    def step(self) -> dict[str, Any]:
        """Train on the next block."""
        if self._job.surroundings is None:
            return self._step()
        result: dict[str, Any] = self._job.surroundings.call(self._step)
        return result

    def _step(self) -> dict[str, Any]:
        begun = time.perf_counter()
        block = self._next_block()
        # Of a small block all may be held out.
        if len(block):
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
            self._block = None  # let it go first
            self._block = number, self._blocks.training(self._bracket, number)
        return self._block[1]

    def _score(self) -> float:
        test = self._blocks.held_out(self._bracket)
        targets = () if test.y is None else (test.y,)
        columns = _named(test, self._job.score_columns)
        score = self._job.scorer(self._model, test.X, *targets, **self._job.score_params, **columns)
        try:
            return float(score)
        except (TypeError, ValueError):
            raise ValueError(f"scoring must return a number, got {score!r} instead.") from None

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Save the model."""
        self._saved_at = time.monotonic()
        return {"model": self._model}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up the model."""
        self._model = checkpoint["model"]


def _named(block: Block, names: Mapping[str, str]) -> dict[str, Any]:
    return {name: block.weights[column] for name, column in names.items()}
