"""What is used of transformers and is not documented, in one table."""

from __future__ import annotations

import transformers

from colabkeep.integrations.insides import Table, find_strange, unknown

__all__ = ["COMMIT", "NAME", "READ", "SUMS", "TABLE", "check"]

SUMS = ("current_flos", "_total_loss_scalar", "_globalstep_last_logged")
"""Of the trainer, what it has added up."""

NAME, COMMIT = "_name_or_path", "_commit_hash"
"""Of a configuration, where it was read from. Where that is not said, all is stored."""

READ = "_is_hf_initialized"
"""What `from_pretrained` marks each weight with that it read from a file. Where it does not, all is stored."""

TABLE: Table = {
    "transformers.trainer:Trainer": {
        "_inner_training_loop": ["batch_size", "args", "resume_from_checkpoint", "trial", "ignore_keys_for_eval", "*"],
        "_maybe_log_save_evaluate": ["tr_loss", "grad_norm", "model", "trial", "epoch", "ignore_keys_for_eval", "*"],
        "_evaluate": ["trial", "ignore_keys_for_eval", "skip_scheduler"],
        "get_batch_samples": ["epoch_iterator", "num_batches", "*"],
        "_load_optimizer_and_scheduler": ["checkpoint"],
        "_load_scaler": ["checkpoint"],
        "_load_rng_state": ["checkpoint"],
        # From 5.4 on.
        "_run_epoch|": ["model", "epoch", "train_dataloader", "steps_in_epoch", "num_update_steps_per_epoch", "*"],
        "_initial_global_step|": None,
        **dict.fromkeys(SUMS),
    },
    "transformers.trainer_callback:CallbackHandler": {"call_event": ["event", "args", "state", "control", "*"]},
}


def check() -> None:
    """Is all of it there?

    Raises:
        UsageError: something is not, or takes something else.
    """
    strange = find_strange(TABLE)
    if strange is not None:
        raise unknown(
            f"The Trainer of transformers {transformers.__version__}",
            strange,
            "Keep the trainer's own output folder instead: with colabkeep.keep_folder(…), see docs/keep.md. Or install "
            'a version that is known: pip install "transformers>=5.0,<=5.24".',
        )
