"""What a trial prints and logs, kept in files of its directory."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, Final

from dasktune.storage.checkpoint import Checkpoint
from dasktune.storage.location import Storage
from dasktune.trainable.relay import Dock, LocalFile, Words, carried
from dasktune.trainable.spec import TrialSpec

__all__ = ["descriptors_redirected", "streams_redirected"]

logger = logging.getLogger(__name__)

#: Seconds between two looks at whether there is something new for a storage that is no disk, or for
#: the driver: what dies with a worker.
_PERIOD: Final = 5.0

#: Bytes of a file that are stored there at most, its last ones: each time all of it is written. Of
#: what passes the driver it is the first ones.
_MOST: Final = 32 << 20

_NAMES: Final = ("stdout", "stderr")


class _File:
    """A file of a trial's directory, open for appending."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self._name = storage, name
        self._stored = 0
        self._spool: Any = None
        if storage.is_local:
            path = storage.path(name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self.descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            return
        # An object is written whole, so the trial's earlier words are needed, too.
        before = storage.read_bytes(name) if storage.exists(name) else b""
        self._spool = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self.descriptor = self._spool.fileno()
        self._stored = os.write(self.descriptor, before)

    def write(self, text: str) -> None:
        """Add text; whatever goes wrong must not become a failure of who prints."""
        try:
            os.write(self.descriptor, text.encode("utf-8", "backslashreplace"))
        except OSError:
            logger.debug("a line for %s is lost", self._name, exc_info=True)

    def store(self) -> None:
        """Write what is new to a storage that is no disk."""
        if self._spool is None:
            return
        size = os.fstat(self.descriptor).st_size
        if size == self._stored:
            return
        left_out = max(0, size - _MOST)
        content = os.pread(self.descriptor, size - left_out, left_out)
        if left_out:
            content = b"(the first %d bytes are left out)\n" % left_out + content
        try:
            self._storage.write_bytes(self._name, content)
        except Exception as error:  # whatever the store's client raises
            logger.warning("%s is stored later: %s", self._name, self._storage.explain(error))
        else:
            self._stored = size

    def close(self) -> None:
        self.store()
        if self._spool is None:
            os.close(self.descriptor)
        else:
            self._spool.close()


class _Keeper:
    """Does something every few seconds, in a thread, until it is left."""

    def __init__(self, works: Iterable[Callable[[], None]]) -> None:
        self._works = list(works)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dasktune-output", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_PERIOD):
            for work in self._works:
                work()


class _Spool:
    """Local files whose words the driver adds to those in a trial's directory."""

    def __init__(self, spec: TrialSpec, dock: Dock) -> None:
        self._trial_id, self._dock = spec.trial_id, dock
        #: Deleted with this object.
        self._directory = Checkpoint.temporary()
        self.storage = Storage(self._directory.path)
        #: Bytes of each file that the driver has.
        self._sent = dict.fromkeys(spec.log_files or (), 0)

    def deliver(self) -> None:
        """Have the driver add what is new; what goes wrong is tried again the next time."""
        try:
            self._deliver()
        except Exception as error:  # the driver is gone, or its storage fails
            logger.info("what trial %s prints is kept later: %s", self._trial_id, error)

    def deliver_the_rest(self) -> None:
        """Have the driver add what is new, for the last time."""
        try:
            self._deliver()
        except Exception as error:  # as above
            logger.warning("what trial %s has printed is lost: %s", self._trial_id, error)
        if any(os.path.getsize(self.storage.path(name)) > _MOST for name in self._sent):
            told = "what trial %s has printed is lost beyond %d MiB, which do not pass the driver"
            logger.warning(told, self._trial_id, _MOST >> 20)

    def _deliver(self) -> None:
        for name, sent in self._sent.items():
            path = self.storage.path(name)
            end = min(os.path.getsize(path), _MOST)
            if end > sent:
                # One at a time, so that none is added twice if another one cannot be.
                new = LocalFile(name=name, path=path, start=sent, size=end - sent)
                carried(self._dock.begin, Words(files=(new,)))
                self._sent[name] = end


@contextmanager
def _opened(spec: TrialSpec, dock: Dock) -> Iterator[tuple[_File, _File] | None]:
    """Open what a trial's stdout and stderr go to; None where they are not kept."""
    with ExitStack() as stack:
        files = None
        if spec.log_files is not None:
            try:
                files = _open(spec, dock, stack)
            except Exception as error:  # whatever the store's client raises
                told = spec.storage.explain(error)
                logger.warning("what trial %s prints is not kept: %s", spec.trial_id, told)
        yield files


def _open(spec: TrialSpec, dock: Dock, stack: ExitStack) -> tuple[_File, _File]:
    assert spec.log_files is not None
    # What is printed is not worth waiting for a storage that fails.
    spool = _Spool(spec, dock) if spec.relayed else None
    if spool is not None:
        storage = spool.storage
        stack.callback(spool.deliver_the_rest)
    else:
        storage = spec.storage.child("trials", spec.trial_dir).patient(0.0)
    opened: dict[str, _File] = {}
    for name in dict.fromkeys(spec.log_files):
        opened[name] = _File(storage, name)
        stack.callback(opened[name].close)
    if spool is not None:
        stack.enter_context(_Keeper([spool.deliver]))
    elif not storage.is_local:
        stack.enter_context(_Keeper(file.store for file in opened.values()))
    first, second = spec.log_files
    return opened[first], opened[second]


# In a thread of the worker

#: Where stdout and stderr of this context go beside the worker's own.
_ours: ContextVar[tuple[_File, _File] | None] = ContextVar("dasktune_output", default=None)


class _Routed:
    """A stream of the worker that also writes to the files of the trial that prints."""

    def __init__(self, original: Any, number: int) -> None:
        self._original = original
        self._number = number

    def write(self, text: str) -> int:
        files = _ours.get()
        if files is not None:
            files[self._number].write(text)
        written: int = self._original.write(text)
        return written

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class _Installation:
    """The worker's streams, routed for as long as a trial needs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._pairs: list[tuple[str, Any, _Routed]] = []

    @contextmanager
    def used(self) -> Iterator[None]:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._install()
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._remove()

    def _install(self) -> None:
        originals = [getattr(sys, name) for name in _NAMES]
        for number, (name, original) in enumerate(zip(_NAMES, originals, strict=True)):
            if original is not None:
                routed = _Routed(original, number)
                self._pairs.append((name, original, routed))
                setattr(sys, name, routed)
                _redirect_handlers(original, routed)

    def _remove(self) -> None:
        for name, original, routed in self._pairs:
            # Somebody may have put a stream of their own there meanwhile.
            if getattr(sys, name) is routed:
                setattr(sys, name, original)
            _redirect_handlers(routed, original)
        self._pairs.clear()


def _redirect_handlers(old: Any, new: Any) -> None:
    """Let those handlers of logging write to the new stream that hold the old one."""
    named = list(logging.root.manager.loggerDict.values())
    loggers = [logging.root, *(one for one in named if isinstance(one, logging.Logger))]
    for handler in {handler for one in loggers for handler in one.handlers}:
        if isinstance(handler, logging.StreamHandler) and handler.stream is old:
            handler.setStream(new)


_installation: Final = _Installation()


@contextmanager
def streams_redirected(spec: TrialSpec, dock: Dock) -> Iterator[None]:
    """Keep what the calling thread prints and logs inside the ``with`` block.

    It is shown by the worker as before, too. What threads print that user code starts is not kept,
    unless they run in a copy of its context.

    Parameters
    ----------
    spec : TrialSpec
        The trial.
    dock : Dock
        Where its words wait for the driver, if the worker does not see the storage.
    """
    with _opened(spec, dock) as files:
        if files is None:
            yield
            return
        with _installation.used():
            token = _ours.set(files)
            try:
                yield
            finally:
                _ours.reset(token)


# In a process of its own


@contextmanager
def descriptors_redirected(spec: TrialSpec, dock: Dock) -> Iterator[None]:
    """Keep all that this process and its children print inside the ``with`` block.

    C libraries included; nothing of it is shown elsewhere.

    Parameters
    ----------
    spec : TrialSpec
        The trial.
    dock : Dock
        Where its words wait for the driver, if the worker does not see the storage.
    """
    with _opened(spec, dock) as files:
        if files is None:
            yield
            return
        _flush()
        saved = [os.dup(number) for number in (1, 2)]
        try:
            for number, file in zip((1, 2), files, strict=True):
                os.dup2(file.descriptor, number)
            for name in _NAMES:
                stream = getattr(sys, name)
                # The process may be killed before its buffers are full.
                if hasattr(stream, "reconfigure"):
                    stream.reconfigure(line_buffering=True)
            yield
        finally:
            _flush()
            for number, descriptor in zip((1, 2), saved, strict=True):
                os.dup2(descriptor, number)
                os.close(descriptor)


def _flush() -> None:
    for name in _NAMES:
        try:
            getattr(sys, name).flush()
        except Exception:  # user code may have closed or replaced it
            logger.debug("%s cannot be flushed", name, exc_info=True)
