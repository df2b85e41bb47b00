"""Metadata routing of incremental searches: from ``fit`` to ``partial_fit`` and the scorer."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any
from warnings import warn

from sklearn.metrics import check_scoring
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing

from dasktune.sklearn.compat import check_method_params, routing_enabled
from dasktune.sklearn.fits.backend import compute_collections
from dasktune.sklearn.incremental.blocks import Block, is_per_sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """The parameters of `fit` that are routed to the models and to the scorer.

    Parameters
    ----------
    fit, score : mapping of str to str
        The routed parameters: ``{name for partial_fit or the scorer: name in fit}``.
    """

    fit: Mapping[str, str] = field(default_factory=dict)
    score: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, search: Any, scorer: Any, params: Mapping[str, Any]) -> Routed:
        """Route the parameters of a search's `fit`.

        Parameters
        ----------
        search : estimator
            The search.
        scorer : callable
            The scorer of the search.
        params : mapping
            The parameters.

        Raises
        ------
        UnsetMetadataPassedError
            With metadata routing, if a given parameter has been neither requested nor refused.
        """
        given = {name: value for name, value in params.items() if value is not None}
        if routing_enabled():
            routed = process_routing(search, "fit", **given)
            return cls(
                fit=_names_in_fit(routed.estimator.partial_fit, given),
                score=_names_in_fit(routed.scorer.score, given),
            )
        names = {name: name for name in given}
        if "sample_weight" not in given or not _accepts_weights(scorer):
            return cls(fit=names)
        return cls(fit=names, score={"sample_weight": "sample_weight"})

    def columns(self, known: Container[str]) -> tuple[dict[str, str], dict[str, str]]:
        """Return the routed parameters with a value for each sample, for the models and the scorer.

        Parameters
        ----------
        known : container of str
            The names of all parameters of `fit` with a value for each sample.
        """
        return _select(self.fit, known), _select(self.score, known)

    def values(self, params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the routed parameters with a single value, for the models and the scorer.

        Parameters
        ----------
        params : mapping
            All parameters of `fit` with a single value, by name.
        """
        fit, score = _select(self.fit, params), _select(self.score, params)
        return (
            {name: params[own] for name, own in fit.items()},
            {name: params[own] for name, own in score.items()},
        )


def _select(names: Mapping[str, str], known: Container[str]) -> dict[str, str]:
    return {name: own for name, own in names.items() if own in known}


def _names_in_fit(routed: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, str]:
    """Return the name in `fit` of each routed value; values are compared by identity."""
    found = {id(value): name for name, value in given.items()}
    return {name: found[id(value)] for name, value in routed.items()}


def _accepts_weights(scorer: Any) -> bool:
    """Return whether a scorer takes sample weights, and warn if not, as scikit-learn does."""
    if hasattr(scorer, "_accept_sample_weight"):
        takes = bool(scorer._accept_sample_weight())
    else:
        takes = "sample_weight" in signature(scorer).parameters
    if not takes:
        warn(
            f"The scoring {scorer} does not support sample_weight, which may lead to "
            "statistically incorrect results when fitting with sample_weight.",
            UserWarning,
            stacklevel=6,
        )
    return takes


def select_per_sample(X: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of `fit` with a value for each sample, converted to be indexable.

    Parameters
    ----------
    X : object
        The samples, in memory.
    params : mapping
        The parameters of `fit`.
    """
    size = len(Block(X, None))
    named = {
        name: value for name, value in params.items() if name != "classes" and is_per_sample(value, size)
    }
    return dict(check_method_params(X, params=named))


def split_by_consumer(client: Any, params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters that may have a value for each sample, and ``classes``, computed.

    Parameters
    ----------
    client : object
        The client, the cluster object or the address of the cluster that computes ``classes``.
    params : mapping
        The parameters of `fit`.
    """
    more = dict(params)
    rest = {name: more.pop(name) for name in params if name == "classes"}
    return more, compute_collections(client, None, None, rest)[2]


def router_of(search: Any) -> MetadataRouter:
    """Return the metadata router of an incremental search.

    Parameters
    ----------
    search : estimator
        The search.
    """
    router = MetadataRouter(owner=search)
    router.add(
        estimator=search.estimator, method_mapping=MethodMapping().add(caller="fit", callee="partial_fit")
    )
    router.add(
        scorer=check_scoring(search.estimator, scoring=search.scoring),
        method_mapping=MethodMapping().add(caller="score", callee="score").add(caller="fit", callee="score"),
    )
    return router


def score_params_of(search: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a search's `score`, routed to the scorer.

    Parameters
    ----------
    search : estimator
        The search.
    params : mapping
        The parameters of `score`.
    """
    if not routing_enabled():
        return dict(params)
    return dict(process_routing(search, "score", **params).scorer.score)
