"""Checkpoints, journal, leader lock and other files of an experiment, on any fsspec storage."""
