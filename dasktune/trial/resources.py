"""Resource requests of trials. The executor grants them; see `dasktune.placement`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import fsum, isfinite
from numbers import Integral
from typing import Any, Final

from dasktune.errors import ConfigError, check
from dasktune.trial.metrics import number

#: How the bundles of one trial may be laid out over the workers.
STRATEGIES: Final = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")

#: Resources that a worker may have without a declaration; all others must be declared.
WELL_KNOWN: Final = frozenset({"CPU", "GPU", "memory"})

#: Common misspellings of names in a bundle, and the right names.
_MISSPELT: Final = {
    "cpu": "CPU",
    "gpu": "GPU",
    "num_cpus": "CPU",
    "num_gpus": "GPU",
    "Memory": "memory",
    "MEMORY": "memory",
}

#: The arguments of ``ray.init`` and ``ray.remote``, and what a trial's resources are called.
_OF_RAY: Final = {"num_cpus": '{"cpu": 1}', "num_gpus": '{"gpu": 1}'}

_Bundle = tuple[tuple[str, float], ...]

_GIB: Final = 1024**3


def _amount(value: object, name: str) -> float:
    """Return an amount, as an int if it is whole, so that ``1`` and ``1.0`` are the same."""
    is_bool = isinstance(value, bool)
    if isinstance(value, Integral) and not is_bool:
        return int(value)  # a float would round bytes beyond 2**53
    real = None if is_bool else number(value)
    if real is None or not isfinite(real):
        raise ConfigError(f"{name} must be a finite number, got {value!r}")
    return int(real) if real.is_integer() else real


def _total(amounts: Iterable[float]) -> float:
    """Return the exactly rounded sum (ten times 0.1 is 1), as an int if it is whole."""
    values = list(amounts)
    if all(isinstance(value, int) for value in values):
        return sum(values)
    total = fsum(values)
    return int(total) if total.is_integer() else total


def _amounts(given: object, name: str) -> dict[str, float]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{name} must be a dict of resource amounts, got {given!r}")
    amounts: dict[str, float] = {}
    for key, value in given.items():
        check(isinstance(key, str) and key != "", f"a name in {name}", "a non-empty string", key)
        meant = _MISSPELT.get(key)
        check(meant is None, f"a name in {name}", "spelt as it is known", key, f"Write {meant!r}.")
        amounts[key] = _amount(value, f"{name}[{key!r}]")
    return amounts


def _normalised(bundle: object, name: str) -> _Bundle:
    amounts = _amounts(bundle, name)
    for key, amount in amounts.items():
        check(amount >= 0, f"{name}[{key!r}]", "at least 0", amount)
        # A fraction of a GPU is on one device: 1.5 GPUs would need two pieces.
        whole = key != "GPU" or amount <= 1 or isinstance(amount, int)
        hint = "Fractions are allowed up to 1."
        check(whole, f"{name}[{key!r}]", "a whole number of GPUs", amount, hint)
    return tuple(sorted((key, amount) for key, amount in amounts.items() if amount))


@dataclass(frozen=True, slots=True, init=False, repr=False)
class PlacementGroupFactory:
    """A trial's request: a bundle of resources for itself and further ones for what it launches.

    All bundles are granted together or none is. Amounts of zero are dropped, so two requests
    for the same resources are equal.

    Parameters
    ----------
    bundles : list or tuple of mapping
        The head, on which user code runs and which may be empty, then the further bundles. Keys are
        ``"CPU"``, ``"GPU"``, ``"memory"`` (bytes) and names that workers declare. Fractions are
        allowed; an amount above one GPU must be whole.
    strategy : {"PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"}, default="PACK"
        Whether the bundles should, or must, share one worker or be on different ones.

    Raises
    ------
    ConfigError
        If there is no bundle, an amount is negative, not finite or no number, more than one GPU is
        requested as a fraction, or the strategy is not known.

    Examples
    --------
    >>> request = PlacementGroupFactory([{"CPU": 1, "GPU": 0}, {"CPU": 2.0}])
    >>> request
    PlacementGroupFactory([{'CPU': 1}, {'CPU': 2}])
    >>> request.required_resources
    {'CPU': 3}
    """

    #: Sorted ``(name, amount)`` pairs of each bundle, hashable and immutable.
    _bundles: tuple[_Bundle, ...]
    strategy: str
    #: Whether no other trial of the experiment may be on the same workers.
    exclusive: bool
    #: The sum over all bundles, which the runner reads at each step.
    _required: dict[str, float] = field(compare=False)

    def __init__(self, bundles: Sequence[Mapping[str, float]], strategy: str = "PACK") -> None:
        plural = isinstance(bundles, list | tuple) and len(bundles) > 0
        check(plural, "bundles", "a list of at least one dict", bundles)
        check(strategy in STRATEGIES, "strategy", f"one of {', '.join(STRATEGIES)}", strategy)
        clean = tuple(_normalised(bundle, f"bundles[{i}]") for i, bundle in enumerate(bundles))
        object.__setattr__(self, "_bundles", clean)
        object.__setattr__(self, "strategy", strategy)
        object.__setattr__(self, "exclusive", False)
        object.__setattr__(self, "_required", _sum(clean))

    @property
    def bundles(self) -> list[dict[str, float]]:
        """The bundles, head first, without zeros."""
        return [dict(bundle) for bundle in self._bundles]

    @property
    def head_resources(self) -> dict[str, float]:
        """The bundle on which user code runs."""
        return dict(self._bundles[0])

    @property
    def head_cpus(self) -> float:
        """CPUs on which user code runs; 0 if the head requests none."""
        return self.head_resources.get("CPU", 0)

    @property
    def required_resources(self) -> dict[str, float]:
        """The sum over all bundles."""
        return self._required.copy()

    def exclusively(self, exclusive: bool = True) -> PlacementGroupFactory:
        """Return the same request for workers on which no other trial of the experiment runs.

        Parameters
        ----------
        exclusive : bool, default=True
            False for workers on which other trials may run, too.

        Examples
        --------
        >>> PlacementGroupFactory([{"CPU": 1}]).exclusively()
        PlacementGroupFactory([{'CPU': 1}]).exclusively()
        """
        other = self._copy()
        object.__setattr__(other, "exclusive", exclusive)
        return other

    def to_json(self) -> dict[str, Any]:
        """Return the request as plain values."""
        values: dict[str, Any] = {"bundles": self.bundles, "strategy": self.strategy}
        return {**values, "exclusive": True} if self.exclusive else values

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PlacementGroupFactory:
        """Return the request in the plain values of :meth:`to_json`."""
        request: PlacementGroupFactory
        if data.get("by_host", False):
            request = HostPlacement(data["bundles"], data["strategy"], per_host=data.get("per_host"))
            if "min_bundles" in data:
                request = ElasticPlacement(request, data["min_bundles"], data["max_bundles"])
        else:
            request = PlacementGroupFactory(data["bundles"], strategy=data["strategy"])
        return request.exclusively() if data.get("exclusive", False) else request

    def __repr__(self) -> str:
        strategy = "" if self.strategy == "PACK" else f", strategy={self.strategy!r}"
        exclusive = ".exclusively()" if self.exclusive else ""
        return f"{type(self).__name__}({self.bundles}{strategy}{self._further()}){exclusive}"

    def _copy(self) -> PlacementGroupFactory:
        """Return the same request, which is not exclusive."""
        return PlacementGroupFactory(self.bundles, self.strategy)

    def _further(self) -> str:
        """Return the further arguments as text."""
        return ""


@dataclass(frozen=True, slots=True, init=False, repr=False)
class HostPlacement(PlacementGroupFactory):
    """A request for equal bundles whose strategy counts hosts and not workers.

    Several workers may run on one host: all bundles there are together.

    Parameters
    ----------
    bundles : list or tuple of mapping
        Equal bundles.
    strategy : {"PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"}, default="PACK"
        Whether the bundles should, or must, share one host or be on different ones.
    per_host : int, optional
        The exact number of bundles on each host.

    Raises
    ------
    ConfigError
        If the bundles differ, `per_host` does not divide their number, or a strict strategy
        contradicts it.

    Examples
    --------
    >>> HostPlacement([{"GPU": 1}] * 4, per_host=2).required_resources
    {'GPU': 4}
    """

    per_host: int | None

    def __init__(
        self, bundles: Sequence[Mapping[str, float]], strategy: str = "PACK", per_host: int | None = None
    ) -> None:
        PlacementGroupFactory.__init__(self, bundles, strategy)
        object.__setattr__(self, "per_host", per_host)
        check(len(set(self._bundles)) == 1, "bundles", "equal", bundles)
        whole = per_host is None or (per_host >= 1 and len(self._bundles) % per_host == 0)
        rule = f"a divisor of the number of ranks, {len(self._bundles)}"
        check(whole, "per_host", rule, per_host, "Each host has this number of ranks exactly.")
        agrees = not _contradicts(strategy, per_host, len(self._bundles))
        rule = f"{len(self._bundles) if strategy == 'STRICT_PACK' else 1} with the strategy {strategy}"
        check(agrees, "per_host", rule, per_host, f"Leave out {strategy}, or per_host.")

    def to_json(self) -> dict[str, Any]:
        """Return the request as plain values."""
        values = {**PlacementGroupFactory.to_json(self), "by_host": True}
        return values if self.per_host is None else {**values, "per_host": self.per_host}

    def _copy(self) -> HostPlacement:
        """Return the same request, which is not exclusive."""
        return HostPlacement(self.bundles, self.strategy, self.per_host)

    def _further(self) -> str:
        """Return the further arguments as text."""
        return "" if self.per_host is None else f", per_host={self.per_host}"


@dataclass(frozen=True, slots=True, init=False, repr=False)
class ElasticPlacement(HostPlacement):
    """A request for equal bundles on hosts of which fewer are enough, if there is no room for all.

    Parameters
    ----------
    request : HostPlacement
        The bundles that are requested now, and their layout.
    min_bundles, max_bundles : int
        The fewest bundles that are enough, and all of them.

    Raises
    ------
    ConfigError
        If the numbers are not in order, or the layout is not possible with the fewest bundles.

    Examples
    --------
    >>> request = ElasticPlacement(HostPlacement([{"GPU": 1}] * 4, per_host=2), 2, 4)
    >>> request.sizes
    (4, 2)
    >>> request.resized(2).required_resources
    {'GPU': 2}
    """

    # A class of its own for the same reason as `HostPlacement`.

    min_bundles: int
    max_bundles: int

    def __init__(self, request: HostPlacement, min_bundles: int, max_bundles: int) -> None:
        HostPlacement.__init__(self, request.bundles, request.strategy, request.per_host)
        object.__setattr__(self, "exclusive", request.exclusive)
        object.__setattr__(self, "min_bundles", min_bundles)
        object.__setattr__(self, "max_bundles", max_bundles)
        rule = f"from 1 to the number of ranks, {max_bundles}"
        check(1 <= min_bundles <= len(self._bundles) <= max_bundles, "min_ranks", rule, min_bundles)
        HostPlacement(self.bundles[:1] * min_bundles, self.strategy, self.per_host)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The possible numbers of bundles, from all of them down to the fewest."""
        return tuple(range(self.max_bundles, self.min_bundles - 1, -(self.per_host or 1)))

    @property
    def is_reduced(self) -> bool:
        """Whether it requests fewer than all bundles."""
        return len(self._bundles) < self.max_bundles

    def resized(self, size: int) -> ElasticPlacement:
        """Return the same request for another number of bundles.

        Parameters
        ----------
        size : int
            One of `sizes`.
        """
        request = HostPlacement(self.bundles[:1] * size, self.strategy, self.per_host)
        other = ElasticPlacement(request, self.min_bundles, self.max_bundles)
        object.__setattr__(other, "exclusive", self.exclusive)
        return other

    def to_json(self) -> dict[str, Any]:
        """Return the request as plain values."""
        numbers = {"min_bundles": self.min_bundles, "max_bundles": self.max_bundles}
        return {**HostPlacement.to_json(self), **numbers}

    def _copy(self) -> ElasticPlacement:
        """Return the same request, which is not exclusive."""
        request = HostPlacement(self.bundles, self.strategy, self.per_host)
        return ElasticPlacement(request, self.min_bundles, self.max_bundles)

    def __repr__(self) -> str:
        exclusive = ".exclusively()" if self.exclusive else ""
        request = HostPlacement(self.bundles, self.strategy, self.per_host)
        return f"ElasticPlacement({request!r}, {self.min_bundles}, {self.max_bundles}){exclusive}"


