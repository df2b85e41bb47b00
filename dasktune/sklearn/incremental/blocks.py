"""The data of an incremental search: blocks to train on, with held-out rows to score on."""

from __future__ import annotations

import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np

from dasktune.sklearn.compat import safe_indexing


class Block:
    """A block of samples.

    Parameters
    ----------
    X : object
        The samples.
    y : object, optional
        The targets of the samples.
    weights : mapping, default={}
        Further parameters of `fit` with a value for each sample, such as weights, by name.
    """

    __slots__ = ("X", "__weakref__", "weights", "y")

    def __init__(self, X: Any, y: Any, weights: Mapping[str, Any] | None = None) -> None:
        self.X = X
        self.y = y
        self.weights = dict(weights or {})

    def __reduce__(self) -> Any:
        return Block, (self.X, self.y, self.weights)

    def __len__(self) -> int:
        shape = getattr(self.X, "shape", None)
        return len(self.X) if shape is None else int(shape[0])

    def take(self, rows: Any) -> Block:
        """Return some of the samples."""
        y = None if self.y is None else safe_indexing(self.y, rows)
        weights = {name: safe_indexing(one, rows) for name, one in self.weights.items()}
        return Block(safe_indexing(self.X, rows), y, weights)


def materialize(X: Any, y: Any, names: Sequence[str] = (), *values: Any) -> Block:
    """Return a block of the computed parts of several Dask collections.

    Raises
    ------
    ValueError
        If the parts have different lengths.
    """
    block = Block(X, y, dict(zip(names, values, strict=True)))
    for name, one in {"y": y, **block.weights}.items():
        if one is not None and len(one) != len(block):
            raise ValueError(
                f"{name} must be as long as X in each block, got {len(one)} and {len(block)} rows"
            )
    return block


def is_per_sample(value: Any, size: int) -> bool:
    """Whether a value in memory has one entry for each sample.

    Parameters
    ----------
    value : object
        Any value.
    size : int
        Number of samples.

    Examples
    --------
    >>> is_per_sample([0.5, 2.0], 2), is_per_sample("no", 2), is_per_sample(0.5, 2)
    (True, False, False)
    """
    if isinstance(value, str | bytes | Mapping):
        return False
    shape = getattr(value, "shape", None)
    if shape is None:
        return hasattr(value, "__len__") and len(value) == size
    return len(shape) > 0 and shape[0] == size


def concatenate_blocks(blocks: Sequence[Block]) -> Block:
    """Return one block with the samples of several blocks."""
    blocks = [block for block in blocks if len(block)] or list(blocks[:1])
    first = blocks[0]
    y = None if first.y is None else _concatenate([block.y for block in blocks])
    weights = {name: _concatenate([block.weights[name] for block in blocks]) for name in first.weights}
    return Block(_concatenate([block.X for block in blocks]), y, weights)


def _concatenate(parts: list[Any]) -> Any:
    first = parts[0]
    if len(parts) == 1:
        return first
    if hasattr(first, "iloc"):
        import pandas as pd

        return pd.concat(parts)
    if hasattr(first, "tocsr"):
        from scipy.sparse import vstack

        return vstack(parts, format="csr")
    return np.concatenate(parts)


@dataclass(frozen=True, slots=True)
class TrainTestBlocks:
    """Chooses the rows of each block that are held out to score models.

    Parameters
    ----------
    seeds : tuple of int
        A seed for each block.
    test_size : float
        Fraction of each block that is held out, between 0 and 1.
    """

    seeds: tuple[int, ...]
    test_size: float

    def rows(self, number: int, size: int) -> tuple[Any, Any]:
        """Return the training rows and the held-out rows of a block.

        The sample of a block of size 1 is held out with probability `test_size`.

        Parameters
        ----------
        number : int
            The number of the block.
        size : int
            Number of samples of the block.

        Examples
        --------
        >>> train, test = TrainTestBlocks((0,), 0.2).rows(0, 10)
        >>> len(train), len(test), sorted([*train, *test]) == list(range(10))
        (8, 2, True)
        """
        rng = np.random.RandomState(self.seeds[number])
        if size == 1:
            count = int(rng.random_sample() < self.test_size)
        else:
            count = min(ceil(self.test_size * size), max(size - 1, 0))
        order = rng.permutation(size)
        return order[count:], order[:count]


def choose_holdout(n_blocks: int, test_size: float | None, rng: np.random.RandomState) -> TrainTestBlocks:
    """Return a random choice of held-out rows.

    Parameters
    ----------
    n_blocks : int
        Number of blocks.
    test_size : float, optional
        Fraction that is held out; by default 1 divided by `n_blocks`, and at most 0.2.
    rng : RandomState
        Source of random numbers.
    """
    share = min(0.2, 1 / n_blocks) if test_size is None else test_size
    seeds = rng.randint(0, np.iinfo("i4").max, size=n_blocks)
    return TrainTestBlocks(tuple(int(seed) for seed in seeds), share)


