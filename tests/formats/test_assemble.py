"""Files that were written from a recipe come back as that recipe, and what files leave out is the trainer's default."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipegen.catalog import load_cluster, load_model, load_stack
from recipegen.decide import decide
from recipegen.estimate import estimate
from recipegen.formats import (
    accelerate_read,
    arguments_read,
    axolotl_read,
    deepspeed_read,
    launch_read,
    train_json,
    train_json_read,
)
from recipegen.formats.assemble import assemble
from recipegen.formats.assembled import Assembled
from recipegen.formats.reading import Reading, at, restrict
from recipegen.project import render
from recipegen.spec import (
    AttentionMemory,
    Dtype,
    LossKernel,
    Method,
    ModelSpec,
    Precision,
    Recipe,
    RecipegenError,
    Request,
    Strategy,
)
from tests.recipes_for_tests import PINS, cluster, decision, model, recipes

STACK = load_stack()
WRITABLE = [
    *((name, r) for name, r in recipes()),
    *((f"{name}-accelerate", dataclasses.replace(r, trainer="accelerate", passthrough={})) for name, r in recipes()),
]
WRITABLE = [(name, r) for name, r in WRITABLE if r.trainer == "axolotl" or not train_json.unsupported(r)]
Carried = Mapping[str, Callable[[Recipe], bool]]


def readings(files: Mapping[str, bytes]) -> list[Reading]:
    """The readings of a generated project."""
    found = []
    for name, content in files.items():
        if name == "axolotl.yaml":
            found.append(axolotl_read.read(content, name))
        elif name == "train.json":
            found.append(train_json_read.read(content, name))
        elif name == "accelerate.yaml":
            found.append(accelerate_read.read(content, name))
        elif name == "deepspeed.json":
            found.append(deepspeed_read.read(content, name))
        elif name == "launch.sh":
            found.append(launch_read.read(content, name))
    return found


def carried(r: Recipe) -> dict[str, Any]:
    """What the files of a recipe state of it."""
    main: Carried = axolotl_read.CARRIES if r.trainer == "axolotl" else train_json_read.CARRIES
    beside: Carried = accelerate_read.CARRIES if r.trainer == "axolotl" else accelerate_read.CARRIES_FULL
    found: dict[str, Any] = {}
    for table in (deepspeed_read.CARRIES, beside, main, launch_read.CARRIES):
        found |= restrict(r, table)
    return found


def read_back(r: Recipe) -> Assembled:
    world = cluster(r.parallelism.nodes, r.parallelism.gpus_per_node)
    files = render(decision(r), pins=PINS)
    return assemble(readings(files), STACK, cluster=world, model=lambda _: model(), hardware=r.hardware)


def axolotl(text: str, *more: Reading, world: Any = ..., shape: ModelSpec | None = None) -> Assembled:
    """A hand-written axolotl.yaml on eight cards; what every file needs is there."""
    base = "base_model: m\nlearning_rate: 1e-5\ndatasets: [{path: d.jsonl, type: alpaca}]\n"
    reading = axolotl_read.read((base + text).encode(), "axolotl.yaml")
    world = cluster() if world is ... else world
    return assemble([reading, *more], STACK, cluster=world, model=lambda _: shape or model())


def arguments(text: str, *more: Reading) -> Assembled:
    reading = arguments_read.read(f"model_name_or_path: m\n{text}".encode(), "args.yaml")
    return assemble([reading, *more], STACK, cluster=cluster(), model=lambda _: model())


def zero(values: Mapping[str, Any], name: str = "ds.json") -> Reading:
    return deepspeed_read.read(json.dumps(values).encode(), name)


def made(answer: Assembled) -> Recipe:
    assert answer.recipe is not None, answer.unknown
    return answer.recipe


# --- back to the recipe


@pytest.mark.parametrize(("name", "r"), WRITABLE, ids=[name for name, _ in WRITABLE])
def test_what_was_written_comes_back(name: str, r: Recipe) -> None:
    answer = read_back(r)
    got = made(answer)
    if r.passthrough:  # a key that a person passes through wins over the field it stands for
        return
    differ = {path: (value, at(got, path)) for path, value in carried(r).items() if at(got, path) != value}
    assert not differ
    assert (got.parallelism, got.hardware, got.network, got.trainer) == (
        r.parallelism,
        r.hardware,
        r.network,
        r.trainer,
    )
    assert set(answer.provenance) >= set(carried(r)) - answer.defaults
    assert not set(answer.provenance) & answer.defaults


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([r for _, r in WRITABLE]),
    st.integers(1, 64),
    st.integers(1, 64),
    st.integers(16, 2**20),
    st.floats(1e-9, 1, allow_nan=False),
    st.floats(0.01, 100),
    st.booleans(),
)
def test_numbers_come_back_whatever_they_are(
    r: Recipe, micro: int, steps: int, length: int, rate: float, epochs: float, flag: bool
) -> None:
    r = dataclasses.replace(
        r,
        micro_batch_size=micro,
        gradient_accumulation=steps,
        sequence_len=length,
        epochs=epochs,
        schedule=dataclasses.replace(r.schedule, learning_rate=rate),
        tf32=flag,
        passthrough={},
    )
    got = made(read_back(r))
    assert {path: at(got, path) for path in carried(r)} == carried(r)


DECIDED = [
    ("Qwen/Qwen3-8B", "kentino-8x-rtx-5090", {"method": "full"}),
    ("Qwen/Qwen3-8B", "kentino-8x-rtx-5090", {"method": "full", "trainer": "accelerate"}),
    ("meta-llama/Llama-3.1-8B", "kentino-4x-rtx-4090", {"method": "lora"}),
    ("meta-llama/Llama-3.1-8B", "kentino-4x-rtx-4090", {"method": "qlora", "trainer": "accelerate"}),
    ("google/gemma-3-12b-it", "kentino-8x-rtx-pro-6000", {"method": "lora"}),
    ("openai/gpt-oss-20b", "kentino-8x-rtx-pro-6000", {"method": "lora"}),
    ("Qwen/Qwen3-30B-A3B", "kentino-8x-rtx-pro-6000", {"method": "lora"}),
    ("Qwen/Qwen3-14B", "kentino-8x-rtx-5090", {"method": "full", "nodes": 2, "network": "roce-100"}),
    ("Qwen/Qwen3-8B", "kentino-8x-rtx-5090", {"method": "full", "pins": {"parallelism.strategy": "zero3_cpu"}}),
]


@pytest.mark.parametrize(("name", "hardware", "more"), DECIDED, ids=[f"{d[0]}-{n}" for n, d in enumerate(DECIDED)])
def test_a_decided_recipe_comes_back_whole(name: str, hardware: str, more: dict[str, Any]) -> None:
    request = Request(model=name, hardware=hardware, **more)
    world = load_cluster(hardware, nodes=request.nodes, network=request.network)
    shape = load_model(name)
    answer = decide(request, shape, world, STACK, ())
    files = render(answer, pins=PINS)
    got = made(assemble(readings(files), STACK, cluster=world, model=lambda _: shape))
    want = _without_effect(answer.recipe, got)
    for field in dataclasses.fields(Recipe):
        assert getattr(got, field.name) == getattr(want, field.name), field.name


def _without_effect(want: Recipe, got: Recipe) -> Recipe:
    """`want` with those fields of `got` that no file carries (module docstring of formats/assemble.py)."""
    names = ["datasets"]
    if not launch_read.CARRIES["launch.environment"](want):
        launch = dataclasses.replace(want.launch, environment=got.launch.environment)
        want = dataclasses.replace(want, launch=launch)
    if want.trainer == "accelerate":
        names.append("chat_template")
        want = dataclasses.replace(want, saving=dataclasses.replace(want.saving, save_only_model=False))
    if not want.activation_checkpointing:
        names.append("activation_checkpointing_reentrant")
    if want.gradient_accumulation == 1:
        names.append("sync_each_batch")
    if want.deepspeed and got.deepspeed:
        sizes = ("nvme_path", "buffer_count", "buffer_size")
        kept = {name: getattr(got.deepspeed, name) for name in sizes}
        want = dataclasses.replace(want, deepspeed=dataclasses.replace(want.deepspeed, **kept))
    return dataclasses.replace(want, **{name: getattr(got, name) for name in names})


# --- what files leave out


def test_an_axolotl_file_gets_axolotls_defaults() -> None:
    answer = axolotl("")
    got = made(answer)
    assert (got.sequence_len, got.micro_batch_size, got.epochs, got.optimizer.name) == (
        512,
        1,
        1.0,
        "adamw_torch_fused",
    )
    assert (got.schedule.scheduler, got.schedule.warmup_ratio, got.saving.save_total_limit) == ("cosine", 0.03, 4)
    assert got.method is Method.FULL
    assert got.parallelism.strategy is Strategy.DDP
    assert got.precision.parameters is Dtype.BF16
    assert got.tf32
    assert got.seed == 42
    assert {"sequence_len", "optimizer.name", "parallelism.gpus_per_node"} <= answer.defaults
    assert answer.provenance["model"] == "axolotl.yaml:1"
    assert "model" not in answer.defaults


def test_axolotl_changes_silently_what_depends_on_other_keys() -> None:
    text = "sample_packing: true\ngradient_checkpointing: true\n"
    packed = made(axolotl(text + "attn_implementation: sdpa\n"))
    assert made(axolotl(text)).attention_memory is AttentionMemory.MASKED  # the varlen kernel is for a stated sdpa
    assert packed.pad_to_sequence_len
    assert packed.activation_checkpointing_reentrant
    assert packed.attention_memory is AttentionMemory.VARLEN
    loading = packed.loading
    assert (loading.dataloader_workers, loading.prefetch_factor, loading.pin_memory) == (8, 256, True)
    stated = made(axolotl("dataloader_pin_memory: false\n")).loading
    assert (stated.dataloader_workers, stated.prefetch_factor, stated.pin_memory) == (0, None, False)


LORA = "adapter: lora\nlora_r: 8\nlora_alpha: 16\nlora_target_linear: true\n"


@pytest.mark.parametrize(
    ("text", "on"),
    [
        ("", True),
        ("lora_mlp_kernel: false\n", False),
        ("load_in_8bit: true\n", False),
        ("trust_remote_code: true\n", False),
        ("fsdp_version: 2\nfsdp_config: {offload_params: false}\n", True),
        ("fsdp_config: {offload_params: false}\n", False),  # FSDP1
    ],
)
def test_fused_lora_kernels_switch_themselves_on(text: str, on: bool) -> None:
    adapter = made(axolotl(LORA + text)).adapter
    assert adapter is not None
    assert adapter.fused_kernels is on


def test_every_linear_layer_is_a_target() -> None:
    adapter = made(axolotl(LORA)).adapter
    assert adapter is not None
    assert set(adapter.target_modules) == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    }  # fmt: skip


def test_an_int8_base_has_fp32_adapters() -> None:
    got = made(axolotl(LORA + "load_in_8bit: true\n"))
    assert got.method is Method.LORA
    assert (got.precision.parameters, got.precision.trainable) == (Dtype.INT8, Dtype.FP32)


def test_without_mixed_precision_everything_is_fp32() -> None:
    fp32 = Dtype.FP32
    assert made(axolotl("bf16: false\nfp16: false\n")).precision == Precision(fp32, fp32, fp32, fp32, fp32, fp32)


def test_fp16_is_counted_as_bf16_and_said() -> None:
    answer = axolotl(LORA + "bf16: false\nfp16: true\n")
    assert made(answer).precision.parameters is Dtype.BF16
    assert any("fp16" in item.reason for item in answer.unknown)


def test_optimi_keeps_its_own_numbers() -> None:
    optimizer = made(axolotl("optimizer: optimi_adamw\n")).optimizer
    assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon) == (0.9, 0.99, 1e-6)


def test_training_arguments_get_the_defaults_of_transformers() -> None:
    got = made(arguments("bf16: true\n"))
    assert (got.trainer, got.micro_batch_size, got.epochs, got.schedule.learning_rate) == ("accelerate", 8, 3.0, 5e-5)
    assert (got.schedule.warmup_steps, got.saving.save_steps, got.schedule.scheduler) == (0, 500, "linear")
    assert got.precision.trainable is Dtype.FP32
    assert not got.activation_checkpointing
    assert not got.tf32


def test_llama_factory_has_defaults_of_its_own() -> None:
    adapter = made(arguments("stage: sft\nfinetuning_type: lora\nbf16: true\n")).adapter
    assert adapter is not None
    assert (adapter.r, adapter.alpha, len(adapter.target_modules)) == (8, 16, 7)


# --- engines


@pytest.mark.parametrize(
    ("text", "strategy", "replicate", "shard"),
    [
        ("", Strategy.FSDP2_FULL, 1, 8),
        ("dp_shard_size: 4\n", Strategy.FSDP2_HYBRID, 2, 4),
        ("dp_replicate_size: 2\n", Strategy.FSDP2_HYBRID, 2, 4),
        ("dp_shard_size: 4\ndp_replicate_size: 2\n", Strategy.FSDP2_HYBRID, 2, 4),
        ("tensor_parallel_size: 2\ndp_shard_size: 4\n", Strategy.FSDP2_FULL, 1, 4),
        ("dp_shard_size: 1\n", Strategy.DDP, 8, 1),
    ],
)
def test_the_mesh_is_what_axolotl_makes_of_it(text: str, strategy: Strategy, replicate: int, shard: int) -> None:
    mesh = made(axolotl(f"fsdp_version: 2\nfsdp_config: {{offload_params: false}}\n{text}")).parallelism
    assert (mesh.strategy, mesh.dp_replicate, mesh.dp_shard) == (strategy, replicate, shard)


def test_a_mesh_that_does_not_multiply_is_unknown_with_its_numbers() -> None:
    answer = axolotl("fsdp_version: 2\nfsdp_config: {offload_params: false}\ndp_shard_size: 4\ndp_replicate_size: 4\n")
    assert answer.recipe is None
    assert any("16, but world_size is 8" in item.reason and item.where for item in answer.unknown)


def test_fsdp1_is_read() -> None:
    fsdp = made(axolotl("fsdp: [full_shard, auto_wrap]\nfsdp_config: {fsdp_offload_params: true}\n")).fsdp
    assert fsdp is not None
    assert (fsdp.version, fsdp.offload_params, fsdp.state_dict_type) == (1, True, "FULL_STATE_DICT")
    assert fsdp.layer_class == "LlamaDecoderLayer"


@pytest.mark.parametrize("version", [1, 2])
def test_the_wrapper_of_fsdp_checkpoints_without_reentrance(version: int) -> None:
    config = "fsdp_config: {activation_checkpointing: true, transformer_layer_cls_to_wrap: LlamaDecoderLayer}\n"
    for got in (
        made(axolotl(f"fsdp_version: {version}\n{config}")),
        made(arguments(f"bf16: true\nfsdp: full_shard\n{config}")),
    ):
        assert got.activation_checkpointing
        assert not got.activation_checkpointing_reentrant


def test_the_accelerate_file_switches_on_what_axolotl_does_not_state() -> None:
    text = "distributed_type: FSDP\nnum_machines: 1\nnum_processes: 4\nfsdp_config: {fsdp_version: 2}\n"
    got = made(axolotl("", accelerate_read.read(text.encode(), "accelerate.yaml")))
    assert (got.parallelism.strategy, got.parallelism.dp_shard) == (Strategy.FSDP2_FULL, 4)
    assert got.fsdp is not None
    assert got.fsdp.cpu_ram_efficient_loading


def test_the_command_line_wins_over_the_accelerate_file() -> None:
    file = accelerate_read.read(b"distributed_type: MULTI_GPU\nnum_machines: 1\nnum_processes: 8\n", "accelerate.yaml")
    script = b"accelerate launch --config_file accelerate.yaml --num_processes 2 -m axolotl.cli.train axolotl.yaml\n"
    mesh = made(axolotl("", file, launch_read.read(script, "launch.sh"))).parallelism
    assert (mesh.gpus_per_node, mesh.dp_replicate) == (2, 2)


@pytest.mark.parametrize(
    ("section", "strategy"),
    [
        ({"stage": 2}, Strategy.ZERO2),
        ({"stage": 3, "offload_param": {"device": "cpu"}}, Strategy.ZERO3_CPU),
        ({"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/n"}}, Strategy.ZERO3_NVME),
        ({"stage": 3}, Strategy.ZERO3_CPU),
    ],
)
def test_zero_is_read_from_the_named_file_or_from_within(section: dict[str, Any], strategy: Strategy) -> None:
    named = axolotl("deepspeed: configs/ds.json\n", zero({"zero_optimization": {"stage": 1}}, "other.json"),
                    zero({"zero_optimization": section}))  # fmt: skip
    inside = axolotl(f"deepspeed: {json.dumps({'zero_optimization': section})}\n")
    for answer in (named, inside):
        got = made(answer)
        assert got.parallelism.strategy is strategy
        assert got.deepspeed is not None
        assert got.deepspeed.reduce_bucket_size == 500_000_000
        assert got.precision.master is Dtype.FP32


def test_adapters_under_zero_are_bf16_with_a_master() -> None:
    answer = axolotl(LORA + "deepspeed: {zero_optimization: {stage: 2}}\n")
    precision = made(answer).precision
    assert (precision.parameters, precision.trainable, precision.master) == (Dtype.BF16, Dtype.BF16, Dtype.FP32)
    assert any("not run" in item.reason for item in answer.unknown)


def test_auto_sizes_are_those_of_transformers() -> None:
    settings = {"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}
    deepspeed = made(axolotl("deepspeed: ds.json\n", zero(settings))).deepspeed
    assert deepspeed is not None
    assert deepspeed.reduce_bucket_size == model().hidden_size ** 2


# --- what cannot be known


@pytest.mark.parametrize(
    ("text", "path", "word"),
    [
        ("rl: dpo\n", "method", "rl"),
        ("adapter: llama-adapter\n", "adapter", "llama-adapter"),
        ("adapter: lora\nlora_target_linear: true\n", "adapter.r", "lora_r"),
        ("adapter: lora\nlora_r: 8\nlora_alpha: 8\n", "adapter.target_modules", "lora_target_modules"),
        ("deepspeed: elsewhere.json\n", "deepspeed.stage", "elsewhere.json"),
        ("optimizer: nonsense\n", "optimizer.name", "nonsense"),
        ("attn_implementation: sage\n", "attention", "sage"),
        ("qat: {activation_dtype: nvfp4}\n", "precision", "qat"),
        ("unfrozen_parameters: [lm_head]\n", "method", "unfrozen_parameters"),
        ("attn_implementation: flash_attention_4\n", "precision", "was not run"),
        ("deepspeed: {zero_optimization: {stage: 1}}\n", "deepspeed.stage", "ZeRO-1"),
    ],
)
def test_a_reason_stands_in_place_of_a_recipe(text: str, path: str, word: str) -> None:
    answer = axolotl(text)
    assert answer.recipe is None
    assert any(item.path == path and word in item.reason and "\n" not in item.reason for item in answer.unknown)


def test_a_stream_has_a_recipe_and_no_epoch() -> None:
    answer = axolotl("streaming: true\nmax_steps: 100\n")
    assert made(answer).max_steps == 100
    assert any(item.path == "datasets" for item in answer.unknown)


@pytest.mark.parametrize("error", [None, RecipegenError("no such model")])
def test_an_unknown_model_says_its_name(error: RecipegenError | None) -> None:
    def find(name: str) -> ModelSpec | None:
        if error:
            raise error
        return None

    answer = assemble([axolotl_read.read(b"base_model: who/knows\n", "a.yaml")], STACK, cluster=cluster(), model=find)
    assert answer.recipe is None
    assert answer.model is None
    assert any("who/knows" in item.reason and item.where == "a.yaml:1" for item in answer.unknown)


def test_without_hardware_the_processes_must_be_stated() -> None:
    assert axolotl("", world=None).recipe is None
    file = accelerate_read.read(b"distributed_type: MULTI_GPU\nnum_machines: 1\nnum_processes: 2\n", "accelerate.yaml")
    answer = axolotl("", file, world=None)
    assert made(answer).parallelism.world_size == 2
    assert any(item.path == "hardware" for item in answer.unknown)


def test_no_trainers_file_is_a_reason() -> None:
    answer = assemble([zero({})], STACK, cluster=cluster(), model=lambda _: model())
    assert answer.recipe is None
    assert "ds.json" in answer.unknown[0].reason


def test_kernels_of_the_loss() -> None:
    liger = "plugins: [axolotl.integrations.liger.LigerPlugin]\nliger_fused_linear_cross_entropy: true\n"
    assert made(axolotl(liger)).loss_kernel is LossKernel.FUSED_LINEAR
    cut = "plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\n"
    assert made(axolotl(cut)).loss_kernel is LossKernel.CUT
    assert made(axolotl("chunked_cross_entropy: true\n")).loss_kernel is LossKernel.CHUNKED_UPCAST


# --- whatever a file holds

ODD = st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats(allow_nan=False) | st.text(max_size=5)
KEYS = (
    "adapter", "lora_r", "lora_alpha", "lora_target_modules", "lora_target_linear", "load_in_4bit", "load_in_8bit",
    "bf16", "fp16", "tf32", "fsdp", "fsdp_version", "fsdp_config", "deepspeed", "dp_shard_size", "dp_replicate_size",
    "tensor_parallel_size", "context_parallel_size", "micro_batch_size", "gradient_accumulation_steps", "max_steps",
    "sequence_len", "sample_packing", "attn_implementation", "optimizer", "datasets", "plugins", "save_steps",
    "val_set_size", "warmup_ratio", "rl", "streaming", "processor_type", "gradient_checkpointing", "num_epochs",
)  # fmt: skip
LIKELY = st.sampled_from([
    "lora", "qlora", True, 2, 8, ["full_shard"], ["hybrid_shard"], {"offload_params": True}, "sdpa", "eager",
    {"zero_optimization": {"stage": 3}}, [{"path": 1}], "all-linear",
])  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), LIKELY | ODD, max_size=8), st.booleans())
def test_nothing_in_a_file_raises(keys: dict[str, Any], hardware: bool) -> None:
    values = {"base_model": "m", "learning_rate": 1e-5, **keys}
    reading = axolotl_read.read(json.dumps(values).encode(), "axolotl.yaml")
    answer = assemble([reading], STACK, cluster=cluster() if hardware else None, model=lambda _: model())
    assert answer.recipe is not None or answer.unknown
    assert all(item.reason and "\n" not in item.reason for item in answer.unknown)


LORA_KEYS = "adapter: qlora\nload_in_4bit: true\nlora_r: 8\nlora_alpha: 16\nlora_target_modules: [q_proj, v_proj]\n"


def test_modules_that_train_whole_are_counted() -> None:
    plain = axolotl(LORA_KEYS)
    saved = axolotl(LORA_KEYS + "lora_modules_to_save: [embed_tokens, lm_head]\n")
    assert made(saved).adapter is not None
    assert made(saved).adapter.modules_to_save == ("embed_tokens", "lm_head")  # type: ignore[union-attr]
    assert saved.provenance["adapter.modules_to_save"] == "axolotl.yaml:9"
    shape = model()
    box = load_cluster("kentino-8x-rtx-pro-6000")
    before, after = (estimate(shape, box, made(answer), STACK) for answer in (plain, saved))
    copies = 2 * shape.vocab_size * shape.hidden_size
    assert after.trainable_parameters - before.trainable_parameters == copies
    assert after.gpu.peak_allocated_bytes - before.gpu.peak_allocated_bytes > 2 * copies
    other = axolotl(LORA_KEYS + "lora_modules_to_save: [score]\n")
    assert other.recipe is None
    assert "score" in other.unknown[0].reason


def test_quantised_experts_are_packed() -> None:
    shape = load_model("Qwen/Qwen3-30B-A3B")
    box = load_cluster("kentino-8x-rtx-pro-6000")
    wide = axolotl(LORA_KEYS, shape=shape)
    packed = axolotl(LORA_KEYS + "quantize_moe_experts: true\n", shape=shape)
    assert made(packed).quantised_experts
    assert not made(wide).quantised_experts
    before, after = (estimate(shape, box, made(answer), STACK).gpu.peak_allocated_bytes for answer in (wide, packed))
    experts = 48 * 128 * 3 * 2048 * 768  # layers, experts, matrices, hidden size, width
    assert before - after > 1.4 * experts  # 2 bytes a weight become about half a byte


def test_expert_parallelism_alone_decides_the_processes() -> None:
    shape = load_model("Qwen/Qwen3-30B-A3B")
    plugin = "plugins: [axolotl.integrations.expert_parallel.ExpertParallelPlugin]\n"
    found = axolotl(plugin + "expert_parallel_size: 4\n", shape=shape)
    mesh = made(found).parallelism
    assert (mesh.strategy, mesh.world_size, mesh.ep) == (Strategy.DDP, 4, 4)
    assert sum(item.path == "parallelism.ep" for item in found.unknown) == 2
    box = load_cluster("kentino-8x-rtx-pro-6000")
    split = estimate(shape, box, made(found), STACK)
    whole = dataclasses.replace(made(found), parallelism=dataclasses.replace(mesh, ep=1))
    assert split.gpu.peak_allocated_bytes < 0.4 * estimate(shape, box, whole, STACK).gpu.peak_allocated_bytes
    assert split.total_parameters == shape.num_parameters
    fsdp = "fsdp_version: 2\nfsdp_config: {reshard_after_forward: true}\n"
    assert axolotl(plugin + "expert_parallel_size: 4\n" + fsdp, shape=shape).recipe is None


@pytest.mark.parametrize(
    ("patterns", "frozen"),
    [
        ("[model.language_model.*, lm_head.*]", True),
        ("[model.language_model.+]", True),
        ("[model.*]", None),  # the tower too
        ("[model.language_model.layers.0.*]", None),
        ("['^model.language_model.embed_tokens.weight$[:32000]', model.language_model.*]", True),
        ("['(a+)+$', '((']", None),
    ],
)
def test_patterns_of_a_whole_text_decoder_freeze_the_tower(patterns: str, frozen: bool | None) -> None:
    shape = load_model("google/gemma-3-4b-it")
    found = axolotl(f"unfrozen_parameters: {patterns}\n", shape=shape)
    assert (None if found.recipe is None else found.recipe.freeze_vision) is frozen
    if frozen is None:
        assert any("unfrozen_parameters" in item.reason and item.where for item in found.unknown)
