"""The trials of ``TuneSearchCV``: each trains one candidate step by step, on all splits.

The training modes, the cache of fitted transformers and the columns of ``cv_results_`` are here.
Whole fits, and the experiment that runs them, live in ``dasktune.sklearn.fits``.
"""
