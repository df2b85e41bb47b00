"""Hugging Face Transformers: a callback for ``Trainer``, and its hyperparameter search."""

from dasktune.integration.transformers.trainer_callback import TuneReportCheckpointCallback
from dasktune.integration.transformers.trainer_search import default_hp_space, hyperparameter_search

__all__ = ["TuneReportCheckpointCallback", "default_hp_space", "hyperparameter_search"]
