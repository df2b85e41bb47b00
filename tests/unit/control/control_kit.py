"""A runner that a thread drives, and a control server for it."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dasktune.config import RunConfig, TuneConfig
from dasktune.control import TuneClient
from dasktune.control.server import ControlServer
from dasktune.runner import TrialRunner
from dasktune.runner.build import build_experiment
from dasktune.space import uniform
from dasktune.space.inspection import check_config
from dasktune.testing import ManualClock, MemoryStore, SimulatedTrialExecutor
from dasktune.trial.resources import PlacementGroupFactory

TOKEN = "the-token-of-the-tests"
SPACE = {"lr": uniform(0, 1)}


def told_secret(text: str, title: str) -> str | None:
    """Return what the file has of which a driver tells the path; None if it has not told it yet."""
    found = re.search(rf"^{title}: see (\S+), which contains a token", text, re.MULTILINE)
    return None if found is None else Path(found[1]).read_text(encoding="utf-8").strip()


def told_client(capsys: pytest.CaptureFixture[str], is_running: Callable[[], bool]) -> TuneClient:
    """Return the client of which a driver in this process tells, as soon as it does."""
    told = ""
    while (call := told_secret(told, "Control")) is None:
        assert is_running()
        threading.Event().wait(0.1)
        told += capsys.readouterr().err
    found = re.fullmatch(r"TuneClient\('(\S+)', token='(\S+)'\)", call)
    assert found is not None
    return TuneClient(*found.groups())


class Waking(SimulatedTrialExecutor):
    """Waits a moment where nothing happens, until it is woken."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.woken = threading.Event()

    def next_events(self, timeout: float) -> Any:
        self.woken.wait(0.005)
        self.woken.clear()
        return super().next_events(timeout)

    def wake(self) -> None:
        self.woken.set()


def endless(config: dict[str, Any], checkpoint: Any) -> Any:
    step = checkpoint or 0
    while True:
        step += 1
        loss = float("nan") if step == 1 else config["lr"] / step
        yield {"loss": loss}, 1.0, step


class Controlled:
    """An experiment that runs until it is stopped, and a server for it."""

    def __init__(
        self, store: MemoryStore | None = None, *, public_metrics: bool = False, **tune: Any
    ) -> None:
        config = {"metric": "loss", "mode": "min", "num_samples": 4, "seed": 0, **tune}
        clock = ManualClock()
        self.experiment = build_experiment(TuneConfig(**config), RunConfig(), SPACE)
        self.store = store or MemoryStore()
        one_cpu = PlacementGroupFactory([{"CPU": 1}])
        self.runner = TrialRunner(
            self.experiment,
            Waking(endless, clock=clock, slots=2),
            store=self.store,
            clock=clock,
            resources_for=lambda config: one_cpu,
        )
        self.runner.commands.config_rule = lambda config: check_config(SPACE, config)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.server = ControlServer(self.runner.commands, token=TOKEN, public_metrics=public_metrics)
        self.client = TuneClient(self.server.url, TOKEN)

    def _run(self) -> None:
        try:
            self.runner.run()
        except BaseException as error:
            self.error = error

    @property
    def runs(self) -> bool:
        return self._thread.is_alive() and self.error is None

    def wait(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()

    def close(self) -> None:
        self.runner.interrupt()
        self.wait()
        self.server.close()
        assert self.error is None

    def until(self, status: str, count: int = 1) -> list[Any]:
        """Return the trials with a status as soon as there are so many."""
        while len(found := self.client.get_all_trials(status=status)) < count:
            assert self.runs
        return found

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        token: str | None = TOKEN,
        **headers: str,
    ) -> tuple[int, dict[str, str], Any]:
        """Return status, headers and JSON of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            told.setdefault("Authorization", f"Bearer {token}")
        if body is not None:
            told.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, body=body, headers=told)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, dict(answer.getheaders()), json.loads(text) if text else None
        finally:
            connection.close()
