"""``Experiment``: the arguments of ``tune.run`` as an object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dasktune.classic.options import build_configs, normalize_options
from dasktune.classic.signature import document_options
from dasktune.config import RunConfig
from dasktune.config.resume_config import ResumeConfig
from dasktune.errors import ConfigError, check
from dasktune.registry import get_trainable
from dasktune.storage.fs.storage import Storage
from dasktune.trainable.api.binding import with_resources
from dasktune.tuner.tuner import Tuner


@document_options
class Experiment:
    """A trainable with the arguments of :func:`run`.

    Parameters
    ----------
    name : str
        The name of the experiment and of its directory in ``storage_path``. If it is empty, the
        name consists of the trainable's name and the date.
    run : callable, type or str
        A function of the configuration, a subclass of `Trainable`, or the name of a registered one.
    **options
        The arguments of :func:`run`.

    Raises
    ------
    ConfigError
        If an argument is invalid, or is not supported on Dask.

    Examples
    --------
    >>> square = Experiment("square", lambda config: config["x"] ** 2, config={"x": 3})
    >>> square.name, square.public_spec
    ('square', {'stop': None, 'num_samples': 1, 'time_budget_s': None})
    """

    def __init__(self, name: str | None, run: Any, **options: Any) -> None:
        self.name = name or None
        self.run = run
        check("name" not in options, "name", "given once", options.get("name"))
        #: The given arguments, with Ray Tune's older names replaced by those of the config classes.
        self.options = normalize_options(options)
        build_configs(self.options)  # raises for invalid values

    @classmethod
    def from_json(cls, name: str, spec: Mapping[str, Any]) -> Experiment:
        """Create an experiment from a dict, as :func:`run_experiments` accepts it.

        Parameters
        ----------
        name : str
            The experiment's name.
        spec : mapping
            ``"run"`` and the arguments; ``"env"`` becomes part of the configuration.

        Raises
        ------
        ConfigError
            If ``"run"`` is missing, or an argument is invalid.

        Examples
        --------
        >>> Experiment.from_json("walk", {"run": print, "env": "maze"}).options
        {'config': {'env': 'maze'}}
        """
        rest = dict(spec)
        trainable = rest.pop("run", None)
        hint = "Write 'run': train."
        check(trainable is not None, "run", "a trainable or its name", trainable, hint)
        if "env" in rest:
            rest["config"] = {**(rest.get("config") or {}), "env": rest.pop("env")}
        return cls(name, trainable, **rest)

    @property
    def public_spec(self) -> dict[str, Any]:
        """The arguments that searchers may read: ``stop``, ``num_samples``, ``time_budget_s``."""
        defaults = {"stop": None, "num_samples": 1, "time_budget_s": None}
        return {name: self.options.get(name, value) for name, value in defaults.items()}

    def with_options(self, options: Mapping[str, Any]) -> Experiment:
        """Return a copy with further arguments.

        Parameters
        ----------
        options : mapping
            Arguments of :func:`run`.

        Raises
        ------
        ConfigError
            If an argument was given before, or is invalid.
        """
        more = normalize_options(options)
        for name in more.keys() & self.options.keys():
            raise ConfigError(
                f"{name} must be given once, got {self.options[name]!r} in the Experiment and "
                f"{more[name]!r} as an argument. Remove one of them."
            )
        return Experiment(self.name, self.run, **{**self.options, **more})

    def tuner(self, client: Any = None, resume: ResumeConfig | None = None) -> Tuner:
        """Return the tuner of this experiment.

        Parameters
        ----------
        client : optional
            The Dask cluster, as for `Tuner`.
        resume : ResumeConfig, optional
            Resume the experiment of this name, if it exists.

        Raises
        ------
        ConfigError
            If an argument is invalid, or `resume` is given without a name.
        StorageError
            If the stored experiment is damaged.
        """
        tune_config, run_config = build_configs({**self.options, "name": self.name})
        space = self.options.get("config", {})
        parts = {"tune_config": tune_config, "run_config": run_config, "param_space": space}
        trainable = self._trainable()
        if resume is not None:
            storage = self._storage(run_config)
            storage_options = run_config.storage_options
            if Tuner.can_restore(storage.url, storage_options):
                return Tuner.restore(
                    storage.url,
                    trainable,
                    resume_config=resume,
                    storage_options=storage_options,
                    client=client,
                    **parts,
                )
        return Tuner(trainable, client=client, **parts)

    def _trainable(self) -> Any:
        trainable = get_trainable(self.run) if isinstance(self.run, str) else self.run
        resources = self.options.get("resources_per_trial")
        return trainable if resources is None else with_resources(trainable, resources)

    def _storage(self, config: RunConfig) -> Storage:
        hint = "A run without a name creates a new experiment."
        check(self.name is not None, "name", "the name of the experiment to resume", None, hint)
        return Storage(config.storage_url, config.storage_options or {}).child(str(config.name))

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"Experiment({self.name!r}, {self.run!r}{', ' if options else ''}{options})"
