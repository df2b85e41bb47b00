"""Population based training: PBT and its replay, which clone better trials.

PB2 is in ``dasktune.schedulers.pb2``; schedulers that only stop or pause trials are in
``dasktune.schedulers.halving_family``.
"""
