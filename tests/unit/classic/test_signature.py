"""What ``help(tune.run)`` and a prompt that completes arguments show."""

from __future__ import annotations

import inspect

import pytest

from dasktune.classic import Experiment, run, run_experiments
from dasktune.classic.options import FIELD_CONFIGS, OLD_NAMES, normalize_options


@pytest.mark.parametrize("what", [run, run_experiments, Experiment])
class TestListed:
    def test_every_argument_is_in_the_signature_and_all_are_taken(self, what):
        parameters = inspect.signature(what).parameters
        assert set(parameters) >= (set(FIELD_CONFIGS) | set(OLD_NAMES)) - {"name"}
        assert not any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        own = {"run_or_experiment", "experiments", "run", "name", "client", "concurrent"}
        own |= {"resume", "resume_config", "raise_on_failed_trial"}
        normalize_options(dict.fromkeys(set(parameters) - own))

    def test_every_argument_has_its_paragraph(self, what):
        told = inspect.cleandoc(what.__doc__)
        told = told[told.index("\nParameters") : told.index("\nRaises")]
        for name in inspect.signature(what).parameters:
            if name not in ("resume", "resume_config"):  # one paragraph for both
                assert told.count(f"\n{name} :") == 1, name
        assert "**options" not in told

    def test_the_defaults_are_those_of_the_configurations(self, what):
        parameters = inspect.signature(what).parameters
        assert parameters["heartbeat_timeout"].default == 30.0
        assert parameters["num_samples"].default == 1

    def test_a_paragraph_is_that_of_the_configuration_to_its_end(self, what):
        paragraph = inspect.cleandoc(what.__doc__).partition("\nisolation :")[2]
        paragraph = paragraph.partition("\nchdir_to_trial_dir :")[0]
        assert paragraph.endswith("and others in a thread.")
