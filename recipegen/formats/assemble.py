"""Put the readings of one project together: one Recipe, as the trainer would see it, or the reasons why there is none.

Whose word holds, first to last: `launch` (a command line over files), the trainer's own file (axolotl, train_json,
arguments; a command line that carries the arguments itself), the DeepSpeed JSON that the project uses, the file of
`accelerate launch`. Two words of the accelerate file outlast Axolotl's, because Axolotl exports only what is true
(axolotl 0.19.0, utils/trainer.py): FSDP's `offload_params` and `dynamo_backend`.

What no file states is the trainer's default (catalog/stacks/*/trainer_defaults.yaml; assemble_fields.py,
assemble_run.py). What follows from other fields is looked up as in decide/build.py: `precision` from the stack's table,
`attention_memory` from its attention table, the mesh from the processes.

No file carries, so these come from the cluster, the catalogue or nowhere:

- `hardware`, `network`, `launch.bf16_capable`: the cluster that is given;
- `trainer`, `stack`: the format of the trainer's file, and the stack that is given;
- rows, lengths and notes of `datasets`: a file names data sets only; with train.json not even their Axolotl entries,
  nor the name of the `chat_template`;
- `precision` beyond `parameters` and `compute`, `attention_memory`: the stack's tables;
- `sync_each_batch` without accumulation, `activation_checkpointing_reentrant` without checkpointing,
  `saving.eval_steps` without validation, `loading.prefetch_factor` without workers, and the settings of DeepSpeed that
  its stage and devices leave without effect;
- with train.json: `saving.save_only_model`, `adapter.fused_kernels`, `activation_offloading` and `torch_compile`, which
  train.py does not have.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from recipegen.catalog.stack import Stack
from recipegen.formats import assemble_engine as engines
from recipegen.formats import assemble_fields as parts
from recipegen.formats import assemble_run as run
from recipegen.formats import deepspeed_read
from recipegen.formats.assemble_draft import Blocked, Draft, merge
from recipegen.formats.assemble_limits import limits
from recipegen.formats.assembled import Assembled, Unknown
from recipegen.formats.documents import Document
from recipegen.formats.reading import Reading
from recipegen.spec import Cluster, Dtype, LossKernel, Method, ModelSpec, Recipe, RecipegenError

TRAINERS = ("axolotl", "train_json", "arguments")
_LLAMA_FACTORY = ("finetuning_type", "stage", "template", "neat_packing")  # facts that only its files state
_LOADED_AS = {"nf4": Dtype.NF4, "int8": Dtype.INT8}  # formats of bitsandbytes' republished weights
_FULL_SHARD = "FULL_SHARD"
_STICKY = {"fsdp.offload_params": True, "torch_compile": True}  # of the accelerate file, over Axolotl's false


def assemble(
    readings: Sequence[Reading],
    stack: Stack,
    *,
    cluster: Cluster | None,
    model: Callable[[str], ModelSpec | None],
    hardware: str = "",
) -> Assembled:
    """One project. `model` finds the shape of a model by its name: None, or RecipegenError with the reason.

    `hardware` is the name to write into the recipe; that of `cluster` when empty. Nothing in the files raises.
    """
    main = _main(readings)
    if main is None:
        names = ", ".join(reading.name for reading in readings) or "nothing"
        reason = f"no trainer's file among the files ({names}): axolotl.yaml, train.json or training arguments"
        _, provenance, facts, places = merge(readings)
        return Assembled(None, None, provenance, frozenset(), (Unknown("model", reason),), facts, places)
    draft = _draft(readings, main, stack, cluster)
    draft.model_spec = _model(draft, model)
    limits(draft)
    recipe: Recipe | None = None
    try:
        recipe = _recipe(draft, hardware)
    except Blocked:
        draft.blocked = True
    except RecipegenError as error:
        draft.block("model", str(error))
    return Assembled(
        recipe=None if draft.blocked else recipe,
        model=draft.model_spec,
        provenance={path: place for path, place in draft.provenance.items() if _in_use(path, recipe)},
        defaults=frozenset(path for path in draft.defaults if path not in draft.provenance),
        unknown=tuple(draft.unknown),
        facts=draft.facts,
        fact_provenance=draft.fact_provenance,
    )


def _in_use(path: str, recipe: Recipe | None) -> bool:
    """False for the settings of an adapter or engine that the recipe does not have."""
    part, dot, _ = path.partition(".")
    return recipe is None or not dot or getattr(recipe, part) is not None


def _main(readings: Sequence[Reading]) -> Reading | None:
    """The trainer's file, or the command line that carries its arguments."""
    for kind in TRAINERS:
        found = next((reading for reading in readings if reading.format == kind), None)
        if found is not None:
            return found
    return next((reading for reading in readings if reading.format == "launch" and "model" in reading.values), None)


