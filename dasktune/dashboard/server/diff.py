"""Differences between two versions of a figure, and their application to viewers' models.

The function that notebooks and the report use makes a new version of a figure from the projection.
The server compares it with the previous version, and applies the differences to viewers' models:
new rows of a data source are streamed, other cells are patched. So figures need no code for live
updates, and one comparison serves all viewers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from bokeh.core.property.vectorization import Expr, Field, Value
from bokeh.model import Model, collect_models
from bokeh.models import ColumnDataSource

from dasktune.dashboard.figures.figure_spec import FigureSpec

#: A model of Bokeh, whose types mypy cannot check.
AnyModel: TypeAlias = Any

#: If more than this share of a column has changed, the whole column is sent, not a patch.
_PATCHED: Final = 0.25

_VECTORIZED: Final = (Expr, Field, Value)


def _values(model: AnyModel) -> dict[str, Any]:
    values: dict[str, Any] = model.properties_with_values(include_defaults=False)
    return values


def _value(model: AnyModel, name: str) -> Any:
    """Return a property's value as in :func:`_values`; a glyph's may be a `Field` or `Expr`."""
    return model.lookup(name).get_value(model)


def _below(value: Any) -> Iterator[AnyModel]:
    """Yield the models inside a property's value."""
    if isinstance(value, Model):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _below(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _below(item)
    elif isinstance(value, _VECTORIZED):
        yield from _below(vars(value))


@dataclass(frozen=True, slots=True)
class _Set:
    """A property with a new value."""

    model: int
    name: str
    #: The value in the viewer, unless the user has changed it there.
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class _Stream:
    """New rows of a data source."""

    model: int
    rows: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Patch:
    """Changed cells of a data source."""

    model: int
    cells: dict[str, list[tuple[int, Any]]]


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns of a data source that are replaced."""

    model: int
    columns: dict[str, Any]
    #: Whether all columns are replaced, because their names or lengths have changed.
    all: bool


_Step: TypeAlias = _Set | _Stream | _Patch | _Columns


@dataclass(slots=True)
class Changes:
    """The steps from one version of a figure to the next."""

    of: RenderedFigure
    steps: list[_Step] = field(default_factory=list)

    def apply(self, live: Sequence[AnyModel]) -> None:
        """Apply the steps to a viewer's models, which are in the order of Bokeh's `collect_models`.

        A property that the user has changed, such as the zoom, keeps the user's value.

        Parameters
        ----------
        live : sequence of Model
            Models of the same structure as the earlier version.
        """
        for step in self.steps:
            model = live[step.model]
            match step:
                case _Set():
                    before = self.of.translated(step.before, live)
                    if _same(_value(model, step.name), before):
                        setattr(model, step.name, self.of.translated(step.after, live))
                case _Stream():
                    model.stream(_copied(step.rows))
                case _Patch():
                    model.patch({name: list(cells) for name, cells in step.cells.items()})
                case _Columns(all=True):
                    model.data = _copied(step.columns)
                case _Columns():
                    for name, column in _copied(step.columns).items():
                        model.data[name] = column


class RenderedFigure:
    """One version of a figure, or of another tree of models; no viewer shows these models.

    It does not change after its construction, apart from two caches: `_spare` and
    `_compared_with`. A render thread fills both before it shares the object. Later the loop alone
    uses them, except that a render thread stores models for a viewer that waits for them.

    Parameters
    ----------
    root : Model or FigureSpec
        The models, or the spec that builds them.
    """

    def __init__(self, root: AnyModel | FigureSpec) -> None:
        self.spec = root if isinstance(root, FigureSpec) else None
        #: The models, in the same order for models of the same structure.
        self.models: list[AnyModel] = collect_models(root.build() if isinstance(root, FigureSpec) else root)
        self._places = {id(model): place for place, model in enumerate(self.models)}
        self._values = [_values(model) for model in self.models]
        #: Indices of the named models.
        self._named = {model.name: place for place, model in enumerate(self.models) if model.name}
        #: Models that the next viewer may take.
        self._spare: AnyModel = None
        #: The last result of `changes_from`, and the version for which it was requested.
        self._compared_with: tuple[RenderedFigure, Changes | None] | None = None

    def updated(self, spec: FigureSpec) -> RenderedFigure | None:
        """Return a new version with the same models and a new spec; None if the structure differs.

        Parameters
        ----------
        spec : FigureSpec
            The new spec of the same figure.
        """
        if self.spec is None or self.spec.structure != spec.structure:
            return None
        other = copy(self)
        other.spec, other._compared_with, other._values = spec, None, list(self._values)
        other._spare = None
        for name, columns in spec.sources.items():
            other._set(name, "data", columns)
        for (name, attribute), value in spec.settings.items():
            other._set(name, attribute, value)
        return other

    def _set(self, name: str, attribute: str, value: Any) -> None:
        place = self._named[name]
        self._values[place] = {**self._values[place], attribute: value}

    def build_spare(self) -> None:
        """Build models in advance, so that the next viewer does not wait for them."""
        self._spare = None if self.spec is None else self.spec.build()

    @property
    def has_spare(self) -> bool:
        """Whether there are models that a viewer may take, or none can be built in advance."""
        return self._spare is not None or self.spec is None

    def take_models(self) -> AnyModel:
        """Return new models for one viewer; only figures with a spec can build them."""
        spare, self._spare = self._spare, None
        if spare is None and self.spec is not None:
            spare = self.spec.build()
        return spare

    def changes_from(self, earlier: RenderedFigure) -> Changes | None:
        """Return the changes since an earlier version; None if the structures differ.

        Parameters
        ----------
        earlier : RenderedFigure
            An earlier version of the same figure.
        """
        if self._compared_with is None or self._compared_with[0] is not earlier:
            self._compared_with = earlier, self._compared(earlier)
        return self._compared_with[1]

    def is_like(self, live: Sequence[AnyModel]) -> bool:
        """Whether a viewer's models have the structure of this version."""
        return [type(one) for one in live] == [type(one) for one in self.models]

    def translated(self, value: Any, live: Sequence[AnyModel]) -> Any:
        """Return a value in which a viewer's models replace the models of this version."""
        if isinstance(value, Model):
            place = self._places.get(id(value))
            return value if place is None else live[place]
        if isinstance(value, list | tuple):
            return [self.translated(item, live) for item in value]
        if isinstance(value, dict):
            return {key: self.translated(item, live) for key, item in value.items()}
        if isinstance(value, _VECTORIZED) and any(_below(value)):
            return type(value)(**self.translated(vars(value), live))
        return value

    def _compared(self, earlier: RenderedFigure) -> Changes | None:
        if earlier.models is not self.models and not earlier.is_like(self.models):
            return None
        changes = Changes(self)
        for place, (old, new) in enumerate(zip(earlier.models, self.models, strict=True)):
            before, after = earlier._values[place], self._values[place]
            if before is after:
                continue
            for name in sorted(before.keys() | after.keys()):
                one = before.get(name, _value(old, name))
                other = after.get(name, _value(new, name))
                if isinstance(new, ColumnDataSource) and name == "data":
                    changes.steps += _data_steps(place, one, other)
                else:
                    # Replace the earlier version's models by this version's, to compare them.
                    one = earlier.translated(one, self.models)
                    if not _same(one, other):
                        changes.steps.append(_Set(place, name, one, other))
        return changes


def _data_steps(place: int, before: dict[str, Any], after: dict[str, Any]) -> list[_Step]:
    """Return the smallest steps that turn some columns into others."""
    lengths = {len(column) for column in before.values()}
    length = lengths.pop() if len(lengths) == 1 else 0
    if before.keys() != after.keys() or not length:
        return [] if _same(before, after) else [_Columns(place, after, all=True)]
    now = {len(column) for column in after.values()}
    if len(now) != 1 or now.pop() < length:
        return [_Columns(place, after, all=True)]
    cells = {name: _changed_cells(before[name], after[name]) for name in after}
    few = {name: rows for name, rows in cells.items() if rows and len(rows) <= _PATCHED * length}
    many = {name: after[name] for name, rows in cells.items() if rows and name not in few}
    longer = any(len(column) > length for column in after.values())
    if many and longer:
        return [_Columns(place, after, all=True)]
    steps: list[_Step] = [_Columns(place, many, all=False)] if many else []
    patches = {name: [(row, after[name][row]) for row in rows] for name, rows in few.items()}
    if patches:
        steps.append(_Patch(place, patches))
    if longer:
        steps.append(_Stream(place, {name: column[length:] for name, column in after.items()}))
    return steps


def _changed_cells(before: Any, after: Any) -> list[int]:
    """Return the rows in which two columns differ, up to the length of the shorter one."""
    length = min(len(before), len(after))
    if isinstance(before, np.ndarray) and isinstance(after, np.ndarray):
        one, other = before[:length], after[:length]
        if one.shape == other.shape and one.dtype == other.dtype and one.dtype.kind in "iuf":
            differ = (one != other) & ~((one != one) & (other != other))
            rows: list[int] = np.flatnonzero(differ.reshape(length, -1).any(axis=1)).tolist()
            return rows
    if isinstance(before, list) and isinstance(after, list) and _are_equal(before, after, length):
        return []
    return [row for row in range(length) if not _same(before[row], after[row])]


def _are_equal(before: list[Any], after: list[Any], length: int) -> bool:
    """Whether the first cells of two columns compare equal as lists."""
    try:
        return before[:length] == after[:length]
    except ValueError:  # cells are arrays
        return False


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        one, other = np.asarray(one), np.asarray(other)
        exact = one.dtype.kind not in "fc" or other.dtype.kind not in "fc"
        return bool(np.array_equal(one, other, equal_nan=not exact))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, _VECTORIZED) and type(one) is type(other):
        return _same(vars(one), vars(other))
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (one != one and other != other)
    return bool(one == other)


def _copied(columns: dict[str, Any]) -> dict[str, Any]:
    """Return copies of columns, which a viewer may patch."""
    return {
        name: column.copy() if isinstance(column, np.ndarray) else list(column)
        for name, column in columns.items()
    }
