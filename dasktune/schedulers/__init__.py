"""Trial schedulers: which trial runs next, and which trials continue, pause or stop.

The experiment carries out their decisions (``dasktune.experiment``); nothing here starts a trial.
"""

from dasktune.schedulers.cluster_view import ClusterView
from dasktune.schedulers.create import create_scheduler
from dasktune.schedulers.decision import (
    Command,
    Continue,
    Decision,
    Exploit,
    ExploitOther,
    Pause,
    Resize,
    ResizeWaiting,
    Stop,
    StopOther,
    Unpause,
)
from dasktune.schedulers.fifo import FIFOScheduler
from dasktune.schedulers.function_scheduler import FunctionScheduler
from dasktune.schedulers.halving_family.asha import ASHAScheduler, AsyncHyperBandScheduler
from dasktune.schedulers.halving_family.hb_bohb import HyperBandForBOHB
from dasktune.schedulers.halving_family.hyperband import HyperBandScheduler
from dasktune.schedulers.halving_family.multi_objective import MultiObjectiveASHAScheduler
from dasktune.schedulers.halving_family.promoting import PromotingASHAScheduler
from dasktune.schedulers.halving_family.successive_halving import SuccessiveHalvingScheduler
from dasktune.schedulers.median import MedianStoppingRule
from dasktune.schedulers.pb2 import PB2
from dasktune.schedulers.population_based.pbt import PopulationBasedTraining
from dasktune.schedulers.population_based.pbt_replay import PopulationBasedTrainingReplay
from dasktune.schedulers.resources.distribute import (
    DistributeResources,
    DistributeResourcesToTopJob,
)
from dasktune.schedulers.resources.resource_changing import ResourceChangingScheduler
from dasktune.schedulers.trial_scheduler import TrialScheduler, Waiting
from dasktune.trial.checkpoint_record import CheckpointKind

__all__ = [
    "PB2",
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "CheckpointKind",
    "ClusterView",
    "Command",
    "Continue",
    "Decision",
    "DistributeResources",
    "DistributeResourcesToTopJob",
    "Exploit",
    "ExploitOther",
    "FIFOScheduler",
    "FunctionScheduler",
    "HyperBandForBOHB",
    "HyperBandScheduler",
    "MedianStoppingRule",
    "MultiObjectiveASHAScheduler",
    "Pause",
    "PopulationBasedTraining",
    "PopulationBasedTrainingReplay",
    "PromotingASHAScheduler",
    "Resize",
    "ResizeWaiting",
    "ResourceChangingScheduler",
    "Stop",
    "StopOther",
    "SuccessiveHalvingScheduler",
    "TrialScheduler",
    "Unpause",
    "Waiting",
    "create_scheduler",
]
