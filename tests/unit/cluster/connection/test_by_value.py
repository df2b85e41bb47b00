"""What reaches a scheduler of a task, without a scheduler."""

from __future__ import annotations

import asyncio
import inspect

from dasktune.cluster.connection.by_value import by_value


def test_what_dask_gives_comes_first():
    assert by_value(divmod, 4)(11) == (2, 3)
    assert by_value(dict)(a=1) == {"a": 1}


def test_a_coroutine_function_stays_one():
    async def add(a, b):
        return a + b

    task = by_value(add, 2)
    assert inspect.iscoroutinefunction(task)
    assert asyncio.run(task(1)) == 3
