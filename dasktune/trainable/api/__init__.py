"""The API for user code in a trial: ``report``, the context, ``Trainable``, bound parameters.

``dasktune.trainable.reporting`` processes the reports.
"""
