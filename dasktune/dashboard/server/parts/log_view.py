"""What the selected trial has printed so far, read again while a viewer looks at it."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import inf
from threading import Thread
from typing import Any, Final

from bokeh.layouts import column, row
from bokeh.models import InlineStyleSheet, Paragraph, PreText, Select

from dasktune.dashboard.model.trial_output import log_files_of, read_log
from dasktune.dashboard.model.trial_projection import TrialProjection
from dasktune.dashboard.report.style import CARD, INPUT, colour
from dasktune.dashboard.server.repeated_errors import RepeatedErrors
from dasktune.errors import TuneError
from dasktune.storage.fs.storage import Storage
from dasktune.text.formatting import printable_lines
from dasktune.trainable.ranks import log_files_of_rank

logger = logging.getLogger(__name__)

#: Maximum number of bytes shown of each file: its end.
_MOST_BYTES: Final = 32 * 1024
#: Seconds between two reads of a file on a disk and of one in an object store, which workers write
#: every five seconds.
_LOCAL_SECONDS: Final = 2.0
_REMOTE_SECONDS: Final = 5.0
#: The factor for both while the trial does not run, or while the driver in this process is busy.
_SELDOM: Final = 5.0
#: Seconds for which a viewer looks for the first text of a trial every tenth of a second.
_HURRY_SECONDS: Final = 2.0
#: Maximum share of the time in which a thread reads.
_SHARE: Final = 0.05
#: Maximum number of ranks offered.
_MOST_RANKS: Final = 4_096

_NOT_KEPT: Final = (
    "The output of this experiment's trials is not kept. RunConfig(log_to_file=True) keeps it in files."
)
#: What the log says of a read that has failed.
_FAILED: Final = "the output of a trial could not be read"
_NOTHING: Final = "(nothing has been printed so far)"

#: A box that scrolls, and stays at its end while text is added, unless the user has scrolled up.
_SCROLLED: Final = f"""
:host {{ display: flex; flex-direction: column-reverse; max-height: 340px; overflow: auto;
 border: 1px solid {colour("line")}; border-radius: 6px; padding: 4px 8px; margin: 0 0 8px 0; }}