def _draft(readings: Sequence[Reading], main: Reading, stack: Stack, cluster: Cluster | None) -> Draft:
    launch = next((reading for reading in readings if reading.format == "launch"), None)
    accelerate = _named(readings, "accelerate", launch.facts.get("config_file") if launch else None)
    if accelerate is not None and accelerate.facts.get("distributed_type") == "DEEPSPEED":
        # prepare_deepspeed_cmd_env of Accelerate 1.13 hands no dynamo backend on
        values = {path: value for path, value in accelerate.values.items() if path != "torch_compile"}
        accelerate = replace(accelerate, values=values)
    zero = _zero(readings, [reading for reading in (main, accelerate, launch) if reading is not None])
    order = [reading for reading in (launch, main, zero, accelerate) if reading is not None]
    order = [reading for place, reading in enumerate(order) if reading not in order[:place]]
    values, provenance, facts, places = merge(order)
    facts |= main.facts
    places |= main.fact_provenance
    for path, value in _STICKY.items():
        stated = accelerate.values.get(path) if accelerate is not None else None
        if accelerate is not None and main.format == "axolotl" and stated is value:
            values[path], provenance[path] = value, accelerate.provenance.get(path, accelerate.name)
    if zero is not None:
        facts["deepspeed_read"] = zero.name
    unused = _fsdp1_word(main, launch, accelerate, values, provenance, facts)
    kind = "arguments" if main.format == "launch" else main.format
    if kind == "arguments" and (any(name in facts for name in _LLAMA_FACTORY) or _starts(launch, "llamafactory")):
        kind = "llamafactory"
    elif kind == "arguments" and ("trl" in facts or _starts(launch, "trl")):
        kind = "trl"
    draft = Draft(
        format=kind,
        stack=stack,
        cluster=cluster,
        values=values,
        provenance=provenance,
        facts=facts,
        fact_provenance=places,
        table=stack.trainer_defaults(kind),
        rules=stack.trainer_rules(kind),
        passthrough={
            name: dict(reading.passthrough)
            for name, reading in (("axolotl", main), ("accelerate", accelerate), ("deepspeed", zero))
            if reading is not None and reading.format == name and reading.passthrough
        },
        left=main.passthrough,
        own_fsdp=_own_fsdp(main, facts),
        unclipped=zero is not None and "gradient_clipping" not in zero.facts,
        deepspeed_auto=frozenset(zero.facts.get("auto", ()) if zero else ()),
    )
    if unused:
        reason = f"{unused} has no effect: the trainer's FSDP1 shards as {facts['fsdp_sharding_strategy']}"
        draft.note("fsdp.reshard_after_forward", reason, "fsdp_sharding_strategy")
    return draft


def _own_fsdp(main: Reading, facts: Mapping[str, Any]) -> bool:
    if main.format == "axolotl":
        return bool(main.facts.get("engine") == "fsdp")
    if main.format == "train_json":
        return bool(facts.get("distributed_type") != "FSDP")
    return "fsdp_version" in main.facts


def _starts(launch: Reading | None, trainer: str) -> bool:
    return launch is not None and launch.facts.get("launcher") == trainer


