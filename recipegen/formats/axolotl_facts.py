"""What an Axolotl file states that Recipe has no field for, though an estimate or a rule may need it.

FACTS lists the keys that are taken as they are: name, key, type and meaning. DERIVED lists what follows from several
keys: name -> (type, meaning). A fact is in `Reading.facts` only when the file states it; `engine` always is.
"""

from __future__ import annotations

from dataclasses import dataclass

from recipegen.formats import axolotl_keys as to
from recipegen.formats.axolotl_keys import Convert


@dataclass(frozen=True)
class Fact:
    """One key that becomes a fact of the same type. `kind` is the converter, and so the type."""

    name: str
    key: str
    kind: Convert
    meaning: str
    plugin: str = ""  # Axolotl drops the key unless `plugins:` lists this one


def _same(kind: Convert, **meanings: str) -> tuple[Fact, ...]:
    return tuple(Fact(name, name, kind, meaning) for name, meaning in meanings.items())


_KERNELS = "kernels.KernelsPlugin"
_EXPERT_PARALLEL = "expert_parallel.ExpertParallelPlugin"
_COUNT = to.at_least(1)

FACTS: tuple[Fact, ...] = (
    # --- what is trained, and from what
    Fact("dataset_entries", "datasets", to.entries, "items of the data list, each as DatasetSpec.entry"),
    Fact("test_dataset_entries", "test_datasets", to.entries, "data sets for evaluation, instead of val_set_size"),
    Fact("pretraining_entries", "pretraining_dataset", to.entries, "streamed data; the run then needs max_steps"),
    Fact("model_class", "type_of_model", to.text, "class that loads the model"),
    Fact("added_tokens", "tokens", to.texts, "tokens added to the vocabulary: the embeddings grow"),
    *_same(
        to.text,
        rl="preference or reward training: dpo, grpo, kto, ...; brings a reference model or generation",
        chat_template_jinja="a chat template written out",
        dataset_prepared_path="where tokenized data are kept",
        output_dir="where checkpoints go",
        resume_from_checkpoint="folder the run goes on from",
        lora_model_dir="adapter that the run starts from",
        tokenizer_config="another tokenizer than the model's",
        processor_type="multimodal processor: images or sound are trained on",
        base_model_config="configuration from elsewhere than the weights",
        model_quantization_config="how the published weights are quantised: Mxfp4Config, FineGrainedFP8Config",
        hub_model_id="checkpoints are pushed to the Hub under this name",
        torch_compile_backend="backend of torch.compile",
        torch_compile_mode="mode of torch.compile",
        ring_attn_func="ring attention of context parallelism: varlen_llama3, batch_ring",
        experts_implementation="how the experts of a MoE model are computed",
        large_head_attention="attention for heads wider than 256: auto, sdpa, triton_flash",
        wandb_project="project of Weights & Biases; naming one switches that logger on",
        mlflow_experiment_name="experiment of MLflow; naming one switches that logger on",
    ),
    *_same(
        to.boolean,
        reward_model="a reward model is trained",
        process_reward_model="a process reward model is trained",
        streaming="data are streamed; the length of an epoch is not known",
        skip_prepare_dataset="data are prepared while training (multimodal)",
        train_on_inputs="the prompt is learnt too",
        group_by_length="sequences of like length together",
        curriculum_sampling="rows in the order of the file",
        eval_sample_packing="evaluation is packed",
        sample_packing_sequentially="packed in the order of the file",
        batch_flattening="unpacked micro-batches without padding (attention with cu_seqlens)",
        auto_resume_from_checkpoints="goes on from the highest checkpoint in output_dir",
        lora_target_linear="every linear layer is a target, beside lora_target_modules",
        lora_on_cpu="the adapter is built on the CPU",
        peft_autocast_adapter_dtype="false: the adapter keeps the base's dtype instead of fp32",
        peft_ensure_weight_tying="adapters of tied weights stay tied",
        qlora_sharded_model_loading="the 4-bit base is loaded in shards",
        gptq="the base is GPTQ-quantised",
        relora="ReLoRA: the adapter is merged and restarted",
        relora_cpu_offload="ReLoRA merges on the CPU",
        quantize_moe_experts="the experts of a MoE base are quantised",
        llama4_linearized_experts="experts of Llama 4 as separate linear layers",
        fp8="mixed precision in fp8",
        fp8_enable_fsdp_float8_all_gather="FSDP gathers parameters in fp8",
        fp32_norms="norms in fp32, as FSDP groups of their own",
        layer_offloading="layers are kept in host memory and fetched for their turn",
        ple_cpu_offload="per-layer embeddings stay in host memory",
        low_cpu_mem_usage="weights are loaded without a second copy in host memory",
        embeddings_skip_upcast="embeddings and head are not upcast to fp32",
        reinit_weights="training from random weights",
        resize_token_embeddings_to_32x="the vocabulary is padded to a multiple of 32",  # noqa: S106 (not a password)
        tiled_mlp="the MLP is computed in slices of the sequence",
        sdpa_varlen="sdpa through varlen_attn for packed rows",
        gemma4_hybrid_attn_impl="sliding layers in flash attention, global ones in sdpa",
        use_kernels="kernels from the Hub",
        fused_attn_kernel="norms and rotary embedding of queries and keys in one kernel",
        dataset_exact_deduplication="rows that stand twice are trained on once",
        use_eaft="entropy-aware loss",
        deepcompile="DeepSpeed's compiler",
        ddp_find_unused_parameters="DDP looks for parameters without gradient",
        save_first_step="a checkpoint after the first step",
        load_best_model_at_end="the best checkpoint is loaded at the end",
        lr_quadratic_warmup="quadratic warm-up",
        use_ray="Ray starts the processes",
        auto_find_batch_size="the micro-batch is halved until it fits",
    ),
    *_same(
        _COUNT,
        batch_size="total batch; has an effect only beside an empty gradient_accumulation_steps",
        eval_batch_size="micro-batch size of evaluation",
        eval_sequence_len="sequence length of evaluation",
        pad_to_multiple_of="padding to a multiple of so many tokens",
        chunked_cross_entropy_num_chunks="chunks of the chunked loss",
        tiled_mlp_num_shards="slices of tiled_mlp",
        heads_k_stride="heads per step of ring attention",
        early_stopping_patience="evaluations without progress until the run stops",
        num_labels="outputs of a reward model's head",
    ),
    *_same(
        to.number,
        loraplus_lr_ratio="LoRA+: learning rate of B over that of A",
        embedding_lr="learning rate of the embeddings",
        embedding_lr_scale="factor of the embeddings' learning rate",
        cosine_min_lr_ratio="end of the cosine over its start",
        cosine_constant_lr_ratio="share of the run after which the rate is constant",
    ),
    *_same(
        to.texts,
        lora_modules_to_save="modules trained in full beside the adapter",
        unfrozen_parameters="patterns of the parameters of a full fine-tune that are trained; the rest is frozen",
        fp32_norm_classes="classes that fp32_norms keeps in fp32",
    ),
    *_same(to.text_or_texts, lora_target_parameters="parameters (not modules) with an adapter: fused experts"),
    *_same(
        to.mapping,
        special_tokens="special tokens that are set",
        lora_rank_pattern="rank by module pattern",
        lora_alpha_pattern="alpha by module pattern",
        bnb_config_kwargs="overrides of the 4-bit configuration (double quantisation, storage dtype)",
        fp8_config="how fp8 is scaled",
        qat="quantisation-aware training",
        lr_scheduler_kwargs="arguments of the scheduler",
        trl="generation settings of reinforcement learning",
        vllm="the vLLM server of reinforcement learning",
        max_memory="memory by device while loading",
    ),
    *_same(
        to.as_is,
        selective_checkpointing="true or a mapping: some operations are saved instead of recomputed",
        optim_args="arguments of the optimizer class; they win over adam_*",
        optim_target_modules="modules of a projected optimizer (GaLore), or all_linear",
        lr_groups="groups with a learning rate of their own",
        peft_init_lora_weights="initial adapter",
        peft_layers_to_transform="layers with an adapter",
        peft_layers_pattern="name of the list of layers",
        peft_layer_replication="layers that are repeated",
        peft_trainable_token_indices="rows of the embedding that are trained",  # noqa: S106 (not a password)
        device_map="where the parts of the model are put",
        gpu_memory_limit="memory of each GPU while loading",
    ),
    Fact("use_sonicmoe", "use_sonicmoe", to.boolean, "MoE kernels SonicMoE", _KERNELS),
    Fact("use_scattermoe", "use_scattermoe", to.boolean, "MoE kernels ScatterMoE", _KERNELS),
    Fact("expert_parallel_size", "expert_parallel_size", _COUNT, "ranks that split the experts", _EXPERT_PARALLEL),
    Fact(
        "every_n_layers",
        "gradient_checkpointing_kwargs.every_n_layers",
        _COUNT,
        "only each so-manieth layer is recomputed (Transformers)",
    ),
    Fact("loftq_bits", "peft.loftq_config.loftq_bits", to.whole, "LoftQ: bits of the base the adapter is fitted to"),
    Fact(
        "fsdp_auto_wrap_policy",
        "fsdp_config.auto_wrap_policy",
        to.text,
        "TRANSFORMER_BASED_WRAP or SIZE_BASED_WRAP",
    ),
    Fact("fsdp_min_num_params", "fsdp_config.min_num_params", _COUNT, "smallest unit of SIZE_BASED_WRAP"),
    Fact(
        "fsdp_final_state_dict_type",
        "fsdp_config.final_state_dict_type",
        to.text,
        "how the final model is written",
    ),
    Fact(
        "fsdp_cpu_offload_pin_memory",
        "fsdp_config.cpu_offload_pin_memory",
        to.boolean,
        "offloaded parameters in pinned host memory",
    ),
    Fact("fsdp_use_orig_params", "fsdp_config.use_orig_params", to.boolean, "FSDP1: parameters keep their shapes"),
    Fact("fsdp_sync_module_states", "fsdp_config.sync_module_states", to.boolean, "FSDP1: rank 0 sends the weights"),
)

