from __future__ import annotations

from typing import Any

import pytest

from dasktune.placement import ClusterShares
from dasktune.placement.cluster_shares import amounts_text


def shares(*rows: tuple[str, dict[str, float], float], **own: Any) -> ClusterShares:
    """Return shares of a cluster with 8 CPUs and 2 GPUs; the last row is the reader's."""
    facts = {"weight": 1.0, "priority": 0.0, "due": 0.5, "waiting": 4, "waiting_s": 2.0}
    plain = [{"name": name, "held": held, "share": share, **facts} for name, held, share in rows]
    plain[-1].update({"is_own": True, **own})
    return ClusterShares.from_plain({"CPU": 8, "GPU": 2, "lic": 1}, plain)


def test_a_waiting_experiment_says_who_holds_what() -> None:
    text = shares(("E2", {"CPU": 6, "GPU": 1}, 0.75), ("own", {"CPU": 2}, 0.25)).waiting_text
    assert text == "waits for its share: experiment E2 holds 6 of 8 CPUs and 1 of 2 GPUs"


def test_an_experiment_with_its_share_says_so() -> None:
    text = shares(("E2", {"CPU": 2, "lic": 1}, 0.25), ("own", {"CPU": 6}, 0.75)).waiting_text
    assert text == "has its share: experiment E2 holds 2 of 8 CPUs and 1 of 1 lic"


@pytest.mark.parametrize("own", [{"waiting": 0}, {"due": None}, {"is_own": False}])
def test_nothing_is_said_where_nothing_waits_for_others(own: dict[str, Any]) -> None:
    assert shares(("E2", {"CPU": 6}, 0.75), ("own", {"CPU": 2}, 0.25), **own).waiting_text == ""
    # The others hold nothing, so the room is used by other programs.
    assert shares(("E2", {}, 0.0), ("own", {"CPU": 2}, 0.25)).waiting_text == ""


@pytest.mark.parametrize(
    ("number", "end"), [(3, "2 of 8 CPUs"), (4, "1 other holds more"), (6, "3 others hold more")]
)
def test_only_the_largest_are_named(number: int, end: str) -> None:
    others = [(f"E{place}", {"CPU": 2.0}, 0.25) for place in range(number)]
    assert shares(*others, ("own", {}, 0.0)).waiting_text.endswith(end)


def test_a_name_of_another_user_is_printed_on_one_short_line() -> None:
    text = shares(("a\x1b[31m\n" + 200 * "b", {"CPU": 8}, 1.0), ("own", {}, 0.0)).waiting_text
    assert "\x1b" not in text
    assert "\n" not in text
    assert len(text) < 120


def test_an_experiment_that_holds_nothing_is_shown_as_such() -> None:
    found = shares(("own", {}, 0.0))
    assert found.held_text(found.experiments[0]) == "nothing"


def test_memory_has_a_total_only_if_each_worker_has_a_limit() -> None:
    held = {"memory": 3 << 30}
    assert amounts_text(held, {"memory": 8 << 30}) == "3072 of 8192 MiB of memory"
    assert amounts_text(held, {}) == "3072 MiB of memory"
