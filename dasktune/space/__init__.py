"""Search spaces: domains, grids, and the configurations that are drawn from them.

The translation of domains for other libraries is in ``dasktune.search.spaces``.
"""

from dasktune.space.domain import Categorical, Domain, Function
from dasktune.space.json_form import from_json, to_json
from dasktune.space.primitives import (
    choice,
    grid_search,
    lograndint,
    loguniform,
    qlograndint,
    qloguniform,
    qrandint,
    qrandn,
    quniform,
    randint,
    randn,
    sample_from,
    uniform,
)
from dasktune.space.ranges import Float, Integer
from dasktune.space.samplers import (
    LogUniform,
    Normal,
    Quantized,
    RandomSource,
    Sampler,
    Uniform,
    random_generator,
)
from dasktune.space.secret import Secret, secret
from dasktune.space.variants import Variant, Variants, experiment_tag, overlay, resolve

__all__ = [
    # The functions that users write search spaces with.
    "uniform",
    "quniform",
    "loguniform",
    "qloguniform",
    "randn",
    "qrandn",
    "randint",
    "qrandint",
    "lograndint",
    "qlograndint",
    "choice",
    "sample_from",
    "grid_search",
    "secret",
    # Domains and samplers.
    "Domain",
    "Float",
    "Integer",
    "Categorical",
    "Function",
    "Secret",
    "Sampler",
    "Uniform",
    "LogUniform",
    "Normal",
    "Quantized",
    # Resolving.
    "RandomSource",
    "random_generator",
    "Variant",
    "Variants",
    "overlay",
    "resolve",
    "experiment_tag",
    # As JSON.
    "from_json",
    "to_json",
]
