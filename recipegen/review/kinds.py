"""Which fields decide what: whether two runs can be held against each other, what a checkpoint depends on, what
prepared data depend on. Every Recipe field is in exactly one of the three classes of EXPERIMENT (a test looks)."""

from __future__ import annotations

from collections.abc import Mapping

from recipegen.review.difference import Experiment

# Longest prefix wins. A field that changes the data, the model or what is trained makes another experiment; one that
# changes the steps alone is a hyperparameter; the rest changes speed, memory or rounding.
EXPERIMENT: Mapping[str, Experiment] = {
    "model": Experiment.DIFFERENT,
    "model_revision": Experiment.DIFFERENT,
    "trust_remote_code": Experiment.COMPARABLE,
    "hardware": Experiment.SAME_ORDER,
    "network": Experiment.SAME_ORDER,
    "trainer": Experiment.COMPARABLE,
    "stack": Experiment.COMPARABLE,
    "method": Experiment.DIFFERENT,
    "adapter": Experiment.COMPARABLE,
    "adapter.target_modules": Experiment.DIFFERENT,
    "adapter.modules_to_save": Experiment.DIFFERENT,
    "adapter.use_dora": Experiment.DIFFERENT,
    "adapter.fused_kernels": Experiment.SAME_ORDER,
    "parallelism": Experiment.SAME_ORDER,
    "precision": Experiment.COMPARABLE,
    "precision.parameters": Experiment.DIFFERENT,
    "optimizer": Experiment.COMPARABLE,
    "schedule": Experiment.COMPARABLE,
    "sequence_len": Experiment.DIFFERENT,
    "micro_batch_size": Experiment.SAME_ORDER,
    "gradient_accumulation": Experiment.SAME_ORDER,
    "sync_each_batch": Experiment.SAME_ORDER,
    "packing": Experiment.COMPARABLE,
    "pad_to_sequence_len": Experiment.SAME_ORDER,
    "excess_length_strategy": Experiment.DIFFERENT,
    "epochs": Experiment.COMPARABLE,
    "max_steps": Experiment.COMPARABLE,
    "activation_checkpointing": Experiment.SAME_ORDER,
    "activation_checkpointing_reentrant": Experiment.SAME_ORDER,
    "activation_offloading": Experiment.SAME_ORDER,
    "loss_kernel": Experiment.SAME_ORDER,
    "attention": Experiment.SAME_ORDER,
    "attention_memory": Experiment.SAME_ORDER,
    "torch_compile": Experiment.SAME_ORDER,
    "tf32": Experiment.SAME_ORDER,
    "fsdp": Experiment.SAME_ORDER,
    "deepspeed": Experiment.SAME_ORDER,
    "datasets": Experiment.DIFFERENT,
    "val_set_size": Experiment.DIFFERENT,
    "chat_template": Experiment.DIFFERENT,
    "eot_tokens": Experiment.DIFFERENT,
    "saving": Experiment.SAME_ORDER,
    "loading": Experiment.SAME_ORDER,
    "launch": Experiment.SAME_ORDER,
    "environment": Experiment.SAME_ORDER,
    "seed": Experiment.COMPARABLE,
    "dequantize": Experiment.DIFFERENT,
    "freeze_vision": Experiment.DIFFERENT,
    "quantised_experts": Experiment.DIFFERENT,
    # Keys and facts outside of Recipe: what they do is not known to this table, so they may change what is learnt.
    "passthrough": Experiment.COMPARABLE,
    "facts": Experiment.COMPARABLE,
    "facts.output_dir": Experiment.SAME_ORDER,
    "facts.dataset_prepared_path": Experiment.SAME_ORDER,
    "facts.wandb_project": Experiment.SAME_ORDER,
    "facts.mlflow_experiment_name": Experiment.SAME_ORDER,
    "facts.hub_model_id": Experiment.SAME_ORDER,
    "facts.eval_batch_size": Experiment.SAME_ORDER,
    "facts.low_cpu_mem_usage": Experiment.SAME_ORDER,
    "facts.save_first_step": Experiment.SAME_ORDER,
    "facts.train_on_inputs": Experiment.DIFFERENT,
    "facts.rl": Experiment.DIFFERENT,
    "facts.reward_model": Experiment.DIFFERENT,
    "facts.process_reward_model": Experiment.DIFFERENT,
    "facts.test_dataset_entries": Experiment.DIFFERENT,
    "facts.pretraining_entries": Experiment.DIFFERENT,
    "facts.chat_template_jinja": Experiment.DIFFERENT,
    "facts.added_tokens": Experiment.DIFFERENT,
    "facts.special_tokens": Experiment.DIFFERENT,
    "facts.tokenizer_config": Experiment.DIFFERENT,
    "facts.unfrozen_parameters": Experiment.DIFFERENT,
    "facts.lora_model_dir": Experiment.DIFFERENT,
    "facts.reinit_weights": Experiment.DIFFERENT,
    "facts.dataset_exact_deduplication": Experiment.DIFFERENT,
}


def experiment_of(path: str) -> Experiment:
    """The class of a path, by its longest known prefix; a hyperparameter where none is known."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        found = EXPERIMENT.get(".".join(parts[:length]))
        if found is not None:
            return found
    return Experiment.COMPARABLE


# What the name of prepared data holds (Axolotl 0.19.0 utils/data/shared.py generate_dataset_hash_from_config): another
# value, other data. STALE are those that change the rows and are not in the name: old rows are taken as they are.
PREPARED = (
    "datasets", "sequence_len", "packing", "chat_template", "eot_tokens", "model", "facts.tokenizer_config",
    "facts.train_on_inputs", "facts.chat_template_jinja", "facts.special_tokens", "facts.group_by_length",
    "facts.eval_sample_packing", "facts.dataset_exact_deduplication",
)  # fmt: skip
STALE = ("excess_length_strategy",)
# What a resumed run takes from the checkpoint, not from the file (run on the stack: states of optimizer and scheduler).
FROM_CHECKPOINT = (
    "schedule", "optimizer.beta1", "optimizer.beta2", "optimizer.epsilon", "optimizer.weight_decay",
)  # fmt: skip


def under(path: str, prefixes: tuple[str, ...]) -> bool:
    """Whether a path is one of these or a part of one."""
    return any(path == prefix or path.startswith(f"{prefix}.") for prefix in prefixes)
