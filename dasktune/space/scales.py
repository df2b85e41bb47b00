"""How the parameters of a search space are spread, for axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dasktune.space.ranges import Float, Integer
from dasktune.space.samplers import LogUniform, Quantized
from dasktune.trial.metrics import flatten

__all__ = ["scales_of"]


def scales_of(space: Mapping[str, Any]) -> dict[str, str]:
    """Return ``"log"`` or ``"linear"`` for each parameter that is drawn from a range.

    Parameters
    ----------
    space : mapping
        A search space. Nested names are joined by ``/``; what is within lists is left out.

    Examples
    --------
    >>> from dasktune.space import choice, loguniform, uniform
    >>> scales_of({"lr": loguniform(1e-4, 1), "net": {"p": uniform(0, 1)}, "opt": choice(["a"])})
    {'lr': 'log', 'net/p': 'linear'}
    """
    return {
        name: "log" if _is_log(domain) else "linear"
        for name, domain in flatten(space).items()
        if isinstance(domain, Float | Integer)
    }


def _is_log(domain: Float | Integer) -> bool:
    sampler = domain.sampler
    if isinstance(sampler, Quantized):
        sampler = sampler.sampler
    return isinstance(sampler, LogUniform)
