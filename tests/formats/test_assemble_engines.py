"""Engines and the mesh: how many ranks there are and what they share."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from recipegen.catalog import load_cluster, load_model
from recipegen.estimate import estimate
from recipegen.formats import (
    accelerate_read,
    launch_read,
)
from recipegen.spec import (
    Dtype,
    Strategy,
)
from tests.formats.assembling import LORA, STACK, arguments, axolotl, made, zero
from tests.recipes_for_tests import model


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


def test_words_of_fsdp1_have_no_effect_in_the_trainers_file() -> None:
    """Transformers hands them on as reshard_after_forward; Accelerate prefers its sharding strategy, FULL_SHARD."""
    config = "fsdp_config: {use_orig_params: true}\n"
    for word in ("shard_grad_op", "no_shard", "hybrid_shard"):
        answers = [
            axolotl(f"fsdp: [{word}]\n{config}"),
            arguments(f"bf16: true\nfsdp: {word}\nfsdp_config: {{version: 1}}\n"),
        ]
        for answer in answers:
            got = made(answer)
            assert got.parallelism.strategy is Strategy.FSDP2_FULL
            assert got.fsdp is not None
            assert got.fsdp.reshard_after_forward
            assert any(word.upper() in item.reason and item.where for item in answer.unknown)


def test_a_word_of_fsdp1_in_the_launchers_file_holds() -> None:
    text = (
        b"distributed_type: FSDP\nnum_processes: 8\n"
        b"fsdp_config: {fsdp_version: 1, fsdp_sharding_strategy: SHARD_GRAD_OP}\n"
    )
    file = accelerate_read.read(text, "accelerate.yaml")
    fsdp = made(axolotl("fsdp: [full_shard]\nfsdp_config: {use_orig_params: true}\n", file)).fsdp
    assert fsdp is not None
    assert not fsdp.reshard_after_forward


@pytest.mark.parametrize(("version", "kind"), [(1, "FULL_STATE_DICT"), (2, "SHARDED_STATE_DICT")])
def test_the_launcher_alone_brings_its_own_defaults(version: int, kind: str) -> None:
    text = f"distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {{fsdp_version: {version}}}"
    file = accelerate_read.read(text.encode(), "accelerate.yaml")
    for answer in (axolotl("", file), arguments("bf16: true\n", file)):
        fsdp = made(answer).fsdp
        assert fsdp is not None
        assert (fsdp.version, fsdp.state_dict_type, fsdp.cpu_ram_efficient_loading) == (version, kind, True)


def test_a_version_within_fsdp_config_leaves_lora_kernels_off() -> None:
    adapter = made(axolotl(LORA + "fsdp_config: {fsdp_version: 2, offload_params: false}\n")).adapter
    assert adapter is not None
    assert not adapter.fused_kernels


@pytest.mark.parametrize(("clipping", "norm"), [({}, 0.0), ({"gradient_clipping": "auto"}, 0.3)])
def test_deepspeed_clips_only_where_its_settings_say_so(clipping: dict[str, Any], norm: float) -> None:
    settings = zero({"zero_optimization": {"stage": 2}, **clipping})
    text = "bf16: true\nmax_grad_norm: 0.3\ndeepspeed: ds.json\n"
    assert made(arguments(text, settings)).optimizer.max_grad_norm == norm


def test_zero_in_fp32_was_not_run() -> None:
    answer = arguments("deepspeed: ds.json\n", zero({"zero_optimization": {"stage": 2}}))
    assert answer.recipe is None
    assert any(item.path == "precision" and "fp32" in item.reason for item in answer.unknown)


def test_the_compiler_of_a_deepspeed_launch_stays_off() -> None:
    text = (
        b"distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\n"
        b"dynamo_config: {dynamo_backend: INDUCTOR}\ndeepspeed_config: {zero_stage: 2}\n"
    )
    assert not made(arguments("", accelerate_read.read(text, "accelerate.yaml"))).torch_compile
