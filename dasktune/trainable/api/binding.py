"""Validates trainables, and binds parameters and resources to them."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from dasktune.config.validation import is_safe_name, normalised_name
from dasktune.errors import ConfigError, TuneError, check
from dasktune.trainable.api.trainable import Trainable
from dasktune.trainable.ranks import RankRequest
from dasktune.trial.resources import PlacementGroupFactory, as_placement_group

#: A function of the configuration.
TrainableFunction = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class BoundFunction:
    """A function trainable with bound parameters and resources; called like the function."""

    function: TrainableFunction
    parameters: Mapping[str, Any] = field(default_factory=dict, repr=False)
    #: The resources given to :func:`with_resources`; None if it was not called.
    resources: Any = None
    #: The ranks given to :func:`~dasktune.with_ranks`; None if a trial is one process.
    ranks: RankRequest | None = None

    def __call__(self, config: dict[str, Any]) -> Any:
        """Run the function with its bound parameters."""
        return self.function(config, **self.parameters)


def validate_trainable(trainable: object) -> None:
    """Check that a trainable can be tuned.

    Raises
    ------
    ConfigError
        If it is neither a complete subclass of :class:`Trainable` nor a function of exactly one
        positional argument, the configuration.

    Examples
    --------
    >>> validate_trainable(lambda config: 0.5)
    >>> validate_trainable(lambda: 0.5)
    Traceback (most recent call last):
        ...
    dasktune.errors.ConfigError: trainable must be a function of exactly one positional argument, \
the configuration, got <lambda>(). Bind other arguments with with_parameters().
    """
    if isinstance(trainable, type):
        _validate_class(trainable)
    elif callable(trainable):
        _validate_function(trainable)
    else:
        hint = "Pass the function itself: train, not train(config)."
        if isinstance(trainable, Trainable):
            hint = f"Pass the class and not an object: {type(trainable).__name__}."
        check(False, "trainable", "a function or a subclass of Trainable", trainable, hint)


def _validate_class(trainable: type) -> None:
    hint = "Derive it from dasktune.Trainable, or pass a function."
    check(issubclass(trainable, Trainable), "trainable", "a subclass of Trainable", trainable, hint)
    check(
        not inspect.isabstract(trainable),
        "trainable",
        "a subclass of Trainable that defines step()",
        trainable,
    )
    try:
        signature = inspect.signature(trainable)
    except (TypeError, ValueError):  # a metaclass without a known signature
        return
    try:
        signature.bind({})
    except TypeError as error:
        raise ConfigError(
            f"trainable must be a class that is built of a configuration alone, got "
            f"{trainable.__name__}{signature}. Remove __init__() and build the model in "
            "setup(self, config); pass other arguments by with_parameters()."
        ) from error


def _validate_setup(trainable: type, parameters: Mapping[str, Any]) -> None:
    signature = inspect.signature(trainable.setup)  # type: ignore[attr-defined]
    try:
        signature.bind_partial(None, {}, **parameters)
    except TypeError as error:
        raise ConfigError(
            f"trainable must be a class whose setup() takes {', '.join(parameters)}, "
            f"got {trainable.__name__}.setup{signature}"
        ) from error


def _validate_function(trainable: TrainableFunction) -> None:
    bound = trainable if isinstance(trainable, BoundFunction) else BoundFunction(trainable)
    function = bound.function
    check(
        not _is_asynchronous(function),
        "trainable",
        "a plain function, not a coroutine",
        function,
        "Write `def` and run the coroutine in it with asyncio.run().",
    )
    try:
        signature = inspect.signature(function)
    except ValueError as error:
        raise ConfigError(
            f"trainable must be a function whose arguments are known, got {function!r}. "
            f"Wrap it in a Python function."
        ) from error
    try:
        signature.bind({}, **bound.parameters)
    except TypeError as error:
        unknown = [name for name in bound.parameters if not _takes(signature, name)]
        if unknown:
            raise ConfigError(
                f"trainable must be a function that takes {', '.join(unknown)}, which with_parameters() "
                f"binds, got {_shown(function)}{signature}. Add it after the configuration."
            ) from error
        raise ConfigError(
            f"trainable must be a function of exactly one positional argument, the configuration, "
            f"got {_shown(function)}{signature}. {_advice(signature)}"
        ) from error


def _takes(signature: inspect.Signature, name: str) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    given = signature.parameters.get(name)
    return given is not None and given.kind in kinds


def _advice(signature: inspect.Signature) -> str:
    """Return advice for the other arguments, which may be those of older versions of Ray Tune."""
    if "reporter" in list(signature.parameters)[1:]:
        return "Remove `reporter`, and call dasktune.report({...}) instead of reporter(...)."
    if "checkpoint_dir" in list(signature.parameters)[1:]:
        return "Remove `checkpoint_dir`, and call dasktune.get_checkpoint() instead."
    return "Bind other arguments with with_parameters()."


def _is_asynchronous(function: TrainableFunction) -> bool:
    candidates = (function, getattr(type(function), "__call__", None))  # noqa: B004 - not a test
    return any(
        inspect.iscoroutinefunction(candidate) or inspect.isasyncgenfunction(candidate)
        for candidate in candidates
    )


def _shown(function: TrainableFunction) -> str:
    return getattr(function, "__name__", type(function).__name__)


def experiment_name(trainable: object) -> str:
    """Return a unique name for an experiment: the trainable's name, the time and a random part."""
    now = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    # Two experiments may start within a second.
    end = f"{now}_{uuid.uuid4().hex[:4]}"
    name = trainable_name(trainable)
    if not is_safe_name(f"{name}_{end}"):
        # A program may give a function any `__name__`.
        name = re.sub(r"[^\w=+@-]", "_", name)[:40]
    return normalised_name(f"{name}_{end}")


