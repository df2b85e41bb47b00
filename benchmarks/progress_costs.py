"""What the progress display costs the driver, for each result and for each redraw.

``python -m benchmarks.progress_costs`` prints a table.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable

from numpy.random import SeedSequence, default_rng

from dasktune.callback import TrialStorage
from dasktune.experiment import ExperimentMachine, ExperimentSettings
from dasktune.progress import PlainLines, ProgressObserver, TrialCounts
from dasktune.progress.notebook import progress_html
from dasktune.progress.reporter import CLIReporter
from dasktune.progress.rich_display import LiveTable
from dasktune.schedulers import FIFOScheduler
from dasktune.search import BasicVariantGenerator
from dasktune.stopper import NoopStopper
from dasktune.storage.fs.storage import Storage
from dasktune.trial.events import ResourcesGranted, ResultReported, Suggested, TrialStarted
from dasktune.trial.resources import PlacementGroupFactory

CPU = PlacementGroupFactory([{"CPU": 1}])
#: Results of each trial that are measured.
RESULTS = 5


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def running_experiment(trials: int) -> ExperimentMachine:
    experiment = ExperimentMachine(
        ExperimentSettings(metric="loss", mode="min"),
        search=BasicVariantGenerator(),
        scheduler=FIFOScheduler(),
        criteria=NoopStopper(),
        stopper=NoopStopper(),
        seed=SeedSequence(0),
    )
    for n in range(trials):
        trial_id, config = experiment.next_trial_id, {"lr": n / trials, "depth": n % 9}
        experiment.handle(Suggested(trial_id=trial_id, config=config, time=0.0, resources=CPU))
        experiment.handle(ResourcesGranted(trial_id=trial_id, time=0.0))
        started = TrialStarted(trial_id=trial_id, incarnation=1, time=0.0, worker=f"w{n % 50}")
        experiment.handle(started)
    return experiment


def measure(trials: int, order: str) -> tuple[float, TrialCounts, ProgressObserver]:
    """Return the seconds of a result, and the counts and the observer after all of them."""
    experiment = running_experiment(trials)
    places = TrialStorage(trainable_name="t", storage=Storage("memory://b"), checkpoint=None)
    counts = TrialCounts(experiment.trials, places, metric="loss", mode="min", order=order)
    observer = ProgressObserver(PlainLines(io.StringIO()), counts, total=trials)
    rng, spent = default_rng(0), 0.0
    ids = list(experiment.trials)
    for seq in range(1, RESULTS + 1):
        for trial_id in ids:
            metrics = {"loss": float(rng.random()), "training_iteration": seq}
            event = ResultReported(trial_id=trial_id, incarnation=1, seq=seq, metrics=metrics, time=1.0)
            handled = experiment.handle(event)
            begin = time.thread_time()
            observer.on_event(event, handled, experiment)
            spent += time.thread_time() - begin
    return spent / (RESULTS * trials), counts, observer


def seconds_of(call: Callable[[], object], times: int = 30) -> float:
    call()
    begin = time.thread_time()
    for _ in range(times):
        call()
    return (time.thread_time() - begin) / times


def draws(counts: TrialCounts, observer: ProgressObserver) -> tuple[float, float]:
    """Return the seconds of a redraw in a terminal, and of one in a notebook."""
    live = LiveTable(Terminal())
    rich = seconds_of(lambda: live.show(observer._progress(), counts))
    live.close()
    return rich, seconds_of(lambda: progress_html(observer._progress(), counts))


def report(counts: TrialCounts) -> float:
    """Return the seconds of a report with tables by `CLIReporter`."""
    reporter = CLIReporter()
    reporter.setup(metric="loss", mode="min")
    reporter._print = lambda text: None
    return seconds_of(lambda: reporter.report(counts, False))


def main() -> None:
    os.environ |= {"COLUMNS": "120", "LINES": "40"}
    header = "trials", "result us", "by last us", "rich ms", "html ms", "table ms"
    print(*(f"{head:>10}" for head in header))
    for trials in (1_000, 10_000):
        spent, counts, observer = measure(trials, "best")
        by_last, _, _ = measure(trials, "last")
        _, made, _ = measure(trials, "made")
        rich, html = draws(counts, observer)
        figures = spent * 1e6, by_last * 1e6, rich * 1e3, html * 1e3, report(made) * 1e3
        print(f"{trials:10}", *(f"{figure:10.2f}" for figure in figures))


if __name__ == "__main__":
    main()
