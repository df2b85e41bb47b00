"""Logger callbacks: CSV, JSON and TensorBoard files with the results of each trial.

These files are copies for other tools; the journal remains the authoritative record. Loggers for
tracking services live in ``dasktune.integration``.
"""

from dasktune.logger.csv import CSVLoggerCallback
from dasktune.logger.json import JsonLoggerCallback
from dasktune.logger.logger import LoggerCallback
from dasktune.logger.tensorboardx import TBXLoggerCallback

__all__ = ["CSVLoggerCallback", "JsonLoggerCallback", "LoggerCallback", "TBXLoggerCallback"]