def trainable_name(trainable: object) -> str:
    """Return the name of a trainable, fit for a directory.

    Examples
    --------
    >>> trainable_name(functools.partial(print, end="")), trainable_name(lambda config: 1)
    ('print', 'lambda')
    """
    if isinstance(trainable, BoundFunction):
        return trainable_name(trainable.function)
    if isinstance(trainable, functools.partial):
        return trainable_name(trainable.func)
    name = getattr(trainable, "__name__", type(trainable).__name__)
    return str(name).strip("<>")


def code_address(trainable: object) -> str | None:
    """Return where a trainable is defined, as ``dasktune resume`` loads it.

    Parameters
    ----------
    trainable : object
        The trainable.

    Returns
    -------
    str or None
        ``/path/script.py:name`` or ``package.module:name``; None if no name leads to this object,
        as in a notebook, or if it is bound to parameters.

    Examples
    --------
    >>> code_address(trainable_name), code_address(lambda config: 1)
    ('dasktune.trainable.api.binding:trainable_name', None)
    """
    where, name = getattr(trainable, "__module__", None), getattr(trainable, "__qualname__", "")
    module = sys.modules.get(where or "")
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if module is None or found is not trainable:
        return None
    if where != "__main__":
        return f"{where}:{name}"
    # `python -m package.module` gives the module a name of its own.
    spec, script = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    if spec is not None:
        return f"{spec.name}:{name}"
    return f"{os.path.abspath(script)}:{name}" if script else None


def with_parameters(trainable: Any, **parameters: Any) -> Any:
    """Bind objects that are not hyperparameters, such as a data set, to a trainable.

    An object of more than 1 MB when pickled is kept once in each worker process, for all trials
    there. Treat such an object as read-only, and copy what you want to change: numpy arrays raise
    an error when written to, other objects do not. Smaller objects are sent with the trainable. So
    are objects in a closure, a global variable, a default argument or a `functools.partial`, of any
    size.

    Parameters
    ----------
    trainable : type or callable
        A function gets the parameters as keyword arguments beside the configuration, a class in
        ``setup(config, **parameters)``.
    **parameters
        The objects.

    Returns
    -------
    type or callable
        A new trainable; the given one is not changed.

    Raises
    ------
    ConfigError
        If the trainable cannot be tuned with these parameters.

    Examples
    --------
    >>> train = with_parameters(lambda config, data: config["x"] * len(data), data=[1, 2, 3])
    >>> train({"x": 2})
    6
    """
    if isinstance(trainable, type):
        _validate_class(trainable)
        _validate_setup(trainable, parameters)
        setup = _bound_setup(trainable, parameters)
        return _subclass(trainable, setup=setup, bound_parameters=parameters)
    check(callable(trainable), "trainable", "a function or a subclass of Trainable", trainable)
    bound = trainable if isinstance(trainable, BoundFunction) else BoundFunction(trainable)
    bound = replace(bound, parameters={**bound.parameters, **parameters})
    _validate_function(bound)
    return bound


