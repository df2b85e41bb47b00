"""Pictures of the dashboard: ``python -m docs.screenshots``, or ``make screenshots``.

Two real experiments are run on a local cluster, ASHA on a network and population based training on
another one, both with scikit-learn's digits. Each page of each is opened in Chromium.
"""

from __future__ import annotations

import argparse
import io
import os
import tempfile
from pathlib import Path
from typing import Any

from distributed import LocalCluster

import dasktune as tune
from benchmarks._browser import browser, complaints, go_to, open_dashboard, titles
from dasktune.dashboard import serve
from dasktune.schedulers import ASHAScheduler, PopulationBasedTraining

_HERE = Path(__file__).parent / "_static" / "dashboard"

#: Of the window, in pixels.
_WIDTH = 1100
_MOST_HEIGHT = 2400
_COLOURS = 64
#: Seconds for the forest of the importance to grow.
_PATIENCE = 600


def _train(config: dict[str, Any]) -> None:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier

    x, y = load_digits(return_X_y=True)
    x, other_x, y, other_y = train_test_split(x / 16.0, y, test_size=0.3, random_state=0)
    network = MLPClassifier(
        (config["width"],),
        activation=config["activation"],
        alpha=config["alpha"],
        learning_rate_init=config["learning_rate"],
        batch_size=config["batch_size"],
        random_state=0,
    )
    for _ in range(27):
        network.partial_fit(x, y, classes=range(10))
        tune.report({"accuracy": network.score(other_x, other_y), "loss": network.loss_})


class _Member(tune.Trainable):
    """A network whose learning rate may change while it learns."""

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


def _run(directory: str, trials: int) -> None:
    """Run those of both experiments that are not there yet."""
    # Scikit-learn warns of its own threads.
    os.environ["PYTHONWARNINGS"] = "ignore"
    space = {
        "learning_rate": tune.loguniform(1e-4, 1.0),
        "alpha": tune.loguniform(1e-6, 1e-1),
        "width": tune.randint(4, 65),
        "batch_size": tune.choice([32, 64, 128]),
        "activation": tune.choice(["relu", "tanh"]),
    }
    asha = ASHAScheduler(max_t=27, grace_period=1, reduction_factor=3)
    rates = {"eta": tune.loguniform(1e-4, 1.0), "alpha": tune.loguniform(1e-6, 1e-1)}
    pbt = PopulationBasedTraining(
        time_attr="training_iteration", perturbation_interval=4, hyperparam_mutations=rates
    )
    with LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None) as cluster:
        for name, trainable, given, scheduler, stop, count in (
            ("digits-asha", _train, space, asha, None, trials),
            ("digits-pbt", _Member, rates, pbt, {"training_iteration": 24}, 12),
        ):
            if Path(directory, name).exists():
                continue
            tune.Tuner(
                trainable,
                param_space=given,
                tune_config=tune.TuneConfig(
                    metric="accuracy", mode="max", num_samples=count, scheduler=scheduler, seed=0
                ),
                run_config=tune.RunConfig(name=name, storage_path=directory, stop=stop, verbose=0),
                client=cluster,
            ).fit()


def _picture(driver: Any, name: str) -> None:
    """Write the whole page as a small picture."""
    from PIL import Image, ImageChops

    driver.set_window_size(_WIDTH, _MOST_HEIGHT)
    driver.execute_async_script(
        "const done = arguments[0]; setTimeout(() => requestAnimationFrame(done), 1000)"
    )
    picture = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    # What is below the last card is empty.
    ground = Image.new("RGB", picture.size, picture.getpixel((2, picture.height - 2)))
    bottom = ImageChops.difference(picture, ground).getbbox()[3]
    picture = picture.crop((0, 0, _WIDTH, min(bottom + 20, picture.height)))
    few = picture.quantize(_COLOURS, dither=Image.Dither.NONE)
    few.save(_HERE / f"{name}.png", optimize=True)


def _wait_for_forest(driver: Any) -> None:
    """Wait until the importance of parameters is known, which is worked out beside the pages."""
    from selenium.webdriver.support.ui import WebDriverWait

    known = """
    const titles = [...Bokeh.documents[0]._all_models.values()].map((one) => one.text ?? "")
    return titles.some((text) => /^Importance of parameters for .* trials at/.test(text))
    """
    WebDriverWait(driver, _PATIENCE).until(lambda one: one.execute_script(known))


def _take(directory: str) -> None:
    """Open every page of both, the list of them, and their comparison."""
    server = serve(directory, port=0)
    try:
        with browser(_WIDTH, 900) as driver:
            for experiment in ("digits-asha", "digits-pbt"):
                open_dashboard(driver, f"{server.url}?experiment={experiment}")
                for number, title in enumerate(titles(driver)):
                    if title == "Errors":
                        continue  # there are none
                    go_to(driver, number)
                    if title == "Parameters":
                        _wait_for_forest(driver)
                    _picture(driver, f"{experiment[7:]}-{title.lower()}")
            driver.get(f"{server.url}?compare=digits-asha&compare=digits-pbt")
            driver.execute_async_script("setTimeout(arguments[0], 5000)")
            _picture(driver, "comparison")
            if told := complaints(driver):
                raise RuntimeError(f"the browser complains: {told}")
    finally:
        server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--directory", help="where the experiments are, or come; for good")
    arguments = parser.parse_args()
    _HERE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dasktune-screenshots-") as temporary:
        directory = arguments.directory or temporary
        _run(directory, arguments.trials)
        _take(directory)


if __name__ == "__main__":
    main()
