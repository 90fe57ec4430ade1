"""What is used of Lightning and is not documented, in one table."""

from __future__ import annotations

import importlib

from colabkeep.integrations.insides import Table, find_strange, unknown

__all__ = ["META", "METRIC", "PLACES", "RESTORES", "RESULT", "SHOWN", "TABLE", "check"]

SHOWN = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
"""What the connector of the loggers shows."""

PLACES = (
    {"_first_loop_iter", "_current_fx"},
    {"_epoch_end_reached", "_batch_idx", "_current_fx"},
)
"""What the connector of the loggers calls its place in an epoch: now, and in 2.0."""

META = (
    "fx",
    "name",
    "prog_bar",
    "logger",
    "on_step",
    "on_epoch",
    "enable_graph",
    "add_dataloader_idx",
    "dataloader_idx",
    "metric_attribute",
)
"""What was asked for in `self.log`."""

METRIC = ("_forward_cache", "_computed", "_update_count")
"""Of a metric of torchmetrics, what is in no `state_dict`."""

RESULT = ("value", "cumulated_batch_size", "has_reset", *METRIC)
"""What was summed up of it."""

RESTORES = ("restore_datamodule", "restore_model", "restore_callbacks", "restore_precision_plugin_state")
"""Of the trainer's connector of checkpoints, what is called with the file in `_loaded_checkpoint`."""

_RESULTS = "{}.trainer.connectors.logger_connector."
TABLE: Table = {
    "{}:Trainer": {"_data_connector": None, "_checkpoint_connector": None, "_logger_connector": None},
    "{}.loops.loop:_Loop": {"_restarting": None},
    "{}.loops.progress:_BaseProgress": {"reset": [], "from_state_dict": ["state_dict"]},
    "{}.loops.fit_loop:_FitLoop": {
        **{name: [] for name in ("run", "setup_data", "on_run_start", "on_advance_start", "on_advance_end")},
        "on_run_end": [],
        **dict.fromkeys(("_combined_loader", "_data_fetcher", "_last_train_dl_reload_epoch")),
        **dict.fromkeys(("epoch_progress", "_can_stop_early")),
    },
    "{}.loops.training_epoch_loop:_TrainingEpochLoop": {
        "reset": [],
        "on_run_start": ["data_fetcher"],
        **dict.fromkeys(("batch_progress", "scheduler_progress", "val_loop", "_results", "_batches_that_stepped")),
    },
    "{}.loops.evaluation_loop:_EvaluationLoop": {"_last_val_dl_reload_epoch": None},
    "{}.loops.fetchers": {"_DataLoaderIterDataFetcher": None},
    "{}.loops.fetchers:_PrefetchDataFetcher": dict.fromkeys(("prefetch_batches", "fetched", "length", "done")),
    "{}.utilities.combined_loader:CombinedLoader": {"_mode": None, "flattened": None},
    "{}.trainer.connectors.data_connector:_DataConnector": {"_prepare_dataloader": ["dataloader", "shuffle", "mode"]},
    "{}.trainer.connectors.checkpoint_connector:_CheckpointConnector": {
        **{name: [] for name in (*RESTORES, "restore_optimizers", "restore_lr_schedulers")},
        "_loaded_checkpoint": None,
    },
    f"{_RESULTS}logger_connector:_LoggerConnector": {
        **dict.fromkeys(SHOWN),
        "_current_fx": None,
        "_first_loop_iter|_batch_idx": None,
        "_first_loop_iter|_epoch_end_reached": None,
    },
    f"{_RESULTS}result": {
        "_Metadata": [*META[:6], "reduce_fx", *META[6:], "_sync"],
        "_Sync": ["fn", "_should", "rank_zero_only", "_op", "_group"],
        "_ResultMetric": ["metadata", "is_tensor"],
    },
    f"{_RESULTS}result:_ResultMetric": {f"{name}|": None for name in RESULT},
    "torchmetrics:Metric": {"_defaults": None, **dict.fromkeys(METRIC)},
    "{}.callbacks:Timer": {"_duration": None},
    "{}.callbacks:StochasticWeightAveraging": {
        "_clear_schedulers": ["trainer"],
        **dict.fromkeys(("_swa_scheduler", "_scheduler_state", "_init_n_averaged", "_latest_update_epoch")),
        **dict.fromkeys(("n_averaged", "_average_model", "_accumulate_grad_batches")),
    },
    # What is set in callbacks and modules, and is nothing that they learnt.
    "{}.callbacks:ModelCheckpoint": {"_last_time_checked|": None, "_fs|": None},
    "{}:LightningModule": {"_hparams|": None, "_hparams_name|": None, "_hparams_initial|": None},
}


def check(package: str) -> None:
    """Is all of it there, in "lightning.pytorch" or in "pytorch_lightning"?

    Raises:
        UsageError: something is not, or takes something else.
    """
    strange = find_strange(TABLE, package)
    if strange is not None:
        raise unknown(
            f"The Trainer of Lightning {importlib.import_module(package).__version__}",
            strange,
            "Keep the trainer's own checkpoints instead: with colabkeep.keep_folder(…), see docs/keep.md. Or install "
            'a version that is known: pip install "lightning>=2.0,<2.7".',
        )
