"""What reaches a scheduler of a task, without a scheduler."""

from __future__ import annotations

import asyncio
import inspect

import cloudpickle

from dasktune.cluster.connection.by_value import by_value, of_pickled


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
