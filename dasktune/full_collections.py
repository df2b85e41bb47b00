"""Spares a program the garbage collector's walk over everything that is loaded."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def quick_full_collections() -> Iterator[Callable[[], None]]:
    """Let a full collection look only at objects that are made within the context.

    A full collection stops all threads for 50 ms after the imports of a driver, and for longer if
    it has a dashboard of thousands of trials. Python makes one just before the first trial starts,
    because the imports and the start make many objects; Bokeh makes one when a browser leaves.

    Yields
    ------
    callable
        Ends it before the end of the context.

    Notes
    -----
    ``gc.freeze()`` puts all objects aside, and ``gc.unfreeze()`` puts them back into the oldest
    generation. Both take no time, and garbage among these objects is collected afterwards. Nothing
    is done while another context has put objects aside, or the user's program has.

    Two threads may enter at the same moment, and both freeze. The first one that ends puts all
    objects back, so that a collection in the other context takes its usual time.
    """
    is_ours = not gc.get_freeze_count()

    def end() -> None:
        nonlocal is_ours
        if is_ours:
            is_ours = False
            gc.unfreeze()

    if is_ours:
        gc.freeze()
    try:
        yield end
    finally:
        end()
