"""Captures the output and the log of a trial in files of its directory."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.fs import local_files
from dasktune.storage.fs.storage import Storage
from dasktune.trainable.checkpoints.relay import LocalFile, LogChunk, TransferQueue, run_transfer
from dasktune.trainable.spec import TrialSpec

logger = logging.getLogger(__name__)

_NAMES: Final = ("stdout", "stderr")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureLimits:
    """How often output is stored, and how much of it.

    Parameters
    ----------
    period_seconds : float, default=5.0
        Seconds between two writes to a remote storage or to the driver. If a worker dies, the
        output of at most this time is lost.
    max_bytes : int, default=32 MiB
        Largest size of a captured file. A remote storage keeps the last bytes, since each write
        replaces the whole object. The driver is sent the first bytes.
    """

    period_seconds: float = 5.0
    max_bytes: int = 32 << 20


class _File:
    """A file of a trial's directory, open for appending."""

    def __init__(self, storage: Storage, name: str, max_bytes: int) -> None:
        self._storage, self._name, self._max_bytes = storage, name, max_bytes
        self._stored = 0
        self._spool: Any = None
        if storage.is_local:
            path = storage.inside(name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self.descriptor = local_files.open_append(path)
            return
        # An object can only be replaced as a whole, so it starts with the output of earlier starts.
        before = storage.read_bytes(name) if storage.exists(name) else b""
        self._spool = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self.descriptor = self._spool.fileno()
        self._stored = os.write(self.descriptor, before)

    def write(self, text: str) -> None:
        """Append text; an error must not become a failure of the code that prints."""
        try:
            os.write(self.descriptor, text.encode("utf-8", "backslashreplace"))
        except OSError:
            logger.debug("could not capture a line for %s", self._name, exc_info=True)

    def store(self) -> None:
        """Write new output to a remote storage."""
        if self._spool is None:
            return
        size = os.fstat(self.descriptor).st_size
        if size == self._stored:
            return
        left_out = max(0, size - self._max_bytes)
        content = os.pread(self.descriptor, size - left_out, left_out)
        if left_out:
            content = b"(the first %d bytes are left out)\n" % left_out + content
        try:
            self._storage.write_bytes(self._name, content)
        except Exception as error:  # the store's client may raise any exception
            text = self._storage.explain(error)
            logger.warning("could not store %s, trying again later: %s", self._name, text)
        else:
            self._stored = size

    def close(self) -> None:
        self.store()
        if self._spool is None:
            os.close(self.descriptor)
        else:
            self._spool.close()


class _Periodic:
    """Calls functions every few seconds, in a thread, until the ``with`` block ends."""

    def __init__(self, works: Iterable[Callable[[], None]], seconds: float) -> None:
        self._works, self._seconds = list(works), seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dasktune-output", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            for work in self._works:
                work()


class _Spool:
    """Local files with output that the driver appends to those in the trial's directory."""

    def __init__(self, spec: TrialSpec, transfers: TransferQueue, max_bytes: int) -> None:
        self._trial_id, self._transfers = spec.trial_id, transfers
        self._max_bytes = max_bytes
        #: A temporary checkpoint: its directory is deleted with this object.
        self._directory = Checkpoint.temporary()
        self.storage = Storage(self._directory.path)
        #: Bytes of each file that the driver has stored.
        self._sent = dict.fromkeys(spec.log_files or (), 0)

    def deliver(self) -> None:
        """Send new output to the driver; a failure is retried the next time."""
        try:
            self._deliver()
        except Exception as error:  # the driver is gone, or its storage fails
            logger.info("could not send the output of trial %s yet: %s", self._trial_id, error)

    def deliver_the_rest(self) -> None:
        """Send the last new output to the driver."""
        try:
            self._deliver()
        except Exception as error:  # the driver is gone, or its storage fails
            logger.warning("the last output of trial %s is lost: %s", self._trial_id, error)
        if any(os.path.getsize(self.storage.path(name)) > self._max_bytes for name in self._sent):
            text = "the output of trial %s beyond %d MiB is lost: the driver is not sent more"
            logger.warning(text, self._trial_id, self._max_bytes >> 20)

    def _deliver(self) -> None:
        for name, sent in self._sent.items():
            path = self.storage.path(name)
            end = min(os.path.getsize(path), self._max_bytes)
            if end > sent:
                # One file in each transfer: if one fails, the other is not appended twice.
                new = LocalFile(name=name, path=path, start=sent, size=end - sent)
                run_transfer(self._transfers.submit, LogChunk(files=(new,)))
                self._sent[name] = end


@contextmanager
def _opened(
    spec: TrialSpec, transfers: TransferQueue, limits: CaptureLimits
) -> Iterator[tuple[_File, _File] | None]:
    """Open the files for a trial's stdout and stderr; None if its output is not kept."""
    with ExitStack() as stack:
        files = None
        if spec.log_files is not None:
            try:
                files = _open(spec, transfers, limits, stack)
            except Exception as error:  # the store's client may raise any exception
                text = spec.storage.explain(error)
                logger.warning("the output of trial %s is not kept: %s", spec.trial_id, text)
        yield files


def _open(
    spec: TrialSpec, transfers: TransferQueue, limits: CaptureLimits, stack: ExitStack
) -> tuple[_File, _File]:
    assert spec.log_files is not None
    # The storage is used without retries: output is not worth waiting for a failing storage.
    spool = _Spool(spec, transfers, limits.max_bytes) if spec.relayed else None
    if spool is not None:
        storage = spool.storage
        stack.callback(spool.deliver_the_rest)
    else:
        storage = spec.storage.child("trials", spec.trial_dir).with_retry(0.0)
    opened: dict[str, _File] = {}
    for name in dict.fromkeys(spec.log_files):
        opened[name] = _File(storage, name, limits.max_bytes)
        stack.callback(opened[name].close)
    if spool is not None:
        stack.enter_context(_Periodic([spool.deliver], limits.period_seconds))
    elif not storage.is_local:
        stack.enter_context(_Periodic((file.store for file in opened.values()), limits.period_seconds))
    first, second = spec.log_files
    return opened[first], opened[second]


# In a thread of the worker

#: The files for stdout and stderr of this context, in addition to the worker's own streams.
_files: ContextVar[tuple[_File, _File] | None] = ContextVar("dasktune_output", default=None)


class _StreamRouter:
    """A stream of the worker that also writes to the files of the printing trial."""

    def __init__(self, original: Any, number: int) -> None:
        self._original = original
        self._number = number

    def write(self, text: str) -> int:
        files = _files.get()
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
    """Installs the routers while at least one trial on the worker needs them.

    The lock covers the count and the exchange of the streams. A trial that starts while the last
    other one ends finds the routers installed, or installs them again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._pairs: list[tuple[str, Any, _StreamRouter]] = []

    @contextmanager
    def installed(self) -> Iterator[None]:
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
                routed = _StreamRouter(original, number)
                self._pairs.append((name, original, routed))
                setattr(sys, name, routed)
                _redirect_handlers(original, routed)

    def _remove(self) -> None:
        for name, original, routed in self._pairs:
            # User code may have replaced the stream meanwhile; then it stays.
            if getattr(sys, name) is routed:
                setattr(sys, name, original)
            _redirect_handlers(routed, original)
        self._pairs.clear()


def _redirect_handlers(old: Any, new: Any) -> None:
    """Make the logging handlers of the old stream write to the new one."""
    named = list(logging.root.manager.loggerDict.values())
    loggers = [logging.root, *(one for one in named if isinstance(one, logging.Logger))]
    for handler in {handler for one in loggers for handler in one.handlers}:
        if isinstance(handler, logging.StreamHandler) and handler.stream is old:
            handler.setStream(new)


_installation: Final = _Installation()


@contextmanager
def streams_redirected(
    spec: TrialSpec, transfers: TransferQueue, limits: CaptureLimits | None = None
) -> Iterator[None]:
    """Capture what the calling thread prints and logs inside the ``with`` block.

    The worker's own streams show it as before. Output of threads that user code starts is not
    captured, unless they run in a copy of its context.

    Parameters
    ----------
    spec : TrialSpec
        The trial.
    transfers : TransferQueue
        Where the output waits for the driver, if the worker cannot access the storage.
    limits : CaptureLimits, optional
        How often output is stored, and how much of it.
    """
    with _opened(spec, transfers, limits or CaptureLimits()) as files:
        if files is None:
            yield
            return
        with _installation.installed():
            token = _files.set(files)
            try:
                yield
            finally:
                _files.reset(token)


# In a child process


@contextmanager
def descriptors_redirected(spec: TrialSpec, transfers: TransferQueue) -> Iterator[None]:
    """Capture all output of this process and its children inside the ``with`` block.

    This includes the output of C libraries. None of it is shown elsewhere.

    Parameters
    ----------
    spec : TrialSpec
        The trial.
    transfers : TransferQueue
        Where the output waits for the driver, if the worker cannot access the storage.
    """
    with _opened(spec, transfers, CaptureLimits()) as files:
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
                # Write each line at once: the process may be killed before its buffers are full.
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
            logger.debug("could not flush %s", name, exc_info=True)