def least_request(request: PlacementGroupFactory) -> PlacementGroupFactory:
    """Return the smallest request that is enough for a trial: the given one, unless it is elastic.

    Parameters
    ----------
    request : PlacementGroupFactory
        The request.

    Examples
    --------
    >>> least_request(ElasticPlacement(HostPlacement([{"GPU": 1}] * 4), 2, 4)).required_resources
    {'GPU': 2}
    """
    return request.resized(request.min_bundles) if isinstance(request, ElasticPlacement) else request


def with_bundles(
    request: PlacementGroupFactory, bundles: Sequence[Mapping[str, float]], strategy: str | None = None
) -> PlacementGroupFactory:
    """Return a request for other bundles, with the layout of a given one.

    Parameters
    ----------
    request : PlacementGroupFactory
        The request whose layout is kept: by worker or by host, and how many bundles on each host.
    bundles : sequence of mapping
        The bundles.
    strategy : str, optional
        The placement strategy; that of `request` by default.

    Raises
    ------
    ConfigError
        If the layout is not possible with these bundles.

    Examples
    --------
    >>> with_bundles(HostPlacement([{"GPU": 1}] * 4, per_host=2), [{"GPU": 2}] * 2)
    HostPlacement([{'GPU': 2}, {'GPU': 2}], per_host=2)
    """
    strategy = strategy or request.strategy
    if isinstance(request, HostPlacement):
        return HostPlacement(bundles, strategy, request.per_host)
    return PlacementGroupFactory(bundles, strategy)


