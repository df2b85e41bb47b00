"""Trials in child processes, which can be killed, crash alone and have their own GIL.

On the worker, `ProcessRun` is used like a `ThreadRun`. In the child, `child` runs the trial in a
`ThreadRun`. They exchange the messages of `process_messages` over a pair of sockets.
"""
