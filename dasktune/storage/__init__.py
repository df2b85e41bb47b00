"""Checkpoints, the journal and the other files of an experiment, on any storage of fsspec."""
