"""What reaches a scheduler of a task, without a scheduler."""

from __future__ import annotations

import asyncio
import inspect
import pickle

import cloudpickle

from dasktune.cluster.connection.by_value import by_value, dumps_class_once, of_pickled, pickled_once


def test_what_dask_gives_comes_first():
    assert by_value(divmod, 4)(11) == (2, 3)
    assert by_value(dict)(a=1) == {"a": 1}


def test_a_coroutine_function_stays_one():
    async def add(a, b):
        return a + b

    task = by_value(add, 2)
    assert inspect.iscoroutinefunction(task)
    assert asyncio.run(task(1)) == 3


def test_tasks_of_one_function_have_their_own_pickled_arguments():
    async def add(a, b):
        return a + b

    assert of_pickled(int)(cloudpickle.dumps((("ff",), {"base": 16}))) == 255
    task = of_pickled(add)
    assert inspect.iscoroutinefunction(task)
    assert asyncio.run(task(cloudpickle.dumps(((1,), {"b": 2})))) == 3


def test_a_function_that_is_pickled_once_unpickles_as_itself():
    made = []

    @pickled_once
    def adder():
        made.append(1)

        async def add(a, b):
            return a + b

        return add

    blobs = [pickle.dumps(adder()) for _ in range(2)]
    assert made == [1]
    assert blobs[0] == blobs[1]
    assert b"dasktune" not in blobs[0].replace(b"dasktune.cluster.connection.by_value", b"")
    there = pickle.loads(blobs[0])
    assert inspect.iscoroutinefunction(there)
    assert asyncio.run(there(1, 2)) == asyncio.run(adder()(1, 2)) == 3


def test_two_objects_of_a_class_that_is_pickled_once_have_their_own_values():
    class Pair:
        def __init__(self, first, second):
            self.first, self.second = first, second

    class Further(Pair):
        pass

    pairs = [Pair(1, [2]), Pair(Further, None), Further("a", Pair(3, 4))]
    there = [cloudpickle.loads(dumps_class_once(one)) for one in pairs]
    assert [type(one).__name__ for one in there] == ["Pair", "Pair", "Further"]
    assert (there[0].first, there[0].second) == (1, [2])
    assert there[1].first.__name__ == "Further"
    assert (there[2].second.first, there[2].second.second) == (3, 4)
