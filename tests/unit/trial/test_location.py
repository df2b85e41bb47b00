"""Tests of where a trial is said to run."""

from dasktune.trial.location import Location

ROW = {"hostname": "node-1", "node_ip": "10.0.0.1", "pid": 42, "loss": 0.5}


def test_a_result_tells_where_it_came_from():
    location = Location.of(ROW, "tcp://10.0.0.1:1234")
    assert location == Location(hostname="node-1", node_ip="10.0.0.1", pid=42, worker="tcp://10.0.0.1:1234")
    assert str(location) == "10.0.0.1:42"


def test_a_result_without_a_process_tells_nothing():
    assert Location.of({"loss": 0.5}, "slot-0") is None
