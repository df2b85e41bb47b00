"""Figures as they ought to be, and what must change in a viewer's for them to be so.

A figure is made anew from the chronicle, by the same function that notebooks and the report use,
and compared with the one that was made before. What differs is told to each viewer's own models:
new rows of a data source are streamed, other cells are patched. So no figure knows that it lives,
and the comparison is made once for all viewers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from bokeh.core.property.vectorization import Expr, Field, Value
from bokeh.model import Model
from bokeh.models import ColumnDataSource

from dasktune.dashboard.figures.sketch import Sketch

__all__ = ["Changes", "Draft", "models_of"]

#: A model of Bokeh's, which is not typed so that it could be checked.
AnyModel: TypeAlias = Any

#: Of a column, the part that may be patched; if more has changed it is sent as a whole.
_PATCHED: Final = 0.25

_SPECS: Final = (Expr, Field, Value)


def models_of(root: AnyModel, values: dict[int, dict[str, Any]] | None = None) -> list[AnyModel]:
    """Return a model and all below it, in an order that is the same for models that are alike.

    Parameters
    ----------
    root : Model
        The uppermost one.
    values : dict, optional
        Is given the values of each model, by its `id`.
    """
    found: dict[int, AnyModel] = {}
    waiting = [root]
    while waiting:
        model = waiting.pop()
        if id(model) in found:
            continue
        found[id(model)] = model
        own = _values(model)
        if values is not None:
            values[id(model)] = own
        waiting += [below for name in sorted(own) for below in _below(own[name])][::-1]
    return list(found.values())


def _values(model: AnyModel) -> dict[str, Any]:
    values: dict[str, Any] = model.properties_with_values(include_defaults=False)
    return values


def _value(model: AnyModel, name: str) -> Any:
    """Return a property's value as :func:`_values` has it: that of a glyph may be a spec."""
    return model.lookup(name).get_value(model)


def _below(value: Any) -> Iterator[AnyModel]:
    """Yield the models that a property's value holds."""
    if isinstance(value, Model):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _below(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _below(item)
    elif isinstance(value, _SPECS):
        yield from _below(vars(value))


@dataclass(frozen=True, slots=True)
class _Set:
    """A property that has another value."""

    model: int
    name: str
    #: What the viewer's has if nobody has changed it there.
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class _Stream:
    """Rows that have come to a data source."""

    model: int
    rows: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Patch:
    """Cells of a data source that have changed."""

    model: int
    cells: dict[str, list[tuple[int, Any]]]


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns of a data source as they are now."""

    model: int
    columns: dict[str, Any]
    #: Whether there are others no more, or other lengths.
    all: bool


_Step: TypeAlias = _Set | _Stream | _Patch | _Columns


@dataclass(slots=True)
class Changes:
    """What makes one draft's models show what another draft shows."""

    of: Draft
    steps: list[_Step] = field(default_factory=list)

    def carry_out(self, live: Sequence[AnyModel]) -> None:
        """Change a viewer's models, which are in the order of :func:`models_of`.

        What the viewer has changed, such as how far it is zoomed, stays as the viewer wants it.

        Parameters
        ----------
        live : sequence of Model
            Alike to those of the earlier draft.
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


class Draft:
    """A figure, or whatever is made of models, that nobody sees.

    Parameters
    ----------
    root : Model or Sketch
        The figure.
    """

    def __init__(self, root: AnyModel | Sketch) -> None:
        self.sketch = root if isinstance(root, Sketch) else None
        known: dict[int, dict[str, Any]] = {}
        self.models = models_of(root.drawn() if isinstance(root, Sketch) else root, known)
        self._places = {id(model): place for place, model in enumerate(self.models)}
        self._values = [known[id(model)] for model in self.models]
        #: Where the models are that a sketch names.
        self._named = {model.name: place for place, model in enumerate(self.models) if model.name}
        #: Models for the first viewer.
        self._spare: AnyModel = None
        #: From the draft that a viewer shows; the others are of no use any more.
        self._known: tuple[Draft, Changes | None] | None = None

    def renewed(self, sketch: Sketch) -> Draft | None:
        """Return the draft of another sketch, with the same models; None if they do not fit it.

        Parameters
        ----------
        sketch : Sketch
            Of the same figure.
        """
        if self.sketch is None or self.sketch.form != sketch.form:
            return None
        other = copy(self)
        other.sketch, other._known, other._values = sketch, None, list(self._values)
        other._spare = None
        for name, columns in sketch.sources.items():
            other._set(name, "data", columns)
        for (name, attribute), value in sketch.settings.items():
            other._set(name, attribute, value)
        return other

    def _set(self, name: str, attribute: str, value: Any) -> None:
        place = self._named[name]
        self._values[place] = {**self._values[place], attribute: value}

    def keep_spare(self) -> None:
        """Draw it for whoever wants it first, who then need not wait for that."""
        self._spare = None if self.sketch is None else self.sketch.drawn()

    def drawn(self) -> AnyModel:
        """Return models of it that nobody else has; only a sketch can be drawn again."""
        spare, self._spare = self._spare, None
        if spare is None and self.sketch is not None:
            spare = self.sketch.drawn()
        return spare

    def changes_from(self, earlier: Draft) -> Changes | None:
        """Return what makes of the earlier draft this one; None if they are not alike.

        Parameters
        ----------
        earlier : Draft
            Another one of the same figure.
        """
        if self._known is None or self._known[0] is not earlier:
            self._known = earlier, self._compared(earlier)
        return self._known[1]

    def is_like(self, live: Sequence[AnyModel]) -> bool:
        """Whether a viewer's models can be changed as this draft's would be."""
        return [type(one) for one in live] == [type(one) for one in self.models]

    def translated(self, value: Any, live: Sequence[AnyModel]) -> Any:
        """Return a value in which models of this draft are replaced by a viewer's."""
        if isinstance(value, Model):
            place = self._places.get(id(value))
            return value if place is None else live[place]
        if isinstance(value, list | tuple):
            return [self.translated(item, live) for item in value]
        if isinstance(value, dict):
            return {key: self.translated(item, live) for key, item in value.items()}
        if isinstance(value, _SPECS) and any(_below(value)):
            return type(value)(**self.translated(vars(value), live))
        return value

    def _compared(self, earlier: Draft) -> Changes | None:
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
                    # Models of both become places, so that they can be compared.
                    one = earlier.translated(one, self.models)
                    if not _same(one, other):
                        changes.steps.append(_Set(place, name, one, other))
        return changes


def _data_steps(place: int, before: dict[str, Any], after: dict[str, Any]) -> list[_Step]:
    """Return the least that turns some columns into others."""
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
    """Return the rows that differ, of those that both columns have."""
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
    """Whether the quick comparison finds the first cells of two columns equal."""
    try:
        return before[:length] == after[:length]
    except ValueError:  # there are arrays in them
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
    if isinstance(one, _SPECS) and type(one) is type(other):
        return _same(vars(one), vars(other))
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (one != one and other != other)
    return bool(one == other)


def _copied(columns: dict[str, Any]) -> dict[str, Any]:
    """Return columns that may be patched without changing those of the draft."""
    return {
        name: column.copy() if isinstance(column, np.ndarray) else list(column)
        for name, column in columns.items()
    }
