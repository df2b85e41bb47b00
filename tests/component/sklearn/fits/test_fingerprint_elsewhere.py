"""A fingerprint that another process makes."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("scipy")

import numpy as np
from scipy import stats
from sklearn.svm import SVC

from dasktune.sklearn.fits.fingerprint import digest


@pytest.mark.slow
def test_it_is_the_same_in_another_process():
    code = (
        "import numpy as np\n"
        "from scipy import stats\n"
        "from sklearn.svm import SVC\n"
        "from dasktune.sklearn.fits.fingerprint import digest\n"
        "print(digest([SVC(), stats.loguniform(1e-4, 1), {'b': 1, 'a': np.arange(3.0)}]))\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = digest([SVC(), stats.loguniform(1e-4, 1), {"a": np.arange(3.0), "b": 1}])
    assert told.stdout.strip() == here
