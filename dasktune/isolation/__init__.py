"""Trials in processes of their own, which can be killed, crash alone and have their own GIL.

The worker's side is `ProcessRun`, which looks like a `TrialRun` from outside; the other side is
`child`, where a `TrialRun` does the work. They talk through a pair of sockets, see `wire`.
"""
