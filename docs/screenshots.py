"""Take the screenshots of the dashboard: ``python -m docs.screenshots``, or ``make screenshots``.

It runs four real experiments on a local cluster, all with scikit-learn's digits: ASHA, population
based training, one with failing trials, and one with two objectives. Each page is opened in
Chromium, and each screenshot is taken when the page no longer changes.
"""

from __future__ import annotations

import argparse
import io
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster

import dasktune as tune
from benchmarks._browser import browser, open_dashboard, open_page, page_errors, titles
from dasktune.dashboard import serve
from dasktune.dashboard.model.load import load_projection
from dasktune.dashboard.report import to_html
from dasktune.schedulers import ASHAScheduler, PopulationBasedTraining

_HERE = Path(__file__).parent / "_static" / "dashboard"

#: The size of the window, in pixels.
_WIDTH = 1100
_MOST_HEIGHT = 2400
#: The largest size of a file.
_MOST_BYTES = 150_000
#: The largest number of screenshots of a live page, which keeps changing.
_MOST_LOOKS = 8
#: The timeout of each wait in seconds: the machine may be busy.
_TIMEOUT = 1_800
#: The number of ended trials when the pages of a running experiment are taken.
_ENDED = 30
#: Additional seconds of each epoch, as with more data: the screenshots take time, too.
_PAUSE = 0.15


def _train(config: dict[str, Any]) -> None:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier

    x, y = load_digits(return_X_y=True)
    x, other_x, y, other_y = train_test_split(x / 16.0, y, test_size=0.3, random_state=0)
    network = MLPClassifier(
        (config["width"],),
        activation=config.get("activation", "relu"),
        alpha=config["alpha"],
        learning_rate_init=config["learning_rate"],
        batch_size=config["batch_size"],
        random_state=0,
    )
    for epoch in range(config.get("epochs", 27)):
        time.sleep(_PAUSE)
        network.partial_fit(x, y, classes=range(10))
        weights = sum(layer.size for layer in network.coefs_)
        print(f"epoch {epoch + 1}: loss {network.loss_:.4f}, {weights:,} weights")
        accuracy = network.score(other_x, other_y)
        tune.report({"accuracy": accuracy, "loss": network.loss_, "weights": weights})


class _Member(tune.Trainable):
    """A network with a learning rate that can change during training."""

    def setup(self, config: dict[str, Any]) -> None:
        from sklearn.datasets import load_digits
        from sklearn.linear_model import SGDClassifier

        x, y = load_digits(return_X_y=True)
        self._x, self._y = x / 16.0, y
        self._model = SGDClassifier(
            loss="log_loss", learning_rate="constant", eta0=config["eta"], alpha=config["alpha"]
        )

    def step(self) -> dict[str, Any]:
        for begin in range(0, 1_200, 100):
            rows = slice(begin, begin + 100)
            self._model.partial_fit(self._x[rows], self._y[rows], classes=range(10))
        return {"accuracy": self._model.score(self._x[1_200:], self._y[1_200:])}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        import pickle

        Path(checkpoint_dir, "model").write_bytes(pickle.dumps(self._model))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        import pickle

        self._model = pickle.loads(Path(checkpoint_dir, "model").read_bytes())

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._model.set_params(eta0=new_config["eta"], alpha=new_config["alpha"])
        return True


#: The code of the failing trials. Its own file name keeps tracebacks short.
_STRICT = """
import dasktune as tune


def check(accuracy, epoch, rate):
    if epoch == 3 and accuracy < 0.2:
        raise ArithmeticError(
            f"nothing was learnt in {epoch} epochs at a rate of {rate:.2g}: accuracy {accuracy:.0%}"
        )


def train(config):
    data, network = load(), build(config)
    for epoch in range(1, 7):
        accuracy = learn(network, data)
        check(accuracy, epoch, config["learning_rate"])
        tune.report({"accuracy": accuracy})
"""


def _load() -> Any:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return x / 16.0, y


def _build(config: dict[str, Any]) -> Any:
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier((config["width"],), learning_rate_init=config["learning_rate"])


def _learn(network: Any, data: Any) -> float:
    x, y = data
    network.partial_fit(x[:1_200], y[:1_200], classes=range(10))
    return float(network.score(x[1_200:], y[1_200:]))


def _strict() -> Any:
    """Return the trainable of the failing trials."""
    named = {"__name__": "train", "load": _load, "build": _build, "learn": _learn}
    exec(compile(_STRICT, "train.py", "exec"), named)
    return named["train"]


def _warm_up() -> None:
    """Import the trials' packages on a worker first: it takes up to half a minute."""
    import linecache
    from importlib import import_module

    for name in ("linear_model", "model_selection", "neural_network"):
        import_module(f"sklearn.{name}")
    import_module("sklearn.datasets").load_digits()
    # Tracebacks read the lines of code without a file here.
    linecache.cache["train.py"] = (len(_STRICT), None, _STRICT.splitlines(True), "train.py")