def _fsdp1_word(
    main: Reading,
    launch: Reading | None,
    accelerate: Reading | None,
    values: dict[str, Any],
    provenance: dict[str, str],
    facts: dict[str, Any],
) -> str:
    """Put the word of `accelerate launch`, a full shard by default, in the place of the trainer's for FSDP1.

    Transformers 5.16.1 hands the trainer's word on as `reshard_after_forward`, and Accelerate 1.13 prefers its own
    `sharding_strategy`, which is never empty (utils/dataclasses.py; accelerator.py). Returns the trainer's, if unused.
    """
    word = main.facts.get("fsdp_sharding_strategy")
    version = values.get("fsdp.version", 1) if main.format == "axolotl" else facts.get("fsdp_version")
    if word is None or version != 1 or main.format not in ("axolotl", "arguments"):
        return ""
    for path in ("fsdp.reshard_after_forward", "parallelism.strategy"):
        values.pop(path, None)
        provenance.pop(path, None)
    others = [reading for reading in (launch, accelerate) if reading is not None]
    stated = (reading.facts.get("fsdp_sharding_strategy") for reading in others)
    facts["fsdp_sharding_strategy"] = next((other for other in stated if other), _FULL_SHARD)
    return "" if facts["fsdp_sharding_strategy"] == word else str(word)


def _named(readings: Sequence[Reading], kind: str, name: object) -> Reading | None:
    found = [reading for reading in readings if reading.format == kind]
    return next((reading for reading in found if _same_file(reading.name, name)), found[0] if found else None)


def _same_file(name: str, path: object) -> bool:
    return isinstance(path, str) and PurePosixPath(name).name == PurePosixPath(path.replace(os.sep, "/")).name


def _zero(readings: Sequence[Reading], users: Sequence[Reading]) -> Reading | None:
    """The DeepSpeed settings in use: written into a file, the one that a file names, or the only one there is.

    None where FSDP or no engine is on, and where the named file is not among the readings.
    """
    main = users[0]
    if main.format == "axolotl" and main.facts.get("engine") == "fsdp":
        return None
    inline = next((reading for reading in users if isinstance(reading.facts.get("deepspeed_config"), Mapping)), None)
    if inline is not None:
        values = inline.facts["deepspeed_config"]
        place = inline.fact_provenance.get("deepspeed_config", inline.name)
        read = deepspeed_read.interpret(Document(inline.name, values))
        return replace(read, provenance=dict.fromkeys(read.values, place))
    found = [reading for reading in readings if reading.format == "deepspeed"]
    named = next((user.facts["deepspeed_config_file"] for user in users if "deepspeed_config_file" in user.facts), None)
    if named is not None:
        return next((reading for reading in found if _same_file(reading.name, named)), None)
    if any(user.facts.get("distributed_type") == "DEEPSPEED" or _says_zero(user) for user in users):
        return found[0] if len(found) == 1 else None
    return None


def _says_zero(reading: Reading) -> bool:
    strategy = reading.values.get("parallelism.strategy")
    return strategy is not None and strategy.is_deepspeed


def _model(draft: Draft, find: Callable[[str], ModelSpec | None]) -> ModelSpec | None:
    name = draft.values.get("model")
    if not isinstance(name, str) or not name:
        draft.block("model", "no model is named")
        return None
    try:
        found = find(name)
    except RecipegenError as error:
        draft.block("model", f"the shape of {name} is not known: {error}")
        return None
    if found is None:
        draft.block("model", f"the shape of {name} is not known: not in the catalogue, and no config.json is at hand")
    return found


