"""Trials that must stop while their storage cannot be reached."""

from __future__ import annotations

import threading

from trial_run_kit import Driver

from dasktune.storage.checkpoints.checkpoint import Checkpoint
from dasktune.storage.fs.storage import Storage
from dasktune.trainable.api.session import report
from dasktune.trainable.reporting.trial_messages import Stopped


class AwayStorage(Storage):
    """A storage to which nothing can be written."""

    asked = threading.Event()

    def create(self, name, data, *, durable=False):
        self.asked.set()
        raise ConnectionRefusedError("away")

    def with_retry(self, seconds, still_needed=None):
        return AwayStorage(self.url, self.storage_options, seconds, still_needed)

    def child(self, *parts):
        return AwayStorage(super().child(*parts).url, {}, self.retry_seconds, self.still_needed)


def train(config):
    report({"step": 1}, checkpoint=Checkpoint.from_dict({"step": 1}))


def test_a_trial_that_is_to_stop_does_not_wait_for_a_storage_that_is_away():
    storage = AwayStorage("memory://away", {}, 3600.0)
    driver = Driver(train, storage=storage)
    assert storage.asked.wait(30)
    driver.run.stop("it is enough")
    assert isinstance(driver.end(), Stopped)
    assert driver.results == []
