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

#: What has no list of public names, by the heading below which it stands, with the modules.
DOTTED = {
    "`ray.air.integrations`": """
        comet.CometLoggerCallback keras.ReportCheckpointCallback mlflow.MLflowLoggerCallback
        mlflow.setup_mlflow wandb.WandbLoggerCallback wandb.setup_wandb
    """,
    "Other modules of `ray.tune`": """
        callback.Callback callback.CallbackList context.TuneContext context.get_context
        error.TuneError execution.placement_groups.PlacementGroupFactory
        execution.placement_groups.resource_dict_to_pg_factory
        execution.tune_controller.TrialRunnerWrapper execution.tune_controller.TuneController
        experiment.trial.ExportFormat experiment.trial.Trial
        impl.placeholder.inject_placeholders impl.placeholder.resolve_placeholders
        logger.aim.AimLoggerCallback logger.comet.CometLoggerCallback
        logger.mlflow.MLflowLoggerCallback logger.wandb.WandbLoggerCallback
        progress_reporter.CLIReporter progress_reporter.JupyterNotebookReporter
        progress_reporter.ProgressReporter progress_reporter.RemoteReporterMixin
        progress_reporter.TrialProgressCallback progress_reporter.TuneReporterBase
        registry.get_trainable_cls registry.is_function_trainable registry.register_env
        registry.register_input registry.register_trainable registry.registry_contains_input
        registry.registry_get_input registry.validate_trainable resources.Resources
        resources.json_to_resources resources.resources_to_json result.DONE result.SHOULD_CHECKPOINT
        result.TIME_TOTAL_S result.TRAINING_ITERATION result_grid.ResultGrid
        schedulers.create_scheduler schedulers.pb2.PB2
        schedulers.resource_changing_scheduler.DistributeResources
        schedulers.resource_changing_scheduler.DistributeResourcesToTopJob
        schedulers.resource_changing_scheduler.ResourceChangingScheduler search.ax.AxSearch
        search.bayesopt.BayesOptSearch search.bohb.BOHB search.bohb.TuneBOHB
        search.create_searcher search.hebo.HEBOSearch search.hyperopt.HyperOptSearch
        search.nevergrad.NevergradSearch search.sample.BaseSampler search.sample.Categorical
        search.sample.Domain search.sample.Float search.sample.Function search.sample.Grid
        search.sample.Integer search.sample.LogUniform search.sample.Normal
        search.sample.Quantized search.sample.Sampler search.sample.Uniform
        search.variant_generator.RecursiveDependencyError search.variant_generator.assign_value
        search.variant_generator.format_vars search.variant_generator.generate_variants
        search.variant_generator.grid_search search.variant_generator.parse_spec_vars
        search.zoopt.ZOOptSearch syncer.SyncConfig trainable.util.with_parameters
        trainable.util.with_resources tune.run tune.run_experiments tune_config.ResumeConfig
        tune_config.TuneConfig tuner.Tuner utils.Tee utils.UtilMonitor utils.date_str
        utils.deep_update utils.diagnose_serialization
        utils.file_transfer.sync_dir_between_nodes utils.flatten_dict utils.log.Verbosity
        utils.log.disable_ipython utils.log.has_verbosity utils.log.set_verbosity
        utils.merge_dicts utils.retry_fn utils.serialization.TuneFunctionDecoder
        utils.serialization.TuneFunctionEncoder utils.unflattened_lookup
        utils.validate_save_restore utils.validate_warmstart utils.wait_for_gpu
        utils.warn_if_slow
    """,
    "Names of earlier versions": """
        Checkpoint.MEMORY Checkpoint.PERSISTENT Checkpoint.from_bytes Checkpoint.from_dict
        Checkpoint.to_bytes Checkpoint.to_dict DurableTrainable ExportFormat FunctionTrainable
        Location RayTrialExecutor Resources StatusReporter Trainable._export_model
        Trainable._restore Trainable._save Trainable._setup Trainable._stop Trainable._train
        Trainable.export_model TrialExecutor TrialInfo TrialRunner TrialScheduler TuneClient
        TuneServer TunerInternal UnifiedLogger checkpoint_dir make_checkpoint_dir pretty_print
        register_env register_trainable save_checkpoint status_reporter suggest track
        wrap_function
    """,
}

