"""All public names of Ray Tune 2.60.0: ``__all__`` of its modules, but for private ones.

The modules of integrations have none: of them what they define themselves.
"""

from __future__ import annotations

NAMES = {
    "": """
        CLIReporter Callback Checkpoint CheckpointConfig Experiment ExperimentAnalysis FailureConfig
        JupyterNotebookReporter PlacementGroupFactory ProgressReporter Result ResultGrid
        ResumeConfig RunConfig Stopper SyncConfig Trainable TuneConfig TuneContext TuneError Tuner
        choice create_scheduler create_searcher get_checkpoint get_context grid_search lograndint
        loguniform qlograndint qloguniform qrandint qrandn quniform randint randn register_env
        register_trainable report run run_experiments sample_from uniform with_parameters
        with_resources
    """,
    ".schedulers": """
        ASHAScheduler AsyncHyperBandScheduler FIFOScheduler HyperBandForBOHB HyperBandScheduler
        MedianStoppingRule PopulationBasedTraining PopulationBasedTrainingReplay
        ResourceChangingScheduler TrialScheduler
    """,
    ".search": """
        BasicVariantGenerator ConcurrencyLimiter Repeater SearchAlgorithm SearchGenerator Searcher
        UNDEFINED_METRIC_MODE UNDEFINED_SEARCH_SPACE UNRESOLVED_SEARCH_SPACE grid_search
    """,
    ".stopper": """
        CombinedStopper ExperimentPlateauStopper FunctionStopper MaximumIterationStopper NoopStopper
        Stopper TimeoutStopper TrialPlateauStopper
    """,
    ".search.optuna": "OptunaSearch",
    ".experiment": "Experiment Trial",
    ".analysis": "ExperimentAnalysis",
    ".trainable": "FunctionTrainable Trainable with_parameters wrap_function",
    ".logger": """
        CSVLoggerCallback JsonLoggerCallback LoggerCallback TBXLoggerCallback pretty_print
    """,
    ".integration.keras": "TuneReportCallback TuneReportCheckpointCallback",
    ".integration.lightgbm": "TuneReportCallback TuneReportCheckpointCallback",
    ".integration.pytorch_lightning": """
        TuneCallback TuneReportCallback TuneReportCheckpointCallback
    """,
    ".integration.ray_train": "CHECKPOINT_PATH_KEY TuneReportCallback",
    ".integration.xgboost": "TuneReportCallback TuneReportCheckpointCallback",
}
