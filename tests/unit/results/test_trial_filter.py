from __future__ import annotations

import pytest
from filter_cases import CASES, ERRORS, READERS, answer, text_of

from dasktune.errors import ConfigError
from dasktune.results.trial_filter import parse_filter


@pytest.mark.parametrize(("text", "keys"), CASES)
def test_a_filter_holds_for_its_rows(text, keys):
    assert answer(text) == keys


@pytest.mark.parametrize(("text", "message"), ERRORS)
def test_an_invalid_filter_is_refused_with_what_was_expected_and_where(text, message):
    with pytest.raises(ConfigError) as refused:
        parse_filter(text, READERS, text_of)
    assert str(refused.value).startswith(message)


def test_an_unknown_column_is_answered_with_a_similar_one():
    assert 'Did you mean "loss"? Columns: loss, lr,' in answer("los < 1")
