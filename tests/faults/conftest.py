"""What all tests of faults share: one cluster of single processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import cloudpickle
import cluster_kit
import fault_kit
import pytest
from cluster_kit import Fleet
from distributed import Client

# What `Client.run` calls there: a worker process cannot import these directories.
cloudpickle.register_pickle_by_value(cluster_kit)
cloudpickle.register_pickle_by_value(fault_kit)


@pytest.fixture(scope="module")
def fleet(folder_scope: Any, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """A cluster of single processes; each test says how many workers it wants."""

    def start(stack: ExitStack) -> Fleet:
        return stack.enter_context(closing(Fleet(tmp_path_factory.mktemp("fleet"))))

    fleet: Fleet = folder_scope.shared("fleet", start)
    return fleet


@pytest.fixture
def client(fleet: Fleet) -> Iterator[Client]:
    """Somebody else's client."""
    with fleet.client() as client:
        yield client
