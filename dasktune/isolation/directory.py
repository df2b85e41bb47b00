"""The working directory of a trial that has a process to itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dasktune.trainable.spec import TrialSpec

__all__ = ["moved_to"]

#: Where user code finds the directory that it would be in otherwise; Ray Tune's name.
_BEFORE: Final = "TUNE_ORIG_WORKING_DIR"


@contextmanager
def moved_to(spec: TrialSpec) -> Iterator[None]:
    """Work in the trial's directory inside the ``with`` block, if that is wanted.

    Parameters
    ----------
    spec : TrialSpec
        The trial, whose storage is on a disk.
    """
    if not spec.chdir:
        yield
        return
    place = spec.storage.child("trials", spec.trial_dir).path()
    os.makedirs(place, exist_ok=True)
    before = os.getcwd()
    os.environ[_BEFORE] = before
    os.chdir(place)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.pop(_BEFORE, None)
