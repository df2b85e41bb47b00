"""``TBXLoggerCallback``: event files for TensorBoard, with hyperparameters."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from dasktune.callback import TrialView
from dasktune.errors import ConfigError
from dasktune.logger.file_logger import FileLoggerCallback, Row, RowFormat
from dasktune.trial.metrics import flatten, number

#: Version of the format, in the first event of a file.
_VERSION: Final = "brain.Event:2"

#: Fields of a result that are not metrics.
_NO_METRICS: Final = frozenset({"done", "pid", "timestamp", "training_iteration"})


class TBXLoggerCallback(FileLoggerCallback):
    """Writes an event file for TensorBoard into the directory of each trial.

    ``tensorboard --logdir <experiment>/trials`` shows all reported numbers over
    ``training_iteration``, and the hyperparameters of ended trials. Needs
    ``pip install tensorboardX crc32c``.

    Raises
    ------
    ConfigError
        If tensorboardX is not installed.

    Examples
    --------
    >>> import dasktune as tune
    >>> run_config = tune.RunConfig(callbacks=[TBXLoggerCallback()])  # doctest: +SKIP
    """

    # TensorBoard reads files with "tfevents" in their names, in alphabetical order.
    file_name: ClassVar[str] = "events.out.tfevents.0000000000.dasktune"

    def __init__(self) -> None:
        super().__init__()
        _tensorboardx()

    def make_format(self) -> RowFormat:
        """Return the row format for a new file."""
        return _EventFormat()


def _tensorboardx() -> Any:
    try:
        import tensorboardX
    except ImportError as error:
        raise ConfigError("TBXLoggerCallback needs tensorboardX: pip install tensorboardX crc32c") from error
    return tensorboardX


class _EventFormat(RowFormat):
    def __init__(self) -> None:
        from tensorboardX import summary
        from tensorboardX.proto import event_pb2, summary_pb2
        from tensorboardX.record_writer import masked_crc32c

        self._event: Any = event_pb2.Event
        self._summary: Any = summary_pb2.Summary
        self._hparams: Any = summary.hparams
        self._checksum: Callable[[bytes], int] = masked_crc32c

    def encode_all(self, rows: Sequence[Row]) -> bytes:
        if not rows:
            return b""
        first = self._event(wall_time=_time(rows[0]), file_version=_VERSION)
        return self._framed(first) + b"".join(map(self._scalars, rows))

    def encode_more(self, rows: Sequence[Row]) -> bytes | None:
        return b"".join(map(self._scalars, rows))

    def encode_end(self, trial: TrialView) -> bytes:
        result, config = trial.last_result, dict(_hyperparameters(trial.config))
        if not result or not config:
            return b""
        metrics = dict(_metrics(result))
        step = int(result["training_iteration"])
        events = [
            self._event(wall_time=_time(result), step=step, summary=part)
            for part in self._hparams(config, metrics)
        ]
        return b"".join(map(self._framed, events))

    def _scalars(self, row: Row) -> bytes:
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in _metrics(row)]
        step = int(row["training_iteration"])
        summary = self._summary(value=values)
        return self._framed(self._event(wall_time=_time(row), step=step, summary=summary))

    def _framed(self, event: Any) -> bytes:
        """Return an event as a TFRecord: length, checksum, data, checksum."""
        data: bytes = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        return b"".join(
            (
                length,
                struct.pack("<I", self._checksum(length)),
                data,
                struct.pack("<I", self._checksum(data)),
            )
        )


def _time(row: Row) -> float:
    return float(row.get("timestamp", 0.0))


def _metrics(row: Row) -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        points = None if name in _NO_METRICS or isinstance(value, bool) else number(value)
        if points is not None:
            yield name, float(points)


def _hyperparameters(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the hyperparameters; a value that TensorBoard cannot compare becomes its repr."""
    for name, value in flatten(config).items():
        if isinstance(value, bool | str):
            yield name, value
        elif (points := number(value)) is not None:
            yield name, float(points)
        else:
            yield name, repr(value)