def _contradicts(strategy: str, per_host: int | None, number: int) -> bool:
    """Whether a strict strategy cannot be followed with so many of the bundles on each host."""
    if per_host is None:
        return False
    return {"STRICT_PACK": number, "STRICT_SPREAD": 1}.get(strategy, per_host) != per_host


def _sum(bundles: tuple[_Bundle, ...]) -> dict[str, float]:
    names = sorted({name for bundle in bundles for name, _ in bundle})
    held = [dict(bundle) for bundle in bundles]
    return {name: _total(bundle.get(name, 0) for bundle in held) for name in names}


def _custom(given: object, name: str) -> dict[str, float]:
    """Return amounts of custom resources, checked."""
    amounts = _amounts(given, name)
    own = not amounts.keys() & WELL_KNOWN
    check(own, name, "free of CPU, GPU and memory, which are arguments of their own", given)
    return amounts


@dataclass(frozen=True, slots=True)
class Resources:
    """The older form of a request: a bundle, and a second one for what the trial launches.

    Parameters
    ----------
    cpu, gpu : float, default=1 and 0
        CPUs and GPUs of the trial itself. Fractions are allowed.
    memory : float, default=0
        Bytes.
    object_store_memory : float, default=0
        Bytes. A Dask worker has one memory, so a request adds it to `memory`.
    extra_cpu, extra_gpu, extra_memory, extra_object_store_memory : float, default=0
        Reserved for the tasks that the trial launches, not for the trial itself.
    custom_resources, extra_custom_resources : mapping, optional
        Amounts by names that workers declare.

    Raises
    ------
    ConfigError
        If an amount is not finite or no number. :meth:`subtract` may return negative amounts, but
        they cannot become a request.

    Examples
    --------
    >>> Resources(cpu=2, extra_gpu=1, custom_resources={"TPU": 4}).summary_string()
    '2 CPUs, 1 GPUs (4 TPU)'
    """

    cpu: float = 1
    gpu: float = 0
    memory: float = 0
    object_store_memory: float = 0
    extra_cpu: float = 0
    extra_gpu: float = 0
    extra_memory: float = 0
    extra_object_store_memory: float = 0
    custom_resources: dict[str, float] = field(default_factory=dict, hash=False)
    extra_custom_resources: dict[str, float] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name in _PLAIN:
            object.__setattr__(self, name, _amount(getattr(self, name), name))
        for name in _CUSTOM:
            object.__setattr__(self, name, _custom(getattr(self, name), name))

    def cpu_total(self) -> float:
        """CPUs, with the reserved ones."""
        return _total((self.cpu, self.extra_cpu))

    def gpu_total(self) -> float:
        """GPUs, with the reserved ones."""
        return _total((self.gpu, self.extra_gpu))

    def memory_total(self) -> float:
        """Bytes of memory, with the reserved ones."""
        return _total((self.memory, self.extra_memory))

    def object_store_memory_total(self) -> float:
        """Bytes of object memory, with the reserved ones."""
        return _total((self.object_store_memory, self.extra_object_store_memory))

    def get_res_total(self, key: str) -> float:
        """Amount of the custom resource `key`, with the reserved part; 0 if it is not requested."""
        return _total((self.custom_resources.get(key, 0), self.extra_custom_resources.get(key, 0)))

    def is_nonnegative(self) -> bool:
        """Whether no amount is below zero, counting the reserved ones too."""
        plain = (getattr(self, name) for name in _PLAIN)
        custom = (value for name in _CUSTOM for value in getattr(self, name).values())
        return all(value >= 0 for values in (plain, custom) for value in values)

    @classmethod
    def subtract(cls, original: Resources, to_remove: Resources) -> Resources:
        """Return the difference; amounts may be negative.

        Examples
        --------
        >>> Resources.subtract(Resources(cpu=4), Resources(cpu=1)).cpu
        3
        """
        left: dict[str, Any] = {
            name: _total((getattr(original, name), -getattr(to_remove, name))) for name in _PLAIN
        }
        for name in _CUSTOM:
            ours, theirs = getattr(original, name), getattr(to_remove, name)
            left[name] = {key: _total((ours.get(key, 0), -theirs.get(key, 0))) for key in {**ours, **theirs}}
        return cls(**left)

    def summary_string(self) -> str:
        """Return one line for people; memory in GiB."""
        text = f"{self.cpu_total()} CPUs, {self.gpu_total()} GPUs"
        memory, objects = self.memory_total(), self.object_store_memory_total()
        if memory:
            text += f", {round(memory / _GIB, 2)} GiB heap"
        if objects:
            text += f", {round(objects / _GIB, 2)} GiB objects"
        names = {**self.custom_resources, **self.extra_custom_resources}
        custom = ", ".join(f"{self.get_res_total(name)} {name}" for name in names)
        return f"{text} ({custom})" if custom else text

    def to_json(self) -> dict[str, Any]:
        """Return the request as plain values."""
        return asdict(self)

    def to_placement_group(self) -> PlacementGroupFactory:
        """Return the request as bundles: the trial's own, and the reserved one if there is any.

        Raises
        ------
        ConfigError
            If an amount is negative.
        """
        head = {
            **self.custom_resources,
            "CPU": self.cpu,
            "GPU": self.gpu,
            "memory": _total((self.memory, self.object_store_memory)),
        }
        extra = {
            **self.extra_custom_resources,
            "CPU": self.extra_cpu,
            "GPU": self.extra_gpu,
            "memory": _total((self.extra_memory, self.extra_object_store_memory)),
        }
        return PlacementGroupFactory([head, extra] if any(extra.values()) else [head])


