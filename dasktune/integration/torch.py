"""PyTorch: save the state of a training in a checkpoint, and load it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Protocol, runtime_checkable

from dasktune.errors import check
from dasktune.integration.reporting import check_installed, report_result
from dasktune.storage.checkpoints.checkpoint import Checkpoint

__all__ = ["load_state", "report_state"]

_FILENAME: Final = "state.pt"


@runtime_checkable
class _Stateful(Protocol):
    """An object with a state: a module, an optimizer, a learning rate scheduler, and so on."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> object: ...


def report_state(metrics: Mapping[str, Any], **parts: Any) -> None:
    """Report a result with a checkpoint of the training's state.

    The checkpoint is loaded without unpickling code, so it may hold tensors and plain data only.

    Parameters
    ----------
    metrics : mapping
        The result; see :func:`dasktune.report`.
    **parts
        The parts of the training, by names of your choice. For modules, optimizers, schedulers and
        other objects with ``state_dict()``, the state dict is saved; for a ``torch.Generator``, its
        state. PyTorch's own generator is ``torch.default_generator``. Other parts are saved as they
        are: numbers, strings, tensors, and lists and dicts of them.

    Raises
    ------
    ConfigError
        If PyTorch is not installed, or a part cannot be loaded without unpickling code.
    TrialInterrupted
        If the trial must end. It is not an `Exception`: do not catch it, clean up in ``finally``.

    Examples
    --------
    >>> def train(config):
    ...     parts = {"model": model, "optimizer": optimizer, "random": torch.default_generator}
    ...     start = load_state(tune.get_checkpoint(), **parts, epoch=0)["epoch"]
    ...     for epoch in range(start, 10):
    ...         loss = train_epoch(model, optimizer)
    ...         report_state({"loss": loss}, **parts, epoch=epoch + 1)
    """
    report_result(metrics, partial(_save, parts))


def load_state(checkpoint: Checkpoint | None, /, **parts: Any) -> dict[str, Any]:
    """Restore a training to the state that :func:`report_state` has saved.

    Each part stays on its device, also if it was saved from another one. Leave out parts that you
    do not need, such as the optimizer if you only want to predict.

    Parameters
    ----------
    checkpoint : Checkpoint or None
        ``tune.get_checkpoint()``, or the checkpoint of a result. None changes nothing.
    **parts
        The parts, as they were reported. Objects with a state are restored in place. For other
        parts, the given value is the default if there is no checkpoint.

    Returns
    -------
    dict
        The parts without a state, such as ``{"epoch": 3}``: from the checkpoint, or the given
        values without one. Tensors are on the CPU.

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
    # Check now: otherwise the error would be raised only when the trial resumes.
    needed = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    hint = "Numbers of numpy become Python's by .item()."
    check(not needed, "parts", "tensors and plain data", needed, hint)


def _state(part: Any) -> Any:
    if isinstance(part, _torch().Generator):
        return part.get_state()
    return part.state_dict() if isinstance(part, _Stateful) else part


def _load(checkpoint: Checkpoint) -> dict[str, Any]:
    # Load to the CPU, which every machine has; each part copies its state to its own device.
    with checkpoint.as_directory() as directory:
        path = os.path.join(directory, _FILENAME)
        state: dict[str, Any] = _torch().load(path, map_location="cpu", weights_only=True)
    return state


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        check_installed("PyTorch", "torch", str(error))
        raise
    return torch
