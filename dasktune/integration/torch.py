"""PyTorch: save the state of a training in a checkpoint, and load it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Protocol, runtime_checkable

from dasktune.errors import check
from dasktune.integration.reporting import check_installed, report_result
from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.trainable import get_context

__all__ = ["load_sharded_state", "load_state", "report_sharded_state", "report_state"]

_FILENAME: Final = "state.pt"

#: The beginning of the names of further values in a sharded checkpoint.
_PLAIN: Final = "plain."


@runtime_checkable
class _Stateful(Protocol):
    """An object with a state: a module, an optimizer, a learning rate scheduler, and so on."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> object: ...


def report_state(metrics: Mapping[str, Any], **parts: Any) -> None:
    """Report a result with a checkpoint of the training's state.

    The checkpoint is loaded without unpickling code, so it may hold tensors and plain data only.
    In a trial of :func:`~dasktune.with_ranks` all ranks call this, and rank 0 saves: give it the
    module that DDP wraps, and not the wrapper. For a state that is divided between ranks, as with
    FSDP, use :func:`report_sharded_state`.

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
    _torch()
    is_first = get_context().get_world_rank() == 0
    report_result(metrics, partial(_save, parts) if is_first else None)


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


def report_sharded_state(
    metrics: Mapping[str, Any], model: Any, optimizers: Any = (), /, **plain: Any
) -> None:
    """Report a result with a checkpoint to which each rank writes its own part of the state.

    All ranks of a trial of :func:`~dasktune.with_ranks` call this. The state is saved by
    ``torch.distributed.checkpoint``, so other numbers of ranks can load it. What all ranks have in
    common is written once.

    Parameters
    ----------
    metrics : mapping
        The result; see :func:`dasktune.report`.
    model : torch.nn.Module
        The model, with FSDP, DDP or tensor parallelism or without.
    optimizers : torch.optim.Optimizer or iterable of them, default=()
        Its optimizers.
    **plain
        Further values by names of your choice: numbers, strings, tensors, and lists and dicts of
        them. Those of rank 0 are saved.

    Raises
    ------
    ConfigError
        If PyTorch is not installed.
    TrialInterrupted
        If the trial must end. It is not an `Exception`: do not catch it, clean up in ``finally``.

    Examples
    --------
    >>> def train(config):
    ...     torch.distributed.init_process_group()
    ...     fully_shard(model)
    ...     state = load_sharded_state(tune.get_checkpoint(), model, optimizer, epoch=0)
    ...     for epoch in range(state["epoch"], 10):
    ...         loss = train_epoch(model, optimizer)
    ...         report_sharded_state({"loss": loss}, model, optimizer, epoch=epoch + 1)
    """
    report_result(metrics, partial(_save_shards, model, optimizers, plain))


def load_sharded_state(
    checkpoint: Checkpoint | None, model: Any, optimizers: Any = (), /, **plain: Any
) -> dict[str, Any]:
    """Restore a training to the state that :func:`report_sharded_state` has saved.

    Each rank reads the parts that it needs, whatever the number of ranks was. Without a process
    group the whole state is read. ``torch.distributed.checkpoint`` unpickles parts of its files, so
    load only checkpoints from a source that you trust.

    Parameters
    ----------
    checkpoint : Checkpoint or None
        ``tune.get_checkpoint()``, or the checkpoint of a result. None changes nothing.
    model : torch.nn.Module
        The model, whose weights are overwritten.
    optimizers : torch.optim.Optimizer or iterable of them, default=()
        Its optimizers, whose state is overwritten.
    **plain
        The further values, as they were reported; the given values are the defaults if there is no
        checkpoint.

    Returns
    -------
    dict
        The further values, such as ``{"epoch": 3}``.

    Raises
    ------
    ConfigError
        If PyTorch is not installed, or the checkpoint lacks a further value.

    Examples
    --------
    >>> load_sharded_state(results.get_best_result().checkpoint, model)  # doctest: +SKIP
    {}
    """
    dcp, states = _dcp()
    if checkpoint is None:
        return plain
    with checkpoint.as_directory() as directory:
        saved = dcp.FileSystemReader(directory).read_metadata().state_dict_metadata
        # Lists and dicts are saved item by item, as in "plain.sizes.0".
        names = {name.split(".")[1] for name in saved if name.startswith(_PLAIN)}
        lacking = sorted(plain.keys() - names)
        check(not lacking, "plain", "in the checkpoint", lacking, f"It has {sorted(names)}.")
        weights, moments = states.get_state_dict(model, optimizers)
        state = {"model": weights, "optimizers": moments, _PLAIN.rstrip("."): dict(plain)}
        with _with_or_without_group() as no_dist:
            dcp.load(state, checkpoint_id=directory, no_dist=no_dist)
        states.set_state_dict(
            model, optimizers, model_state_dict=state["model"], optim_state_dict=state["optimizers"]
        )
    loaded: dict[str, Any] = state[_PLAIN.rstrip(".")]
    return loaded


def _save_shards(model: Any, optimizers: Any, plain: Mapping[str, Any], directory: str) -> None:
    dcp, states = _dcp()
    weights, moments = states.get_state_dict(model, optimizers)
    state = {"model": weights, "optimizers": moments, _PLAIN.rstrip("."): dict(plain)}
    with _with_or_without_group() as no_dist:
        dcp.save(state, checkpoint_id=directory, no_dist=no_dist)


@contextmanager
def _with_or_without_group() -> Iterator[bool]:
    """Return whether there is no process group; PyTorch does not warn of it in the block."""
    distributed = _torch().distributed
    has_group = distributed.is_available() and distributed.is_initialized()
    with warnings.catch_warnings():
        if not has_group:
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield not has_group


def _dcp() -> tuple[Any, Any]:
    """Return the modules of PyTorch that save and collect the state of distributed trainings."""
    _torch()
    import torch.distributed.checkpoint as dcp
    import torch.distributed.checkpoint.state_dict as states

    return dcp, states


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