_CUSTOM: Final = ("custom_resources", "extra_custom_resources")
_PLAIN: Final = tuple(item.name for item in fields(Resources) if item.name not in _CUSTOM)


def as_placement_group(value: object) -> PlacementGroupFactory:
    """Return the request for a user's value of ``resources``.

    Parameters
    ----------
    value : None, mapping, Resources or PlacementGroupFactory
        None and an empty dict are one CPU. Any other dict requests exactly what it names: the
        fields of :class:`Resources`, ``"CPU"``, ``"GPU"``, and names that workers declare.

    Raises
    ------
    ConfigError
        If `value` is of another type, or names a resource twice.

    Examples
    --------
    >>> as_placement_group({"cpu": 2, "custom_resources": {"TPU": 1}})
    PlacementGroupFactory([{'CPU': 2, 'TPU': 1}])
    >>> as_placement_group({"CPU": 2, "TPU": 1}) == _
    True
    """
    if isinstance(value, PlacementGroupFactory):
        return value
    if isinstance(value, Resources):
        return value.to_placement_group()
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(
            "resources must be None, a dict, Resources or PlacementGroupFactory, "
            f'got {value!r}. Write {{"cpu": 2, "gpu": 1}}.'
        )
    if not value:
        return PlacementGroupFactory([{"CPU": 1}])
    return _from_mapping(value)


def _from_mapping(value: Mapping[Any, Any]) -> PlacementGroupFactory:
    known: dict[str, Any] = {"cpu": 0}
    loose: dict[Any, Any] = {}
    for key, amount in value.items():
        check(key not in _OF_RAY, "resources", "spelt as they are known", value, f"Write {_OF_RAY.get(key)}.")
        name = key.lower() if key in ("CPU", "GPU") else key
        once = name == key or name not in value
        check(once, "resources", f"a dict with either {name} or {key}", value)
        (known if name in _PLAIN or name in _CUSTOM else loose)[name] = amount
    if not loose:
        return Resources(**known).to_placement_group()
    named = _custom(known.get("custom_resources", {}), "custom_resources")
    once = not loose.keys() & named.keys()
    check(once, "resources", "a dict that names each resource once", value)
    return Resources(**known | {"custom_resources": named | loose}).to_placement_group()
