"""Callbacks that write results down for other tools; the record of truth is the journal."""

from dasktune.logger.csv import CSVLoggerCallback
from dasktune.logger.json import JsonLoggerCallback
from dasktune.logger.logger import LoggerCallback
from dasktune.logger.tensorboardx import TBXLoggerCallback

__all__ = ["CSVLoggerCallback", "JsonLoggerCallback", "LoggerCallback", "TBXLoggerCallback"]