#: What earlier versions let users set or call.
EXECUTORS = """
    checkpoint_period continue_training export_trial_if_needed fetch_result get_checkpoints
    get_next_available_trial get_next_executor_event get_next_failed_trial get_ready_trial
    has_resources launch_web_server local_checkpoint_dir pause_trial queue_trials refresh_period
    remote_checkpoint_dir reset_trial restore save server_port set_status start_trial stop_trial
    stopper trial_executor try_checkpoint_metadata unpause_trial
"""

#: What earlier versions said of a trial.
TRIALS = """
    checkpoint checkpoint_at_end checkpoint_freq checkpoint_manager checkpoint_score_attr
    clear_checkpoint close_logger config create_placement_group_factory custom_trial_name
    error_file error_msg evaluated_params experiment_tag export_formats get_error
    get_trainable_cls has_checkpoint init_logdir init_logger is_finished is_restoring is_saving
    keep_checkpoints_num last_result local_dir local_path location log_to_file logdir loggers
    max_failures metric_analysis metric_n_steps node_ip num_failures on_checkpoint on_restore
    path placement_group_factory relative_logdir remote_checkpoint_dir remote_path resources
    restore_path restoring_from result_logger runner saving_to set_location set_runner
    set_status set_verbose should_checkpoint should_recover should_stop start_time status
    stopping_criterion sync_on_checkpoint sync_to_driver_fn trainable_name trial_dirname_creator
    trial_id trial_name_creator update_last_result update_resources write_error_log
"""

#: Arguments of ``run`` and ``run_experiments``.
ARGUMENTS = """
    callbacks checkpoint_at_end checkpoint_config checkpoint_freq checkpoint_score_attr
    chdir_to_trial_dir concurrent config export_formats fail_fast keep_checkpoints_num local_dir
    log_to_file max_concurrent_trials max_failures metric mode name num_samples progress_reporter
    raise_on_failed_trial resources_per_trial restore resume resume_config reuse_actors scheduler
    search_alg stop storage_filesystem storage_path sync_config time_budget_s trial_dirname_creator
    trial_name_creator verbose
"""

#: Of earlier versions.
OLDER_ARGUMENTS = """
    checkpoint_period global_checkpoint_period loggers queue_trials ray_auto_init search_alg_state
    server_port sync_to_cloud sync_to_driver trial_executor upload_dir with_server
"""

#: What the code asks the environment for.
VARIABLES = """
    RAY_AIR_FULL_TRACEBACKS RAY_AIR_LOCAL_CACHE_DIR RAY_AIR_NEW_OUTPUT RAY_CHDIR_TO_TRIAL_DIR
    RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE RAY_TUNE_CALLBACKS TUNE_DISABLE_AUTO_CALLBACK_LOGGERS
    TUNE_DISABLE_AUTO_INIT TUNE_DISABLE_DATED_SUBDIR TUNE_DISABLE_SIGINT_HANDLER
    TUNE_DISABLE_STRICT_METRIC_CHECKING TUNE_FORCE_TRIAL_CLEANUP_S
    TUNE_FUNCTION_THREAD_TIMEOUT_S TUNE_GLOBAL_CHECKPOINT_S TUNE_MAX_LEN_IDENTIFIER
    TUNE_MAX_PENDING_TRIALS_PG TUNE_ONLY_STORE_CHECKPOINT_SCORE_ATTRIBUTE TUNE_ORIG_WORKING_DIR
    TUNE_PLACEMENT_GROUP_PREFIX TUNE_PLACEMENT_GROUP_RECON_INTERVAL TUNE_PRINT_ALL_TRIAL_ERRORS
    TUNE_RESTORE_RETRY_NUM TUNE_RESULT_BUFFER_LENGTH TUNE_RESULT_BUFFER_MAX_TIME_S
    TUNE_RESULT_BUFFER_MIN_TIME_S TUNE_RESULT_DELIM TUNE_RESULT_DIR TUNE_STATE_REFRESH_PERIOD
    TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S
    TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S
    TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S_AUTOSCALER
    TUNE_WARN_SLOW_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S TUNE_WARN_THRESHOLD_S
"""

COMMANDS = "add-note list-experiments list-trials ls lsx"
