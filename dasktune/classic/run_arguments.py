"""Convert the experiments and ``resume`` of ``tune.run`` and ``tune.run_experiments``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dasktune.classic.experiment import Experiment
from dasktune.config.resume_config import ResumeConfig
from dasktune.errors import ConfigError, check

#: The suffixes of "AUTO+" in `resume`.
_RESUME: Final = {
    "ERRORED": ResumeConfig(errored="resume"),
    "RESTART_ERRORED": ResumeConfig(errored="restart"),
    "ERRORED_ONLY": ResumeConfig(errored="resume", unfinished="skip"),
    "RESTART_ERRORED_ONLY": ResumeConfig(errored="restart", unfinished="skip"),
}


def as_experiment(given: Any, name: str | None) -> Experiment:
    """Return the experiment that ``tune.run`` was given, or a new one for a trainable.

    Parameters
    ----------
    given : Experiment, callable, type or str
        The experiment, or the trainable of a new one.
    name : str or None
        The name of a new experiment; by default the trainable's name and the date.

    Raises
    ------
    ConfigError
        If an experiment is given, and `name` is not its name.
    """
    if not isinstance(given, Experiment):
        return Experiment(name, given)
    check(name is None or name == given.name, "name", f"{given.name!r} as in the Experiment", name)
    return given


def as_experiments(given: Any) -> list[Experiment]:
    """Return the experiments of ``tune.run_experiments``.

    Parameters
    ----------
    given : Experiment, mapping, list or tuple
        Experiments, mappings from names to experiments or their arguments, or lists of both.

    Raises
    ------
    ConfigError
        If `given` is anything else.
    """
    if isinstance(given, Experiment):
        return [given]
    if isinstance(given, Mapping):
        return [_from_spec(str(name), spec) for name, spec in given.items()]
    if isinstance(given, list | tuple):
        return [one for each in given for one in as_experiments(each)]
    hint = "Write {'name': {'run': train}}."
    raise ConfigError(f"experiments must be Experiments or dicts of them, got {given!r}. {hint}")


def _from_spec(name: str, spec: Any) -> Experiment:
    if isinstance(spec, Experiment):
        return spec
    hint = "Write {'name': {'run': train}}."
    check(isinstance(spec, Mapping), f"experiments[{name!r}]", "a dict", spec, hint)
    return Experiment.from_json(name, spec)


def as_resume_config(resume: bool | str | None, config: ResumeConfig | None) -> ResumeConfig | None:
    """Return which trials to resume; None to start a new experiment.

    Parameters
    ----------
    resume : bool, str or None
        Ray Tune's argument, such as ``"AUTO+ERRORED"``.
    config : ResumeConfig or None
        The same choice as an object; only one of the two may be given.

    Raises
    ------
    ConfigError
        If both are given, or one is not valid.
    """
    check(config is None or resume is None, "resume", "left out with resume_config", resume)
    given: object = config
    check(given is None or isinstance(given, ResumeConfig), "resume_config", "a ResumeConfig", given)
    if resume is True or resume == "AUTO":
        return ResumeConfig()
    if resume is None or resume is False:
        return config
    first, _, suffix = str(resume).partition("+")
    is_known = first == "AUTO" and suffix in _RESUME
    all_known = ", ".join(repr(f"AUTO+{name}") for name in _RESUME)
    check(is_known, "resume", f"True, False, 'AUTO', {all_known}", resume)
    return _RESUME[suffix]