class _Milestone(tune.Callback):
    """Signals when enough trials have ended, and delays the end until the pages are taken."""

    def __init__(self, count: int) -> None:
        self.reached, self.taken, self._left = threading.Event(), threading.Event(), count

    def on_trial_complete(self, *args: Any, **info: Any) -> None:
        self._left -= 1
        if self._left <= 0:
            self.reached.set()

    def on_experiment_end(self, *args: Any, **info: Any) -> None:
        self.reached.set()
        self.taken.wait(_TIMEOUT)


_NETWORKS: dict[str, Any] = {
    "learning_rate": tune.loguniform(1e-4, 1.0),
    "alpha": tune.loguniform(1e-6, 1e-1),
    "width": tune.randint(4, 65),
    "batch_size": tune.choice([32, 64, 128]),
}
_RATES: dict[str, Any] = {"eta": tune.loguniform(1e-4, 1.0), "alpha": tune.loguniform(1e-6, 1e-1)}


def _tuner(cluster: Any, directory: str, name: str, trials: int, **run: Any) -> tune.Tuner:
    """Return a function that runs one of the experiments."""
    goals: dict[str, Any] = {"metric": "accuracy", "mode": "max"}
    trainable: Any = _train
    if name == "digits-asha":
        space = {**_NETWORKS, "activation": tune.choice(["relu", "tanh"])}
        run["log_to_file"] = True
        goals["scheduler"] = ASHAScheduler(max_t=27, grace_period=1, reduction_factor=3)
    elif name == "digits-pbt":
        # A third of a CPU each, so all members of the population run in parallel.
        space, trainable, trials = _RATES, tune.with_resources(_Member, {"cpu": 1 / 3}), 12
        run["stop"] = {"training_iteration": 24}
        goals["scheduler"] = PopulationBasedTraining(
            time_attr="training_iteration", perturbation_interval=4, hyperparam_mutations=_RATES
        )
    elif name == "digits-failures":
        space, trainable, trials = _NETWORKS, _strict(), 12
    else:
        space, trials = {**_NETWORKS, "epochs": 8}, 40
        goals = {"metric": ["accuracy", "weights"], "mode": ["max", "min"]}
    return tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(num_samples=trials, seed=0, **goals),
        run_config=tune.RunConfig(name=name, storage_path=directory, verbose=0, **run),
        client=cluster,
    )


def _run(driver: Any, directory: str, trials: int) -> None:
    """Run the missing experiments; take the pages of a running one."""
    # scikit-learn warns about its own threads.
    os.environ["PYTHONWARNINGS"] = "ignore"
    names = ("digits-asha", "digits-pbt", "digits-failures", "digits-goals")
    missing = [name for name in names if not Path(directory, name).exists()]
    if not missing:
        return
    with (
        LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.run(_warm_up)
        for name in missing:
            if name == "digits-asha":
                _run_watched(driver, cluster, directory, trials)
            else:
                _tuner(cluster, directory, name, trials).fit()


def _run_watched(driver: Any, cluster: Any, directory: str, trials: int) -> None:
    """Run ASHA, and take its page in Dask's dashboard, and that of the workers with its links."""
    with socket.create_server(("localhost", 0)) as probe:
        port = int(probe.getsockname()[1])
    milestone = _Milestone(_ENDED)
    tuner = _tuner(cluster, directory, "digits-asha", trials, dashboard=port, callbacks=[milestone])
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(tuner.fit)
        _until(driver, lambda _: running.done() or tuner.dashboard_link)
        own = driver.current_window_handle
        open_dashboard(driver, f"http://localhost:{port}/")
        driver.switch_to.new_window("tab")
        open_dashboard(driver, tuner.dashboard_link)
        milestone.reached.wait(_TIMEOUT)
        # The page is updated a little later.
        _until_text(driver, rf"\b([{_ENDED // 10}-9]\d) of {trials}\b")
        _picture(driver, "dask-overview")
        driver.close()
        driver.switch_to.window(own)
        open_page(driver, titles(driver).index("Workers"))
        _picture(driver, "asha-workers")
        driver.get("about:blank")
        milestone.taken.set()
        running.result()


def _until(driver: Any, condition: Callable[[Any], Any]) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, _TIMEOUT, poll_frequency=0.1).until(condition)


def _until_text(driver: Any, pattern: str) -> None:
    """Wait until a text of the page matches a regular expression."""
    known = """
    if (!window.Bokeh || !Bokeh.documents.length) return false
    const texts = [...Bokeh.documents[0]._all_models.values()].map((one) => one.text ?? "")
    return texts.some((text) => new RegExp(arguments[0]).test(text))
    """
    _until(driver, lambda one: one.execute_script(known, pattern))