DERIVED: dict[str, tuple[str, str]] = {
    "engine": ("str", "fsdp, deepspeed or none (DDP or one GPU); FSDP wins where both are stated, as in Axolotl"),
    "deepspeed_config_file": ("str", "path of the DeepSpeed JSON"),
    "deepspeed_config": ("mapping", "the DeepSpeed settings, written into axolotl.yaml itself"),
    "fsdp_sharding_strategy": (
        "str",
        "word of the `fsdp:` list: FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD, ...",
    ),
    "fsdp_activation_checkpointing": ("bool", "checkpointing by FSDP's wrapper, not by the model"),
    "fsdp_version_within": ("bool", "FSDP's version stands in fsdp_config, unseen by Axolotl's choice of LoRA kernels"),
    "no_step_limit": ("bool", "max_steps below 0: Axolotl counts that many steps, so no warm-up and a log every step"),
    "foreign_adapter": ("str", "an adapter that is neither lora nor qlora"),
    "mixed_precision": ("str", "bf16, fp16, fp8 or no: Accelerate's autocast"),
    "load_dtype": ("str", "bf16, fp16 or fp32: dtype the (unquantised) weights are loaded in"),
    "bf16_auto": ("bool", "bf16: auto, which trains in fp16 on a machine without bf16"),
    "fp32_without_bf16": (
        "bool",
        "fp16 is off in so many words, so bf16: auto is fp32 on a machine without bf16",
    ),
    "tf32_auto": ("bool", "tf32: auto, which follows the GPU"),
    "lora_kernels": ("tuple of str", "Axolotl's fused LoRA kernels that are on: mlp, qkv, o, embedding"),
    "lora_all_linear": ("bool", "lora_target_modules: all-linear, peft's word for every linear layer but the head"),
    "activation_offloading_kind": ("str", "legacy, disk or hidden_states"),
    "plugins": ("tuple of str", "the plugins, as written"),
    "liger_kernels": ("tuple of str", "Liger kernels that are on beside the fused linear loss: rope, rms_norm, ..."),
    "loggers": ("tuple of str", "every logger that is on, when that is not one of those a Recipe can name"),
    "saves_per_epoch": ("int", "checkpoints per epoch"),
    "save_steps_share": ("float", "a checkpoint after each such share of all steps"),
    "save_strategy": ("str", "no, best or steps (without save_steps)"),
    "evals_per_epoch": ("int", "evaluations per epoch"),
    "eval_steps_share": ("float", "an evaluation after each such share of all steps"),
    "eval_strategy": ("str", "no or steps (without eval_steps)"),
}

NAMES = frozenset(fact.name for fact in FACTS) | frozenset(DERIVED)
