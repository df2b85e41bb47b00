"""Which trial runs next, and which goes on, pauses or stops."""

from dasktune.schedulers.asha import ASHAScheduler, AsyncHyperBandScheduler
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
from dasktune.schedulers.distribute import DistributeResources, DistributeResourcesToTopJob
from dasktune.schedulers.fifo import FIFOScheduler
from dasktune.schedulers.function import FunctionScheduler
from dasktune.schedulers.hb_bohb import HyperBandForBOHB
from dasktune.schedulers.hyperband import HyperBandScheduler
from dasktune.schedulers.median import MedianStoppingRule
from dasktune.schedulers.multi_objective import MultiObjectiveASHAScheduler
from dasktune.schedulers.pb2 import PB2
from dasktune.schedulers.pbt import PopulationBasedTraining
from dasktune.schedulers.pbt_replay import PopulationBasedTrainingReplay
from dasktune.schedulers.promoting import PromotingASHAScheduler
from dasktune.schedulers.resource_changing import ResourceChangingScheduler
from dasktune.schedulers.successive_halving import SuccessiveHalvingScheduler
from dasktune.schedulers.trial_scheduler import TrialScheduler, Waiting
from dasktune.trial.checkpoint import CheckpointKind

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
    "HyperBandForBOHB",
    "HyperBandScheduler",
    "FunctionScheduler",
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
