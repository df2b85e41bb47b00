"""The public searches with cross-validation: grid, random, halving and ``TuneSearchCV``.

Searches that train on blocks of data by ``partial_fit`` live in ``dasktune.sklearn.incremental``.
"""
