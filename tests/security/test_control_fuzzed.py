"""A fuzzer that knows only the description, against a live server: it is kept, and hurts no run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from control_kit import TOKEN, Controlled
from hypothesis import HealthCheck, given, settings

from dasktune.control.openapi import PREFIX, openapi_document

schemathesis = pytest.importorskip("schemathesis")

pytestmark = pytest.mark.slow

positive_data_acceptance = schemathesis.checks.positive_data_acceptance
negative_data_rejection = schemathesis.checks.negative_data_rejection

BEARER = {"Authorization": f"Bearer {TOKEN}"}

#: They end the experiment, as they are meant to.
ENDING = ("/experiment/stop", "/experiment/cancel")

#: The same each time, as far as the same modules are imported: Hypothesis tries their constants.
BOUNDED = settings(max_examples=25, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.fixture
def own() -> Iterator[Controlled]:
    place = Controlled(num_samples=-1)
    yield place
    place.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Controlled]:
    place = Controlled(num_samples=-1)
    yield place
    place.close()


def operations() -> list[Any]:
    schema = schemathesis.openapi.from_dict(openapi_document())
    return [operation.ok() for operation in schema.get_all_operations()]


OPERATIONS = pytest.mark.parametrize("operation", operations(), ids=lambda one: one.label)


def is_bad_as_sent(case: Any, answer: Any) -> bool:
    """Whether all parameters of a bad request were sent: one without a value is left out."""
    sent = parse_qs(urlsplit(answer.request.url).query, keep_blank_values=True)
    return set(case.query or {}) <= set(sent)


def still_runs(place: Controlled) -> bool:
    place.client.release()
    return place.runs and place.client.get_experiment()["state"] == "running"


@OPERATIONS
@pytest.mark.parametrize("good", [True, False], ids=["good", "bad"])
def test_a_fuzzer_finds_the_server_as_it_is_described(
    request: pytest.FixtureRequest, operation: Any, good: bool
):
    ends = operation.path.endswith(ENDING)
    place: Controlled = request.getfixturevalue("own" if ends else "shared")
    modes = schemathesis.GenerationMode

    @BOUNDED
    @given(case=operation.as_strategy(modes.POSITIVE if good else modes.NEGATIVE))
    def ask(case: Any) -> None:
        answer = case.call(base_url=f"{place.server.url}{PREFIX}", headers=BEARER)
        # Which configurations fit the space, no description of ours can tell.
        excluded = [positive_data_acceptance] if operation.path == "/trials" else []
        if not is_bad_as_sent(case, answer):
            excluded.append(negative_data_rejection)
        case.validate_response(answer, excluded_checks=excluded)

    ask()
    assert place.error is None
    assert ends or still_runs(place)


@OPERATIONS
def test_without_the_token_a_fuzzer_gets_nothing(shared: Controlled, operation: Any):
    told = set()

    @BOUNDED
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        answer = case.call(base_url=f"{shared.server.url}{PREFIX}")
        case.validate_response(answer, excluded_checks=[positive_data_acceptance])
        told.add(answer.status_code)

    ask()
    assert told == {401}
    assert still_runs(shared)
