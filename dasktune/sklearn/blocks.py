"""The data of an incremental search: blocks to train on, and a part of each to score on."""

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

__all__ = ["Block", "BlockOrder", "Blocks", "Division", "LocalBlocks", "RemoteBlocks", "divided"]


class Block:
    """Some samples.

    Parameters
    ----------
    X : object
        The samples.
    y : object, optional
        Their targets.
    weights : mapping, default={}
        What else there is of each sample, by the name that `fit` was given it under.
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


def made(X: Any, y: Any, names: Sequence[str] = (), *values: Any) -> Block:
    """Return a block of what Dask has computed.

    Raises
    ------
    ValueError
        If they are not of the same length.
    """
    block = Block(X, y, dict(zip(names, values, strict=True)))
    for name, one in {"y": y, **block.weights}.items():
        if one is not None and len(one) != len(block):
            raise ValueError(
                f"{name} must be as long as X in each block, got {len(one)} and {len(block)}"
            )
    return block


def is_of_samples(value: Any, size: int) -> bool:
    """Whether something in memory has a value for each of so many samples.

    Parameters
    ----------
    value : object
        Anything.
    size : int
        How many samples there are.

    Examples
    --------
    >>> is_of_samples([0.5, 2.0], 2), is_of_samples("no", 2), is_of_samples(0.5, 2)
    (True, False, False)
    """
    if isinstance(value, str | bytes | Mapping):
        return False
    shape = getattr(value, "shape", None)
    if shape is None:
        return hasattr(value, "__len__") and len(value) == size
    return len(shape) > 0 and shape[0] == size


def joined(blocks: Sequence[Block]) -> Block:
    """Return the samples of several blocks in one."""
    blocks = [block for block in blocks if len(block)] or list(blocks[:1])
    first = blocks[0]
    y = None if first.y is None else _concatenated([block.y for block in blocks])
    weights = {
        name: _concatenated([block.weights[name] for block in blocks]) for name in first.weights
    }
    return Block(_concatenated([block.X for block in blocks]), y, weights)


def _concatenated(parts: list[Any]) -> Any:
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
class Division:
    """Which samples of each block are held out to score on.

    Parameters
    ----------
    seeds : tuple of int
        One for each block.
    test_size : float
        Share of each block that is held out, between 0 and 1.
    """

    seeds: tuple[int, ...]
    test_size: float

    def rows(self, number: int, size: int) -> tuple[Any, Any]:
        """Return the rows of a block to train on, and those to score on.

        A block of one sample is held out as a whole, or not at all.

        Parameters
        ----------
        number : int
            Of the block.
        size : int
            How many samples it has.

        Examples
        --------
        >>> train, test = Division((0,), 0.2).rows(0, 10)
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


def divided(n_blocks: int, test_size: float | None, rng: np.random.RandomState) -> Division:
    """Return a division of blocks.

    Parameters
    ----------
    n_blocks : int
        How many there are.
    test_size : float, optional
        Share that is held out; by default as much as one block, and at most a fifth.
    rng : RandomState
        Where randomness comes from.
    """
    share = min(0.2, 1 / n_blocks) if test_size is None else test_size
    seeds = rng.randint(0, np.iinfo("i4").max, size=n_blocks)
    return Division(tuple(int(seed) for seed in seeds), share)


class BlockOrder:
    """In which order all models of a bracket are trained on the blocks: shuffled in each pass.

    Parameters
    ----------
    n_blocks : int
        How many blocks there are.
    rng : RandomState
        Where randomness comes from; it is not used elsewhere.

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


class _Held:
    """What the trials of a process have in use, each thing once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[Any, threading.Lock] = {}
        self._things: WeakValueDictionary[Any, Block] = WeakValueDictionary()

    def get(self, key: Any, make: Callable[[], Block]) -> Block:
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            thing = self._things.get(key)
            if thing is None:
                thing = self._things[key] = make()
        with self._lock:
            # Who holds it now has it; who comes later looks first.
            self._locks.pop(key, None)
        return thing


_held: Final = _Held()


class Blocks(ABC):
    """The data of a search as its trials see it.

    Parameters
    ----------
    divisions : sequence of Division
        One for each bracket.
    """

    def __init__(self, divisions: Sequence[Division]) -> None:
        self._divisions = list(divisions)
        self._name = uuid.uuid4().hex

    @abstractmethod
    def _load(self, number: int) -> Block:
        """Return a whole block."""

    @abstractmethod
    def _load_held_out(self, bracket: int) -> Block:
        """Return what is held out of all blocks."""

    def training(self, bracket: int, number: int) -> Block:
        """Return what a model is trained on.

        Parameters
        ----------
        bracket : int
            Of the model.
        number : int
            Of the block.
        """
        return _held.get(
            (self._name, bracket, number), lambda: self._cut(self._load(number), bracket, number)
        )

    def _cut(self, block: Block, bracket: int, number: int) -> Block:
        return block.take(self._divisions[bracket].rows(number, len(block))[0])

    def held_out(self, bracket: int) -> Block:
        """Return what a model is scored on.

        Parameters
        ----------
        bracket : int
            Of the model.
        """
        return _held.get((self._name, bracket), lambda: self._load_held_out(bracket))


class LocalBlocks(Blocks):
    """Blocks that go to each worker process as a whole.

    Parameters
    ----------
    blocks : sequence of Block
        The data.
    divisions : sequence of Division
        One for each bracket.
    """

    def __init__(self, blocks: Sequence[Block], divisions: Sequence[Division]) -> None:
        super().__init__(divisions)
        self._blocks = list(blocks)

    def _load(self, number: int) -> Block:
        return self._blocks[number]

    def _load_held_out(self, bracket: int) -> Block:
        division = self._divisions[bracket]
        return joined([held_out_of(one, (division, i)) for i, one in enumerate(self._blocks)])


class RemoteBlocks(Blocks):
    """Blocks that stay where Dask has them, and are fetched by those trials that need them.

    Parameters
    ----------
    keys : sequence of str
        Of the blocks, in Dask.
    held_out : sequence of str
        Of what is held out, for each bracket.
    divisions : sequence of Division
        One for each bracket.
    """

    def __init__(
        self, keys: Sequence[str], held_out: Sequence[str], divisions: Sequence[Division]
    ) -> None:
        super().__init__(divisions)
        self._keys = list(keys)
        self._held_out = list(held_out)

    def _load(self, number: int) -> Block:
        key = self._keys[number]
        return _held.get((self._name, key), lambda: _fetched(key))

    def _load_held_out(self, bracket: int) -> Block:
        return _fetched(self._held_out[bracket])


def held_out_of(block: Block, argument: tuple[Division, int]) -> Block:
    """Return what is held out of a block."""
    division, number = argument
    return block.take(division.rows(number, len(block))[1])


def _fetched(key: str) -> Block:
    # Only on a worker.
    from dasktune.cluster.blocks import fetched

    block: Block = fetched(key)
    return block
