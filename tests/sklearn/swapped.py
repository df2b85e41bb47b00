"""A pytest plugin that puts the classes of dasktune in the place of scikit-learn's."""

from sklearn import model_selection
from sklearn.experimental import enable_halving_search_cv  # noqa: F401

import dasktune.sklearn

for name in dasktune.sklearn.__all__:
    setattr(model_selection, name, getattr(dasktune.sklearn, name))