pre {{ margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; }}
"""

#: The folder of a trial, and a rank.
_Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Found:
    """What a thread has read: the title and the text of each file, and a sentence about them."""

    key: _Key
    note: str
    texts: tuple[tuple[str, str], ...] = ()


class LogView:
    """The ends of the files with a trial's output, for one viewer.

    The server's loop calls all methods but `_read`, which a thread runs: a storage may take long to
    answer, and the loop serves other viewers meanwhile. There is at most one thread. It stores its
    finding as one immutable object before it ends, so the loop sees the earlier finding or the new
    one, whole. If the viewer selects another trial meanwhile, the finding has another key and is
    not shown.

    Parameters
    ----------
    storage : Storage, optional
        The experiment's directory; without it nothing is ever shown.
    measured : callable, optional
        Returns the context in which a thread counts its processor time.
    is_busy : callable, optional
        Returns whether other threads of this process need the processor.
    clock : callable, default=time.monotonic
        Returns seconds.

    Attributes
    ----------
    root : bokeh model
        The card, invisible without a selected trial.
    rank_select : bokeh model
        The choice of a rank, invisible for a trial of one process.
    """

    def __init__(
        self,
        storage: Storage | None,
        measured: Callable[[], AbstractContextManager[None]] = nullcontext,
        is_busy: Callable[[], bool] = bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # Without retries: a thread must not wait for a failing storage, and the next read is near.
        self._storage = None if storage is None else storage.with_retry(0.0)
        self._measured, self._is_busy, self._clock = measured, is_busy, clock
        self._errors = RepeatedErrors(logger)
        self._files: tuple[str, str] | None = None
        #: The index of the selected trial; negative without one.
        self._place = -1
        self._thread: Thread | None = None
        self._found: _Found | None = None
        self._shown: _Found | None = None
        #: What the thread reads or has read last, with whether the trial ran; when to read again.
        self._asked: tuple[_Key, bool] | None = None
        self._next = -inf
        #: Until when the viewer waits for the first text of the selected trial.
        self._hurry_until = -inf
        style = [InlineStyleSheet(css=INPUT)]
        self.rank_select: Any = Select(
            title="Rank", options=["0"], value="0", visible=False, width=90, name="rank", stylesheets=style
        )
        self._note: Any = Paragraph(text="", disable_math=True, name="log note")
        self._boxes: list[Any] = []
        for number in range(2):
            title = Paragraph(text="", disable_math=True, styles={"font-weight": "600"})
            text = PreText(
                text="",
                disable_math=True,
                name=f"log {number}",
                sizing_mode="stretch_width",
                styles={"font-size": "12px"},
                stylesheets=[InlineStyleSheet(css=_SCROLLED)],
            )
            self._boxes.append(column(title, text, visible=False, sizing_mode="stretch_width"))
        head = row(self._note, self.rank_select, sizing_mode="stretch_width")
        self.root: Any = column(
            head, *self._boxes, visible=False, name="log", sizing_mode="stretch_width", styles=CARD
        )

    def select(self, place: int | None) -> None:
        """Show the output of another trial, or of none.

        Parameters
        ----------
        place : int or None
            The index of the trial.
        """
        place = -1 if place is None or self._storage is None else place
        if place == self._place:
            return
        self._place = place
        self.rank_select.value = "0"
        self.root.visible = place >= 0
        self._clear()

    def _clear(self) -> None:
        """Hide the output of another trial or rank, until that of this one is read."""
        self._shown = None
        self._note.text = "Reading what the trial has printed ..."
        for box in self._boxes:
            box.visible = False
        self._hurry_until = self._clock() + _HURRY_SECONDS

    @property
    def is_waiting(self) -> bool:
        """Whether the first text of the selected trial is read just now."""
        return self._place >= 0 and self._shown is None and self._clock() < self._hurry_until

    def update(self, trials: list[TrialProjection]) -> None:
        """Show what has been read, and read again if it is time; it never waits for the storage.

        Parameters
        ----------
        trials : list of TrialProjection
            The trials of the experiment, whose lock is held.
        """
        trial, key = self._selected(trials)
        if trial is None or key is None:
            return
        if self._shown is not None and self._shown.key != key:
            self._clear()
        self._show(key)
        is_idle = self._thread is None or not self._thread.is_alive()
        runs = trial.attempt is not None
        # Read at once when the trial begins or ends: its last lines are often those that matter.
        if is_idle and ((key, runs) != self._asked or self._clock() >= self._next):
            self._asked = key, runs
            arguments = key, trial.trial_id, 1.0 if runs and not self._is_busy() else _SELDOM
            self._thread = Thread(target=self._read, args=arguments, name="dasktune-logs", daemon=True)
            self._thread.start()

    def show_end(self, trials: list[TrialProjection]) -> None:
        """Show the last output before the server ends, if it is on a disk.

        Parameters
        ----------
        trials : list of TrialProjection
            The trials of the experiment, whose lock is held.
        """
        trial, key = self._selected(trials)
        if trial is not None and key is not None and self._storage is not None and self._storage.is_local:
            # A thread may still read. If it stores its finding just before the line that shows it,
            # that text is shown, which is a moment older.
            self._read(key, trial.trial_id, 1.0)
            self._show(key)

    def _selected(self, trials: list[TrialProjection]) -> tuple[TrialProjection | None, _Key | None]:
        """Return the selected trial, and what to read of it."""
        if not 0 <= self._place < len(trials):
            # The journal may have been replaced by a shorter one.
            return None, None
        trial = trials[self._place]
        count = 1 if trial.ranks is None else min(len(trial.ranks.places), _MOST_RANKS)
        options = [str(rank) for rank in range(count)]
        if options != self.rank_select.options:
            self.rank_select.options = options
            self.rank_select.visible = count > 1
        rank = self.rank_select.value
        return trial, (trial.folder, int(rank) if rank in options else 0)

    def _show(self, key: _Key) -> None:
        found = self._found
        if found is None or found is self._shown or found.key != key:
            return
        self._shown = found
        self._note.text = found.note
        for number, box in enumerate(self._boxes):
            box.visible = number < len(found.texts)
            if not box.visible:
                continue
            title, text = box.children
            title.text, text.text = found.texts[number]
            # The keyboard can scroll the box, and a screen reader names it.
            text.html_attributes = {"tabindex": "0", "role": "region", "aria-label": title.text}

    def _read(self, key: _Key, trial_id: str, factor: float) -> None:
        began = self._clock()
        try:
            with self._measured():
                found = self._read_files(key, trial_id)
        except (TuneError, OSError) as error:
            found = _Found(key, f"The output of {trial_id} cannot be read: {error}")
        except Exception as error:
            self._errors.failed(_FAILED, error)
            found = _Found(key, f"The output of {trial_id} cannot be read; the server's log has the reason.")
        else:
            self._errors.succeeded(_FAILED)
        now = self._clock()
        is_local = self._storage is not None and self._storage.is_local
        period = factor * (_LOCAL_SECONDS if is_local else _REMOTE_SECONDS)
        self._next = now + max(period, (now - began) / _SHARE)
        # An equal finding is not shown, so it is not sent again.
        if found != self._found:
            self._found = found

    def _read_files(self, key: _Key, trial_id: str) -> _Found:
        assert self._storage is not None
        folder, rank = key
        # The driver may not have written the file with the setting yet.
        self._files = self._files or log_files_of(self._storage)
        if self._files is None:
            return _Found(key, _NOT_KEPT)
        names = dict.fromkeys(log_files_of_rank(self._files, rank))
        texts = tuple(self._texts(folder, names))
        which = f" --rank {rank}" if rank else ""
        command = f"dasktune logs {shlex.quote(str(self._storage))} {shlex.quote(trial_id)}{which}"
        of = f"rank {rank} of {trial_id}" if rank else trial_id
        return _Found(key, printable_lines(f"What {of} has printed. All of it: {command}"), texts)

    def _texts(self, folder: str, names: dict[str, None]) -> Iterator[tuple[str, str]]:
        assert self._storage is not None
        for name in names:
            log = read_log(self._storage, f"trials/{folder}/{name}", max_bytes=_MOST_BYTES)
            before = f", without the first {log.left_out:,} bytes" if log.left_out else ""
            yield printable_lines(f"{name}{before}"), log.text or _NOTHING