class BlockOrder:
    """The order of blocks for all models of a bracket, shuffled again in each pass.

    Parameters
    ----------
    n_blocks : int
        Number of blocks.
    rng : RandomState
        Source of random numbers; it must not be used elsewhere.

    Examples
    --------
    >>> order = BlockOrder(3, np.random.RandomState(0))
    >>> [order[call] for call in range(6)]
    [2, 1, 0, 2, 0, 1]
    """

    def __init__(self, n_blocks: int, rng: np.random.RandomState) -> None:
        self._n_blocks = n_blocks
        self._rng = rng
        self._numbers: list[int] = []

    def __getitem__(self, call: int) -> int:
        while call >= len(self._numbers):
            numbers = list(range(self._n_blocks))
            self._rng.shuffle(numbers)
            self._numbers.extend(numbers)
        return self._numbers[call]


class _SharedBlocks:
    """The blocks that the trials of this process share, one copy of each. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[Any, threading.Lock] = {}
        self._blocks_by_key: WeakValueDictionary[Any, Block] = WeakValueDictionary()

    def get(self, key: Any, make: Callable[[], Block]) -> Block:
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            block = self._blocks_by_key.get(key)
            if block is None:
                block = self._blocks_by_key[key] = make()
        with self._lock:
            # Threads that wait for this lock hold the object, and find the block when they get it.
            # A later thread makes a new lock, and finds the block, too. If the block was freed in
            # between, two threads may load it at the same time: that wastes memory, but both copies
            # are correct.
            self._locks.pop(key, None)
        return block


_shared_blocks: Final = _SharedBlocks()


class Blocks(ABC):
    """The data of a search for its trials: training rows by block, and held-out rows.

    Parameters
    ----------
    holdouts : sequence of TrainTestBlocks
        The held-out rows of each bracket.
    """

    def __init__(self, holdouts: Sequence[TrainTestBlocks]) -> None:
        self._holdouts = list(holdouts)
        self._name = uuid.uuid4().hex

    @abstractmethod
    def _load(self, number: int) -> Block:
        """Return a whole block."""

    @abstractmethod
    def _load_held_out(self, bracket: int) -> Block:
        """Return the held-out rows of all blocks."""

    def training(self, bracket: int, number: int) -> Block:
        """Return the training rows of a block.

        Parameters
        ----------
        bracket : int
            The model's bracket.
        number : int
            The number of the block.
        """
        return _shared_blocks.get(
            (self._name, bracket, number), lambda: self._training_rows(self._load(number), bracket, number)
        )

    def _training_rows(self, block: Block, bracket: int, number: int) -> Block:
        return block.take(self._holdouts[bracket].rows(number, len(block))[0])

    def held_out(self, bracket: int) -> Block:
        """Return the held-out rows of all blocks, to score a model on.

        Parameters
        ----------
        bracket : int
            The model's bracket.
        """
        return _shared_blocks.get((self._name, bracket), lambda: self._load_held_out(bracket))


class LocalBlocks(Blocks):
    """Blocks in memory, which are sent to each worker process as a whole.

    Parameters
    ----------
    blocks : sequence of Block
        The blocks of all data.
    holdouts : sequence of TrainTestBlocks
        The held-out rows of each bracket.
    """

    def __init__(self, blocks: Sequence[Block], holdouts: Sequence[TrainTestBlocks]) -> None:
        super().__init__(holdouts)
        self._blocks = list(blocks)

    def _load(self, number: int) -> Block:
        return self._blocks[number]

    def _load_held_out(self, bracket: int) -> Block:
        holdout = self._holdouts[bracket]
        return concatenate_blocks([held_out_rows(one, (holdout, i)) for i, one in enumerate(self._blocks)])


class RemoteBlocks(Blocks):
    """Blocks that stay on Dask's workers; a trial fetches the block that it needs.

    Parameters
    ----------
    keys : sequence of str
        The Dask keys of the blocks.
    held_out : sequence of str
        The Dask key of the held-out rows of each bracket.
    holdouts : sequence of TrainTestBlocks
        The held-out rows of each bracket.
    """

    def __init__(
        self, keys: Sequence[str], held_out: Sequence[str], holdouts: Sequence[TrainTestBlocks]
    ) -> None:
        super().__init__(holdouts)
        self._keys = list(keys)
        self._held_out = list(held_out)

    def _load(self, number: int) -> Block:
        key = self._keys[number]
        return _shared_blocks.get((self._name, key), lambda: _fetched(key))

    def _load_held_out(self, bracket: int) -> Block:
        return _fetched(self._held_out[bracket])


def held_out_rows(block: Block, argument: tuple[TrainTestBlocks, int]) -> Block:
    """Return the held-out rows of a block."""
    holdout, number = argument
    return block.take(holdout.rows(number, len(block))[1])


def _fetched(key: str) -> Block:
    # Imported here, because it needs Dask; this runs on a worker only.
    from dasktune.cluster.data.partitions import fetch_key

    block: Block = fetch_key(key)
    return block