def _picture(driver: Any, name: str) -> None:
    """Write a screenshot of the whole page when two in succession are equal."""
    from PIL import Image, ImageChops

    driver.set_window_size(_WIDTH, _MOST_HEIGHT)
    before, png = b"", _look(driver)
    for _ in range(_MOST_LOOKS):
        if before == png:
            break
        before, png = png, _look(driver)
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    # The page is empty below the last card.
    ground = Image.new("RGB", picture.size, picture.getpixel((2, picture.height - 2)))
    bottom = ImageChops.difference(picture, ground).getbbox()[3]
    picture = picture.crop((0, 0, _WIDTH, min(bottom + 20, picture.height)))
    (_HERE / f"{name}.png").write_bytes(_small(picture))


def _small(picture: Any) -> bytes:
    """Return a picture as PNG of at most `_MOST_BYTES`, with as many colours as that allows."""
    from PIL import Image

    # This method keeps the colours of small things, such as the states of trials.
    for colours in (256, 192, 128, 96, 64):
        stream = io.BytesIO()
        few = picture.quantize(colours, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(stream, "PNG", optimize=True)
        if stream.tell() <= _MOST_BYTES:
            return stream.getvalue()
    raise RuntimeError(f"a picture with {colours} colours has {stream.tell():,} bytes")


def _look(driver: Any) -> bytes:
    """Return the screenshot when all data has been drawn."""
    _until(driver, lambda one: one.execute_script(_IS_IDLE))
    driver.execute_async_script(
        "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"
    )
    return bytes(driver.get_screenshot_as_png())


_IS_IDLE = "return !window.Bokeh || Bokeh.documents.every((one) => one.is_idle)"

#: Selects the best trial in the table.
_SELECT = """
const models = [...Bokeh.documents[0]._all_models.values()]
const source = models.find((one) => one.type === "DataTable").source
const best = source.data.best
let row = 0
for (let i = 0; i < best.length; i++) if (best[i] > best[row]) row = i
source.selected.indices = [row]
"""

#: Whether all rows of the list of experiments have a state.
_ARE_LISTED = """
if (!window.Bokeh || !Bokeh.documents.length) return false
const table = [...Bokeh.documents[0]._all_models.values()].find((one) => one.type === "DataTable")
const states = Array.from(table?.source.data.state ?? [])
return states.length > 0 && states.every((one) => one !== "reading")
"""

#: Gives the table of trials the height that it has in a window of a usual height.
_SHORTEN = """
const models = [...Bokeh.documents[0]._all_models.values()]
models.find((one) => one.name === "table frame").styles = {height: "460px"}
"""

#: Writes a filter, as if it had been typed.
_FILTER = """
const models = [...Bokeh.documents[0]._all_models.values()]
models.find((one) => one.type === "TextInput").value = arguments[0]
"""


def _take(driver: Any, directory: str) -> None:
    """Take the pages of the experiments, the list of them, and their comparison."""
    server = serve(directory, port=0)
    try:
        for name, wanted in _PAGES.items():
            open_dashboard(driver, f"{server.url}?experiment=digits-{name}")
            for title in wanted:
                open_page(driver, titles(driver).index(title))
                if title == "Parameters":
                    # It is worked out beside the pages.
                    _until_text(driver, r"^Importance of parameters for [^\n]*\n.* trials at")
                if title == "Trials":
                    driver.execute_script(_SELECT)
                    driver.execute_script(_SHORTEN)
                    _until_text(driver, r"^[^:]+\nthe grey shadow is all [0-9,]+ trials$")
                    _until_text(driver, "^What .* has printed")
                _picture(driver, f"{name}-{title.lower()}")
        driver.get(server.url)
        # The rows are there, and their journals are read.
        _until(driver, lambda one: one.execute_script(_ARE_LISTED))
        _picture(driver, "experiments")
        driver.get(f"{server.url}?compare=digits-asha&compare=digits-pbt")
        _until_text(driver, "digits-pbt")
        _picture(driver, "comparison")
        driver.get("about:blank")
    finally:
        server.close()


_PAGES = {
    "asha": ("Overview", "Trials", "Parameters", "Scheduler"),
    "pbt": ("Overview", "Scheduler", "Workers"),
    "failures": ("Errors",),
    "goals": ("Objectives",),
}


def _take_report(driver: Any, directory: str) -> None:
    """Take the table of the report, which is a file, with some of its trials."""
    page = Path(directory, "report.html")
    page.write_text(to_html(load_projection(Path(directory, "digits-asha"))), encoding="utf-8")
    open_dashboard(driver, page.as_uri())
    open_page(driver, titles(driver).index("Trials"))
    driver.execute_script(_FILTER, "best>0.95 activation:tanh")
    driver.execute_script(_SELECT)
    driver.execute_script(_SHORTEN)
    _picture(driver, "report")
    page.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=96)
    parser.add_argument("--directory", help="the directory of the experiments")
    arguments = parser.parse_args()
    _HERE.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="dasktune-screenshots-") as temporary,
        browser(_WIDTH, 900) as driver,
    ):
        directory = arguments.directory or temporary
        _run(driver, directory, arguments.trials)
        _take(driver, directory)
        _take_report(driver, directory)
        if told := page_errors(driver):
            raise RuntimeError(f"the browser complains: {told}")


if __name__ == "__main__":
    main()
