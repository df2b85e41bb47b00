"""One experiment as ``tune.run`` takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dasktune.classic.options import checked, configs_of
from dasktune.classic.signature import listing_options
from dasktune.config import RunConfig
from dasktune.errors import ConfigError, check
from dasktune.registry import get_trainable
from dasktune.resume_config import ResumeConfig
from dasktune.storage.location import Storage
from dasktune.trainable.interface import with_resources
from dasktune.tuner import Tuner

__all__ = ["Experiment"]


@listing_options
class Experiment:
    """What is to be run, and how: a trainable with the arguments of :func:`run`.

    Parameters
    ----------
    name : str
        Of the experiment, and of its directory below ``storage_path``. An empty one is made of the
        trainable's and the date.
    run : callable, type or str
        A function of the configuration, a subclass of `Trainable`, or the name of a registered one.
    **options
        Those of :func:`run`.

    Raises
    ------
    ConfigError
        If an argument breaks its rule, or makes no sense on Dask.

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
        #: What was given, by the names of fields.
        self.options = checked(options)
        configs_of(self.options)  # for what it raises

    @classmethod
    def from_json(cls, name: str, spec: Mapping[str, Any]) -> Experiment:
        """Make one of a dict, as :func:`run_experiments` takes it.

        Parameters
        ----------
        name : str
            Of the experiment.
        spec : mapping
            ``"run"`` and the arguments; ``"env"`` goes into the configuration.

        Raises
        ------
        ConfigError
            If there is no ``"run"``, or an argument breaks its rule.

        Examples
        --------
        >>> Experiment.from_json("walk", {"run": print, "env": "maze"}).options
        {'config': {'env': 'maze'}}
        """
        rest = dict(spec)
        trainable = rest.pop("run", None)
        check(trainable is not None, "run", "what is to be tuned", trainable, "Write 'run': train.")
        if "env" in rest:
            rest["config"] = {**(rest.get("config") or {}), "env": rest.pop("env")}
        return cls(name, trainable, **rest)

    @property
    def public_spec(self) -> dict[str, Any]:
        """What a searcher may know of it: ``stop``, ``num_samples`` and ``time_budget_s``."""
        defaults = {"stop": None, "num_samples": 1, "time_budget_s": None}
        return {name: self.options.get(name, value) for name, value in defaults.items()}

    def with_options(self, options: Mapping[str, Any]) -> Experiment:
        """Return one with further arguments, for those that were left open.

        Parameters
        ----------
        options : mapping
            By the names of :func:`run`.

        Raises
        ------
        ConfigError
            If one was given before, or breaks its rule.
        """
        more = checked(options)
        for name in more.keys() & self.options.keys():
            raise ConfigError(
                f"{name} must be given once, got {self.options[name]!r} in the Experiment and "
                f"{more[name]!r} besides it. Remove one of them."
            )
        return Experiment(self.name, self.run, **{**self.options, **more})

    def tuner(self, client: Any = None, resume: ResumeConfig | None = None) -> Tuner:
        """Return what runs it.

        Parameters
        ----------
        client : optional
            The Dask cluster, as for `Tuner`.
        resume : ResumeConfig, optional
            Go on with the experiment of this name, if there is one.

        Raises
        ------
        ConfigError
            If an argument breaks its rule, or it is to be resumed and has no name.
        StorageError
            If there is an experiment to go on with, and it is damaged.
        """
        tune_config, run_config = configs_of({**self.options, "name": self.name})
        space = self.options.get("config", {})
        parts = {"tune_config": tune_config, "run_config": run_config, "param_space": space}
        trainable = self._trainable()
        if resume is not None:
            place = self._place(run_config)
            storage_options = run_config.storage_options
            if Tuner.can_restore(place.url, storage_options):
                return Tuner.restore(
                    place.url,
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

    def _place(self, config: RunConfig) -> Storage:
        hint = "By default each run has a name of its own."
        check(self.name is not None, "name", "that of the experiment with resume", None, hint)
        return Storage(config.storage_url, config.storage_options or {}).child(str(self.name))

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"Experiment({self.name!r}, {self.run!r}{', ' if told else ''}{told})"
