"""PyTorch: a training's state in a checkpoint, and back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Protocol, runtime_checkable

from dasktune.errors import check
from dasktune.integration.reporting import check_there, send
from dasktune.storage.checkpoint import Checkpoint

__all__ = ["load_state", "report_state"]

_FILENAME: Final = "state.pt"


@runtime_checkable
class _Stateful(Protocol):
    """A module, an optimizer, a scheduler of learning rates, a gradient scaler, ..."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> object: ...


def report_state(metrics: Mapping[str, Any], **parts: Any) -> None:
    """Report a result with a checkpoint of a training.

    The checkpoint is read without unpickling any code, so nothing may be in it that needs code.

    Parameters
    ----------
    metrics : mapping
        The result; see :func:`dasktune.report`.
    **parts
        What makes up the training, by names of your own. Of modules, optimizers, schedulers and all
        else that has ``state_dict()``, that is saved; of a ``torch.Generator`` its state (that of
        PyTorch itself is ``torch.default_generator``). Other parts are saved as they are: numbers,
        texts, tensors, and lists and dicts of them.

    Raises
    ------
    ConfigError
        If PyTorch is not installed, or a part holds what only code can read.
    TrialInterrupted
        If the trial is to end. It is no `Exception`: let it pass, and clean up in ``finally``.

    Examples
    --------
    >>> def train(config):
    ...     parts = {"model": model, "optimizer": optimizer, "random": torch.default_generator}
    ...     start = load_state(tune.get_checkpoint(), **parts, epoch=0)["epoch"]
    ...     for epoch in range(start, 10):
    ...         loss = train_epoch(model, optimizer)
    ...         report_state({"loss": loss}, **parts, epoch=epoch + 1)
    """
    send(metrics, partial(_save, parts))


def load_state(checkpoint: Checkpoint | None, /, **parts: Any) -> dict[str, Any]:
    """Put a training back to where :func:`report_state` has saved it.

    Every part stays on its device, whichever it was saved from. Leave out parts that you do not
    need, such as the optimizer where the model is only to be used.

    Parameters
    ----------
    checkpoint : Checkpoint or None
        ``tune.get_checkpoint()``, or that of a result. None changes nothing.
    **parts
        As they were reported. Those that have a state get it back. Of others, what is given counts
        where there is no checkpoint.

    Returns
    -------
    dict
        The parts without a state, such as ``{"epoch": 3}``: those of the checkpoint, or as given
        where there is none. Tensors are on the CPU.

    Raises
    ------
    ConfigError
        If PyTorch is not installed, or the checkpoint lacks a part.

    Examples
    --------
    >>> def train(config):
    ...     parts = {"model": model, "optimizer": optimizer}
    ...     start = load_state(tune.get_checkpoint(), **parts, epoch=0)["epoch"]
    ...     for epoch in range(start, 10):
    ...         report_state({"loss": train_epoch(**parts)}, **parts, epoch=epoch + 1)
    >>> load_state(results.get_best_result().checkpoint, model=model)  # doctest: +SKIP
    {'epoch': 10}
    """
    saved = {} if checkpoint is None else _load(checkpoint)
    lacking = sorted(parts.keys() - saved.keys()) if checkpoint is not None else []
    check(not lacking, "parts", "in the checkpoint", lacking, f"It has {sorted(saved)}.")
    plain = {}
    for name, part in parts.items():
        if isinstance(part, _torch().Generator):
            if saved:
                part.set_state(saved[name])
        elif isinstance(part, _Stateful):
            if saved:
                part.load_state_dict(saved[name])
        else:
            plain[name] = saved.get(name, part)
    return plain


def _save(parts: Mapping[str, Any], directory: str) -> None:
    torch = _torch()
    path = os.path.join(directory, _FILENAME)
    torch.save({name: _state(part) for name, part in parts.items()}, path)
    # Found now, not when the trial is to go on.
    needed = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    hint = "Numbers of numpy become Python's by .item()."
    check(not needed, "parts", "tensors and plain data", needed, hint)


def _state(part: Any) -> Any:
    if isinstance(part, _torch().Generator):
        return part.get_state()
    return part.state_dict() if isinstance(part, _Stateful) else part


def _load(checkpoint: Checkpoint) -> dict[str, Any]:
    # To the CPU, where every machine can read it; each part copies its state to where it is itself.
    with checkpoint.as_directory() as directory:
        path = os.path.join(directory, _FILENAME)
        state: dict[str, Any] = _torch().load(path, map_location="cpu", weights_only=True)
    return state


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        check_there("PyTorch", "torch", str(error))
        raise
    return torch
