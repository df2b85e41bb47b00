"""What ls shows of the experiments on a cluster."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from dasktune.cluster.sharing import share_summary

SHARES: dict[str, Any] = {
    "totals": {"CPU": 8.0, "GPU": 2.0},
    "experiments": [
        {
            "name": "later",
            "weight": 1.0,
            "priority": -1.0,
            "held": {},
            "share": 0.0,
            "due": 0.25,
            "waiting": 3,
            "waiting_s": 21.4,
            "group": "",
        },
        {
            "name": "e\x1b[1m",
            "weight": 2.5,
            "priority": 0.0,
            "held": {"CPU": 6.0, "GPU": 1.0},
            "share": 0.75,
            "due": None,
            "waiting": 0,
            "waiting_s": None,
            "group": "",
        },
    ],
}


@pytest.fixture
def clusters() -> dict[str, dict[str, Any]]:
    """The shares on each cluster that has experiments, by its address."""
    return {"tcp://host:8786": SHARES}


@pytest.fixture
def asked(clusters: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Answer with these shares, and note the addresses that were given."""
    addresses = []

    def read_shares(client: str, *, timeout_s: float) -> dict[str, Any]:
        addresses.append(client)
        return clusters.get(client, {"totals": {}, "experiments": []})

    monkeypatch.setattr(share_summary, "read_shares", read_shares)
    return addresses


def test_ls_shows_the_shares_of_a_cluster(asked, dasktune):
    code, out, _ = dasktune("ls", "--address", "tcp://host:8786")
    assert (code, asked) == (0, ["tcp://host:8786"])
    head, first, second = (re.split(r" {2,}", line) for line in out.splitlines())
    assert head == ["name", "weight", "priority", "holds", "share", "due", "waiting", "since"]
    assert first == ["e?[1m", "2.5", "0", "6 of 8 CPUs and 1 of 2 GPUs", "75%", "0"]
    assert second == ["later", "1", "-1", "nothing", "0%", "25%", "3", "21.4 s"]


def test_ls_gives_the_shares_of_a_cluster_to_programs(asked, dasktune):
    code, out, _ = dasktune("ls", "--address", "tcp://host:8786", "--format", "json")
    assert (code, json.loads(out)["totals"]) == (0, {"CPU": 8.0, "GPU": 2.0})
    assert json.loads(out)["experiments"] == SHARES["experiments"][::-1]
    code, out, _ = dasktune("ls", "--address", "tcp://host:8786", "--format", "csv")
    head, _, later = out.splitlines()
    assert head == "name,weight,priority,held,share,due,waiting,waiting_s,group"
    assert later == "later,1.0,-1.0,{},0.0,0.25,3,21.4,"


def test_ls_shows_which_experiments_divide_the_share_of_a_group(asked, clusters, dasktune):
    later, first = SHARES["experiments"]
    more = {**first, "name": "b", "group": "ann"}, {**first, "name": "c", "group": "ann\x1b[1m"}
    clusters["tcp://host:8786"] = {
        **SHARES,
        "experiments": [{**later, "group": "ann"}, *more, {**first, "name": "d", "group": ""}],
    }
    code, out, _ = dasktune("ls", "--address", "tcp://host:8786")
    assert code == 0
    head, *rows = (re.split(r" {2,}", line) for line in out.splitlines())
    assert head[:3] == ["name", "group", "weight"]
    # Those of a group are listed together, below those without one.
    assert [row[:3] for row in rows] == [
        ["d", "2.5", "0"],
        ["b", "ann", "2.5"],
        ["c", "ann?[1m", "2.5"],
        ["later", "ann", "1"],
    ]
    code, out, _ = dasktune("ls", "--address", "tcp://host:8786", "--format", "csv")
    assert out.splitlines()[-1] == "later,1.0,-1.0,{},0.0,0.25,3,21.4,ann"


def test_ls_of_a_cluster_without_experiments_says_so(asked, dasktune):
    assert dasktune("ls", "--address", "tcp://host:1")[:2] == (0, "no experiments on tcp://host:1\n")


def test_ls_lists_a_directory_or_a_cluster_but_not_both(asked, dasktune):
    code, _, err = dasktune("ls", "results", "--address", "tcp://host:1")
    assert (code, asked) == (2, [])
    assert "PATH must be left out with --address, got 'results'" in err
