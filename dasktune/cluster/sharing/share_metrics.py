"""The shares of the experiments as metrics of Prometheus on Dask's scheduler.

This module travels by value to schedulers without dasktune.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("distributed.dasktune")


class ShareCollector:
    """The shares as metrics of Prometheus, which Dask's scheduler shows at ``/metrics``.

    Dask shows metrics if ``prometheus_client`` is installed where the scheduler runs. They are read
    from the plugin when a scraper requests them, on the scheduler's event loop.
    """

    #: The metrics: name, help, and the key in the summary of an experiment.
    METRICS = (
        ("dasktune_share_held", "Fraction of the cluster that the experiment holds.", "share"),
        ("dasktune_share_due", "Fraction that is due to it; absent while no experiment waits.", "due"),
        ("dasktune_waiting_trials", "Trials that would start now if they had room.", "waiting"),
    )

    def __init__(self, experiments: Callable[[], list[dict[str, Any]]], core: Any, registry: Any) -> None:
        self._experiments, self._core, self._registry = experiments, core, registry

    @classmethod
    def registered(cls, experiments: Callable[[], list[dict[str, Any]]]) -> ShareCollector | None:
        """Return a registered collector; None if there are no metrics in this process."""
        try:
            from prometheus_client import REGISTRY, core
        except ImportError:
            return None
        collector = cls(experiments, core, REGISTRY)
        REGISTRY.register(collector)
        return collector

    def unregister(self) -> None:
        """Remove the metrics."""
        self._registry.unregister(self)

    def describe(self) -> list[Any]:
        """Return nothing, so that two schedulers of one process may have the same metrics."""
        return []

    def collect(self) -> list[Any]:
        """Return the metrics now; experiments of the same name are added up."""
        try:
            experiments = self._experiments()
        except Exception:
            # A bug here must not take away Dask's own metrics.
            logger.exception("the shares of the cluster could not be measured")
            return []
        families = []
        for name, text, key in self.METRICS:
            sums: dict[str, float] = {}
            for one in experiments:
                if one[key] is not None:
                    sums[one["name"]] = sums.get(one["name"], 0.0) + one[key]
            family = self._core.GaugeMetricFamily(name, text, labels=["experiment"])
            for label, value in sums.items():
                family.add_metric([label], value)
            families.append(family)
        return families