def bound_parameters(trainable: Any) -> list[tuple[str, Any]]:
    """Return names and values of the objects that :func:`with_parameters` bound to a trainable.

    Examples
    --------
    >>> bound_parameters(with_parameters(lambda config, data: 0, data=[1, 2]))
    [('data', [1, 2])]
    """
    if isinstance(trainable, type):
        # Objects bound to a base class are kept, although a subclass may override them.
        levels = [vars(level).get("bound_parameters", {}) for level in trainable.__mro__]
    else:
        levels = [trainable.parameters] if isinstance(trainable, BoundFunction) else []
    return [item for level in levels for item in level.items()]


def with_resources(trainable: Any, resources: Any) -> Any:
    """Attach resources to a trainable: each of its trials gets them.

    Parameters
    ----------
    trainable : type or callable
        A subclass of :class:`Trainable` or a function.
    resources : mapping, Resources, PlacementGroupFactory or callable
        The resources, or a function that returns them for a configuration.

    Returns
    -------
    type or callable
        A new trainable; the given one is not changed.

    Raises
    ------
    ConfigError
        If the trainable cannot be tuned, or the resources are not valid.

    Examples
    --------
    >>> default_resources(with_resources(lambda config: 1, {"cpu": 2}), {})
    PlacementGroupFactory([{'CPU': 2}])
    """
    validate_trainable(trainable)
    if not callable(resources):
        resources = as_placement_group(resources)
    if isinstance(trainable, type):
        # staticmethod: a bare function would become a method.
        attached = staticmethod(resources) if callable(resources) else resources
        return _subclass(trainable, attached_resources=attached)
    bound = trainable if isinstance(trainable, BoundFunction) else BoundFunction(trainable)
    hint = "Give the resources of each rank to with_ranks()."
    check(bound.ranks is None, "trainable", "one process for with_resources()", trainable_name(bound), hint)
    return replace(bound, resources=resources)


def default_resources(trainable: Any, config: dict[str, Any]) -> PlacementGroupFactory:
    """Return the resources of a trial of `trainable` with this configuration; by default one CPU.

    Raises
    ------
    TuneError
        If the class requests resources and :func:`with_resources` attached others.
    """
    if isinstance(trainable, type):
        attached = trainable.attached_resources  # type: ignore[attr-defined]
        own = trainable.default_resource_request(config)  # type: ignore[attr-defined]
    else:
        attached = trainable.resources if isinstance(trainable, BoundFunction) else None
        own = None
    if own is not None and attached is not None:
        raise TuneError(
            f"resources must be given in one place, got with_resources() and "
            f"default_resource_request() of {trainable_name(trainable)}. Remove one of them."
        )
    request = own if own is not None else attached
    return as_placement_group(request(config) if callable(request) else request)


def resource_help(trainable: Any, config: dict[str, Any]) -> str:
    """Return the hint of a class for a cluster that lacks its resources; empty without a hint.

    Parameters
    ----------
    trainable : callable or type
        The trainable.
    config : dict
        The search space.
    """
    if not (isinstance(trainable, type) and issubclass(trainable, Trainable)):
        return ""
    try:
        return str(trainable.resource_help(config) or "")
    except Exception as error:  # the user's code may raise anything
        return f"(resource_help() of {trainable.__name__} raised {error!r})"


def _subclass(trainable: type, **attributes: Any) -> type:
    """Return a subclass with the name and the docstring of its parent."""
    names = ("__module__", "__qualname__", "__doc__")
    same = {name: getattr(trainable, name) for name in names}
    return type(trainable)(trainable.__name__, (trainable,), {**same, **attributes})


def _bound_setup(trainable: type, parameters: Mapping[str, Any]) -> TrainableFunction:
    parent: TrainableFunction = trainable.setup  # type: ignore[attr-defined]

    # Parameters that are bound to a subclass of this one come in `more`.
    def setup(self: Trainable, config: dict[str, Any], **more: Any) -> None:
        parent(self, config, **{**parameters, **more})

    return setup