def _recipe(draft: Draft, hardware: str) -> Recipe:
    model, cluster = draft.model, draft.cluster
    kind = engines.engine(draft)
    mesh = engines.layout(draft, kind)
    strategy = mesh.strategy
    fsdp = None
    if strategy.is_fsdp:
        fsdp = engines.fsdp(draft)
    deepspeed = engines.deepspeed(draft) if strategy.is_deepspeed else None
    method = parts.method(draft)
    optimizer = run.optimizer(draft)
    if not run.known(draft, optimizer.name):
        raise Blocked
    packed = draft.fact("stage") in draft.rules.get("packed_stages", ())
    packing: bool = draft.take("packing", True) if packed else draft.take("packing")
    attention, memory = parts.attention(draft, packing)
    wrapped = strategy.is_fsdp and bool(draft.fact("fsdp_activation_checkpointing"))  # FSDP's wrapper: not reentrant
    checkpointing: bool = draft.take("activation_checkpointing") or wrapped
    max_steps = draft.take("max_steps", None)
    quantised = draft.take("dequantize", None)
    if model.quantization and quantised is None:
        _published(draft, model, method)
    return Recipe(
        model=draft.values["model"],
        model_revision=draft.take("model_revision"),
        trust_remote_code=draft.take("trust_remote_code"),
        hardware=hardware or (cluster.name if cluster else ""),
        network=cluster.network.name if cluster and cluster.network and mesh.nodes > 1 else "none",
        trainer="axolotl" if draft.axolotl else "accelerate",
        stack=draft.stack.name,
        method=method,
        adapter=parts.adapter(draft, method, mesh, fsdp.version if fsdp else None),
        parallelism=mesh,
        precision=parts.precision(draft, method, mesh, optimizer.name, attention),
        optimizer=optimizer,
        schedule=run.schedule(draft, max_steps),
        sequence_len=draft.take("sequence_len"),
        micro_batch_size=draft.take("micro_batch_size"),
        gradient_accumulation=draft.take("gradient_accumulation"),
        sync_each_batch=draft.take("sync_each_batch"),
        packing=packing,
        pad_to_sequence_len=draft.take("pad_to_sequence_len", packing),
        excess_length_strategy=draft.take("excess_length_strategy"),
        epochs=float(draft.take("epochs")),
        max_steps=max_steps,
        activation_checkpointing=checkpointing,
        activation_checkpointing_reentrant=run.reentrant(draft, wrapped),
        activation_offloading=draft.take("activation_offloading"),
        loss_kernel=draft.take("loss_kernel", LossKernel.STOCK),
        attention=attention,
        attention_memory=memory,
        torch_compile=draft.take("torch_compile"),
        tf32=draft.take("tf32", _tf32(draft)),
        fsdp=fsdp,
        deepspeed=deepspeed,
        datasets=run.datasets(draft),
        val_set_size=float(draft.take("val_set_size")),
        chat_template=draft.take("chat_template", None),
        eot_tokens=tuple(draft.take("eot_tokens", ())),
        saving=run.saving(draft, max_steps),
        loading=run.loading(draft, mesh),
        launch=run.launch(draft),
        seed=draft.take("seed"),
        dequantize=quantised,
        freeze_vision=draft.take("freeze_vision", False),
        quantised_experts=draft.take("quantised_experts", False),
        passthrough=draft.passthrough,
    )


def _published(draft: Draft, model: ModelSpec, method: Method) -> None:
    """Weights that were published quantised: what they are loaded as, or no recipe."""
    path, stored = "precision.parameters", str(model.quantization)
    if _LOADED_AS.get(stored) is draft.values.get(path, ""):
        draft.model_spec = replace(model, quantization=None)  # published as it is loaded
    elif stored == "nvfp4" and method.is_adapter:
        reason = "the published weights are nvfp4: counted as NF4, experts too, 0.52 instead of 0.56 bytes a weight"
        draft.note(path, reason, "model")
        for name, value in ((path, Dtype.NF4), ("quantised_experts", True)):
            draft.values[name] = value
            draft.defaults.add(name)
            draft.provenance.pop(name, None)
        draft.model_spec = replace(model, quantization=None)
    else:
        reason = f"the published weights are {stored}, and no file says that they are dequantised"
        draft.block("dequantize", reason, "dequantize", "model")


def _tf32(draft: Draft) -> Any:
    """Axolotl's "auto" follows the GPU; TrainingArguments leaves torch's default, which is off for products."""
    return draft.axolotl and (draft.cluster is None or draft.cluster.gpu.tf32)
