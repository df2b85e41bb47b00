"""Orders the ranks of a distributed trial, and returns the environment variables of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dasktune.isolation.environment import thread_counts
from dasktune.placement import host_of
from dasktune.trainable.ranks import RankInfo
from dasktune.trainable.spec import TrialSpec

#: Variables of launchers that may have started the worker. Libraries would take a rank for one of
#: the launcher's processes.
_LAUNCHERS: Final = ("OMPI_", "PMI_", "PMIX_", "SLURM_STEP", "TORCHELASTIC_")
_LAUNCHED: Final = frozenset({"SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_PROCID"})


#: The variables in which the ranks of a trial, or the trials of an experiment, differ.
_OF_ONE_RANK: Final = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NODE_RANK",
        "RANK",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "TORCHELASTIC_RUN_ID",
        "WORLD_SIZE",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where a rank runs."""

    info: RankInfo
    #: Address of its Dask worker.
    address: str
    #: Index of its bundle in the trial's request.
    bundle: int

    @property
    def rank(self) -> int:
        """The rank's number in the trial."""
        return self.info.world_rank


def lay_out(addresses: Sequence[str]) -> tuple[RankPlace, ...]:
    """Return the ranks in order. Those of a host are neighbours, and so are those of a worker.

    Parameters
    ----------
    addresses : sequence of str
        Address of the worker of each bundle, head first. The head's bundle is rank 0.

    Examples
    --------
    >>> places = lay_out(["tcp://a:1", "tcp://b:1", "tcp://a:2"])
    >>> [(place.bundle, place.info.local_rank, place.info.node_rank) for place in places]
    [(0, 0, 0), (2, 1, 0), (1, 0, 1)]
    """
    hosts = list(dict.fromkeys(map(host_of, addresses)))
    workers = list(dict.fromkeys(addresses))

    def position(bundle: int) -> tuple[int, int, int]:
        address = addresses[bundle]
        return hosts.index(host_of(address)), workers.index(address), bundle

    order = sorted(range(len(addresses)), key=position)
    by_host = {host: [at for at in order if host_of(addresses[at]) == host] for host in hosts}
    places = []
    for rank, bundle in enumerate(order):
        host = host_of(addresses[bundle])
        info = RankInfo(
            world_rank=rank,
            world_size=len(order),
            local_rank=by_host[host].index(bundle),
            local_world_size=len(by_host[host]),
            node_rank=hosts.index(host),
            num_nodes=len(hosts),
        )
        places.append(RankPlace(info=info, address=addresses[bundle], bundle=bundle))
    return tuple(places)


def inherited_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a worker that its ranks get, too.

    Examples
    --------
    >>> inherited_environment({"HOME": "/root", "SLURM_PROCID": "3", "OMPI_COMM_WORLD_RANK": "3"})
    {'HOME': '/root'}
    """
    return {
        name: value
        for name, value in environment.items()
        if name not in _LAUNCHED and not name.startswith(_LAUNCHERS)
    }


def shared_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a rank that all ranks of equal resources have.

    Libraries read such variables when they are imported, above all the numbers of threads. The
    others are read later: ``CUDA_VISIBLE_DEVICES`` when CUDA is initialised.

    Examples
    --------
    >>> shared_environment({"RANK": "3", "OMP_NUM_THREADS": "2"})
    {'OMP_NUM_THREADS': '2'}
    """
    return {name: value for name, value in environment.items() if name not in _OF_ONE_RANK}


def rank_environment(
    spec: TrialSpec, place: RankPlace, places: Sequence[RankPlace], *, port: int
) -> dict[str, str]:
    """Return the variables of a rank, which are those that ``torchrun`` sets.

    Parameters
    ----------
    spec : TrialSpec
        The trial.
    place : RankPlace
        The rank.
    places : sequence of RankPlace
        All ranks of the trial.
    port : int
        The port for the rendezvous on the host of rank 0.
    """
    info = place.info
    values: dict[str, object] = {
        "RANK": info.world_rank,
        "WORLD_SIZE": info.world_size,
        "LOCAL_RANK": info.local_rank,
        "LOCAL_WORLD_SIZE": info.local_world_size,
        "GROUP_RANK": info.node_rank,
        "NODE_RANK": info.node_rank,
        "GROUP_WORLD_SIZE": info.num_nodes,
        "ROLE_RANK": info.world_rank,
        "ROLE_WORLD_SIZE": info.world_size,
        "ROLE_NAME": "default",
        "MASTER_ADDR": host_of(places[0].address),
        "MASTER_PORT": port,
        # Not TORCHELASTIC_USE_AGENT_STORE: rank 0 would wait for a store that a launcher runs.
        "TORCHELASTIC_RUN_ID": f"{spec.trial_id}-{spec.incarnation}",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
    }
    cpus = spec.resources.bundles[place.bundle].get("CPU", 0)
    environment = {**thread_counts(cpus), **{name: str(value) for name, value in values.items()}}
    devices = _visible_devices(spec, place, places)
    if devices is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    settings = spec.ranks
    return environment if settings is None else {**environment, **settings.env}


def _visible_devices(
    spec: TrialSpec, place: RankPlace, places: Sequence[RankPlace]
) -> tuple[str, ...] | None:
    """Return the GPUs that a rank sees; None for those of its worker.

    With one GPU for each rank of a host, they see all their GPUs in the order of their
    local ranks: so ``cuda:LOCAL_RANK`` is a rank's own, and the GPUs can copy to each other. Ranks
    that share a GPU see only that one, because CUDA finds no device at all if one is named twice.
    """
    if not spec.bundle_devices or spec.bundle_devices[place.bundle] is None:
        return None
    own = spec.bundle_devices[place.bundle] or ()
    beside = [one for one in places if one.info.node_rank == place.info.node_rank]
    devices = [spec.bundle_devices[one.bundle] or () for one in beside]
    names = tuple(name for one in devices for name in one)
    one_each = all(len(one) == 1 for one in devices) and len(set(names)) == len(names)
    return names if one_each else own
