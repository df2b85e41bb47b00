"""Who gets what goes along with the data of an incremental search."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any
from warnings import warn

from sklearn.metrics import check_scoring
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing

from dasktune.sklearn.blocks import Block, is_of_samples
from dasktune.sklearn.compat import check_method_params, routing_enabled
from dasktune.sklearn.site import in_memory

__all__ = ["Routed", "of_samples", "router_of", "score_params_of", "sorted_out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """Which parameters of `fit` the models and their scorer get.

    Both are names of parameters of `fit`, by what they are called there.

    Parameters
    ----------
    fit, score : mapping of str to str
        For `partial_fit` and for the scorer.
    """

    fit: Mapping[str, str] = field(default_factory=dict)
    score: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, search: Any, scorer: Any, params: Mapping[str, Any]) -> Routed:
        """Return what a search does with parameters of its `fit`.

        Parameters
        ----------
        search : estimator
            The search.
        scorer : callable
            Its scorer.
        params : mapping
            The parameters.

        Raises
        ------
        UnsetMetadataPassedError
            With metadata routing, if nobody has said whether a parameter is wanted.
        """
        given = {name: value for name, value in params.items() if value is not None}
        if routing_enabled():
            routed = process_routing(search, "fit", **given)
            return cls(
                fit=_names(routed.estimator.partial_fit, given),
                score=_names(routed.scorer.score, given),
            )
        names = {name: name for name in given}
        if "sample_weight" not in given or not _takes_weights(scorer):
            return cls(fit=names)
        return cls(fit=names, score={"sample_weight": "sample_weight"})

    def columns(self, known: Container[str]) -> tuple[dict[str, str], dict[str, str]]:
        """Return those of both that have a value for each sample.

        Parameters
        ----------
        known : container of str
            The parameters of `fit` that have one.
        """
        return _within(self.fit, known), _within(self.score, known)

    def values(self, params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return those of both that are the same for all samples.

        Parameters
        ----------
        params : mapping
            The parameters of `fit` that are.
        """
        fit, score = _within(self.fit, params), _within(self.score, params)
        return (
            {name: params[own] for name, own in fit.items()},
            {name: params[own] for name, own in score.items()},
        )


def _within(names: Mapping[str, str], known: Container[str]) -> dict[str, str]:
    return {name: own for name, own in names.items() if own in known}


def _names(routed: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, str]:
    """Return under which name each value was given to `fit`."""
    found = {id(value): name for name, value in given.items()}
    return {name: found[id(value)] for name, value in routed.items()}


def _takes_weights(scorer: Any) -> bool:
    """Whether a scorer takes weights of samples; says so if not, as scikit-learn does."""
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


def of_samples(X: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return those parameters of `fit` that have a value for each sample, which can be chosen.

    Parameters
    ----------
    X : object
        The samples, in memory.
    params : mapping
        The parameters.
    """
    size = len(Block(X, None))
    named = {
        name: value
        for name, value in params.items()
        if name != "classes" and is_of_samples(value, size)
    }
    return dict(check_method_params(X, params=named))


def sorted_out(client: Any, params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what may have a value for each sample of a collection, and what has none.

    Parameters
    ----------
    client : object
        What names the cluster that computes the latter.
    params : mapping
        The parameters of `fit`.
    """
    more = dict(params)
    rest = {name: more.pop(name) for name in params if name == "classes"}
    return more, in_memory(client, None, None, rest)[2]


def router_of(search: Any) -> MetadataRouter:
    """Return what scikit-learn's metadata routing knows of an incremental search.

    Parameters
    ----------
    search : estimator
        The search.
    """
    router = MetadataRouter(owner=search)
    router.add(
        estimator=search.estimator,
        method_mapping=MethodMapping().add(caller="fit", callee="partial_fit"),
    )
    router.add(
        scorer=check_scoring(search.estimator, scoring=search.scoring),
        method_mapping=MethodMapping()
        .add(caller="score", callee="score")
        .add(caller="fit", callee="score"),
    )
    return router


def score_params_of(search: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the scorer gets of what `score` is given.

    Parameters
    ----------
    search : estimator
        The search.
    params : mapping
        What `score` is given.
    """
    if not routing_enabled():
        return dict(params)
    return dict(process_routing(search, "score", **params).scorer.score)
