"""Each rule says so when its one thing is wrong, and nothing when it is right."""

import dataclasses
from collections.abc import Callable
from dataclasses import replace

import pytest

from recipegen.catalog import load_cluster, load_model, load_stack
from recipegen.decide import decide
from recipegen.estimate import estimate
from recipegen.rules import all_rules, evaluate, find_rule
from recipegen.spec import (
    AttentionMemory,
    DataFormat,
    DatasetSpec,
    Decision,
    Dtype,
    Finding,
    Lengths,
    LossKernel,
    Method,
    Parallelism,
    Recipe,
    Request,
    Severity,
    Strategy,
)


def decided(
    model: str = "Llama-3.1-8B", hardware: str = "kentino-8x-rtx-pro-6000", nodes: int = 1, **more: object
) -> Decision:
    request = Request(model=model, hardware=hardware, nodes=nodes, network="ib-hdr" if nodes > 1 else "none", **more)  # type: ignore[arg-type]
    cluster = load_cluster(hardware, nodes=nodes, network=request.network)
    return decide(request, load_model(model), cluster, load_stack(), ())


def findings(d: Decision, recipe: Recipe, *, generated: bool = True) -> dict[str, Finding]:
    priced = estimate(d.model, d.cluster, recipe, load_stack())
    return {f.rule: f for f in evaluate(recipe, d.model, d.cluster, priced, load_stack(), generated=generated)}


FULL = decided(method="full", pins={"strategy": "fsdp2_full"})
LORA = decided(method="lora", pins={"strategy": "fsdp2_full"})
DDP = decided(method="lora", pins={"strategy": "ddp"})
QLORA = decided(method="qlora", pins={"strategy": "fsdp2_full"})
HYBRID = decided(method="full", nodes=2, pins={"strategy": "fsdp2_hybrid"})
ZERO = decided(method="full", pins={"strategy": "zero2"})
OWN_LOSS = decided("gemma-3-4b-it", method="lora", pins={"strategy": "ddp"})


def chat(path: str = "chat.jsonl", lengths: Lengths | None = None) -> DatasetSpec:
    return DatasetSpec(path, DataFormat.MESSAGES, 1000, lengths, (("path", path),))


LONG_ROWS = Lengths("estimate", 1000, 10**6, 1000.0, 900, 9000, 10000, ((4096, 920, 600_000), (16384, 80, 400_000)))

BROKEN: list[tuple[str, Decision, Callable[[Recipe], Recipe]]] = [
    ("RG201", LORA, lambda r: replace(r, fsdp=replace(r.fsdp, state_dict_type="FULL_STATE_DICT"))),
    ("RG202", FULL, lambda r: replace(r, optimizer=replace(r.optimizer, name="adamw_bnb_8bit"))),
    ("RG203", QLORA, lambda r: replace(r, fsdp=replace(r.fsdp, cpu_ram_efficient_loading=True))),
    ("RG204", ZERO, lambda r: replace(LORA.recipe, parallelism=r.parallelism, deepspeed=r.deepspeed, fsdp=None)),
    ("RG217", OWN_LOSS, lambda r: replace(r, loss_kernel=LossKernel.CHUNKED_UPCAST)),
    ("RG205", FULL, lambda r: replace(r, attention="flash_attention_2")),
    ("RG205", FULL, lambda r: replace(r, attention="flash_attention_3")),
    ("RG205", FULL, lambda r: replace(r, loss_kernel=LossKernel.CUT)),
    (
        "RG206",
        HYBRID,
        lambda r: replace(r, parallelism=Parallelism(Strategy.FSDP2_HYBRID, 2, 6, dp_replicate=3, dp_shard=4)),
    ),
    ("RG207", FULL, lambda r: replace(r, sequence_len=10**6)),
    ("RG208", FULL, lambda r: replace(r, packing=True, attention="eager", attention_memory=AttentionMemory.EAGER)),
    ("RG209", LORA, lambda r: replace(r, adapter=replace(r.adapter, target_modules=("q_proj", "c_attn")))),
    ("RG209", LORA, lambda r: replace(r, adapter=replace(r.adapter, target_modules=()))),
    ("RG211", FULL, lambda r: replace(r, fsdp=None)),
    ("RG211", DDP, lambda r: replace(r, adapter=None)),
    ("RG214", FULL, lambda r: replace(r, activation_offloading=True, activation_checkpointing=False)),
    ("RG407", FULL, lambda r: replace(r, micro_batch_size=1, gradient_accumulation=1)),
    ("RG604", FULL, lambda r: replace(r, trust_remote_code=True)),
    ("RG215", ZERO, lambda r: replace(r, deepspeed=replace(r.deepspeed, offload_optimizer="cpu"))),
    ("RG216", FULL, lambda r: replace(r, trainer="accelerate", activation_offloading=True)),
    ("RG502", FULL, lambda r: replace(r, saving=replace(r.saving, eval_steps=7))),
    ("RG212", LORA, lambda r: replace(r, adapter=replace(r.adapter, fused_kernels=True, dropout=0.05))),
    ("RG401", FULL, lambda r: replace(r, precision=replace(r.precision, compensation=None))),
    ("RG402", FULL, lambda r: replace(r, optimizer=replace(r.optimizer, weight_decay=0.1))),
    ("RG403", FULL, lambda r: replace(r, optimizer=replace(r.optimizer, beta2=0.999))),
    ("RG404", LORA, lambda r: replace(r, datasets=(chat(),), eot_tokens=())),
    ("RG406", FULL, lambda r: replace(r, schedule=replace(r.schedule, learning_rate=2e-4))),
    ("RG501", LORA, lambda r: replace(r, datasets=(chat(lengths=LONG_ROWS),), sequence_len=4096)),
    ("RG101", FULL, lambda r: replace(r, micro_batch_size=512)),
    ("RG602", FULL, lambda r: replace(r, optimizer=replace(r.optimizer, name="adamw_torch_8bit"))),
]


@pytest.mark.parametrize(("rule", "sound", "breaks"), BROKEN, ids=[f"{b[0]}-{i}" for i, b in enumerate(BROKEN)])
def test_a_rule_speaks_when_its_one_thing_is_wrong(
    rule: str, sound: Decision, breaks: Callable[[Recipe], Recipe]
) -> None:
    assert rule not in findings(sound, sound.recipe)
    said = findings(sound, breaks(sound.recipe)).get(rule)
    assert said is not None
    assert said.reason
    assert "\n" not in said.reason


def test_the_end_of_a_turn_is_the_models_not_a_guess() -> None:
    recipe, stack = replace(LORA.recipe, datasets=(chat(),), eot_tokens=()), load_stack()

    def said(generated: bool = False, **facts: object) -> Finding | None:
        model = replace(LORA.model, **facts)
        found = evaluate(recipe, model, LORA.cluster, LORA.estimate, stack, generated=generated)
        return next((f for f in found if f.rule == "RG404"), None)

    assert said(end_of_turn=("<end>",), eos_token="<end>") is None  # what Axolotl trains by itself
    other = said(end_of_turn=("<end>",), eos_token="<eos>")
    assert other is not None
    assert (other.severity, other.fix) == (Severity.WARNING, "--set eot_tokens=<end>")
    recipe = replace(recipe, chat_template="chatml")  # another family's template on this model
    other = said(end_of_turn=("<end>",), eos_token="<end>", chat_template="own")
    assert other is not None
    assert (other.severity, other.fix) == (Severity.WARNING, "--set eot_tokens=<|im_end|>")
    assert said(end_of_turn=("<|im_end|>",), eos_token="<|im_end|>", chat_template="own") is None
    recipe = replace(recipe, chat_template=None)
    unknown = said(end_of_turn=(), eos_token=None)
    assert unknown is not None
    assert unknown.severity is Severity.NOTE
    assert said(generated=True, end_of_turn=(), eos_token=None).severity is Severity.WARNING  # type: ignore[union-attr]


def test_a_small_batch_of_long_packs_is_not_small() -> None:
    recipe = replace(FULL.recipe, micro_batch_size=1, gradient_accumulation=1, packing=True)
    assert "RG407" in findings(FULL, replace(recipe, sequence_len=4096))
    assert "RG407" not in findings(FULL, replace(recipe, sequence_len=32_768))


def test_capabilities_decide_not_names() -> None:
    gpu = replace(FULL.cluster.gpu, triton=False, pinned_memory=False, name="RTX Pro 6000")
    cluster = replace(FULL.cluster, node=replace(FULL.cluster.node, gpu=gpu))
    recipe = replace(FULL.recipe, torch_compile=True)
    without = replace(FULL, cluster=cluster)
    reasons = [
        f.reason for f in evaluate(recipe, without.model, cluster, FULL.estimate, load_stack()) if f.rule == "RG205"
    ]
    assert any("torch_compile needs Triton" in r for r in reasons)
    assert any("no pinned memory" in r for r in reasons)


def test_a_model_that_makes_its_own_loss_is_not_given_another_one() -> None:
    recipe = OWN_LOSS.recipe
    chunked = replace(recipe, loss_kernel=LossKernel.CHUNKED_UPCAST)
    prices = [estimate(OWN_LOSS.model, OWN_LOSS.cluster, r, load_stack()).gpu for r in (recipe, chunked)]
    assert recipe.loss_kernel is not LossKernel.CHUNKED_UPCAST
    assert prices[0].phases == prices[1].phases  # what the trainer ignores saves nothing


def test_gpu_memory_names_the_phase_and_the_largest_term() -> None:
    said = findings(FULL, replace(FULL.recipe, micro_batch_size=512))["RG101"]
    assert "the peak is in" in said.reason
    assert "its largest term" in said.reason
    assert said.required_bytes > said.available_bytes


def test_host_and_disk_are_judged_by_the_nodes_capacity() -> None:
    small = replace(FULL.cluster.node, host_ram_bytes=10**9, nvme_bytes=10**9)
    d = replace(FULL, cluster=replace(FULL.cluster, node=small))
    found = findings(d, d.recipe)
    assert found["RG110"].severity is Severity.ERROR
    assert found["RG120"].severity is Severity.ERROR


def test_a_run_shorter_than_its_warm_up_is_said() -> None:
    data = DatasetSpec(
        "t.jsonl", DataFormat.COMPLETION, 64, replace(LONG_ROWS, rows_measured=64), (("path", "t.jsonl"),)
    )
    recipe = replace(
        FULL.recipe, datasets=(data,), epochs=1.0, schedule=replace(FULL.recipe.schedule, warmup_steps=10**6)
    )
    assert "RG405" in findings(FULL, recipe)


def test_full_shard_across_nodes_is_warned_of() -> None:
    d = decided("Llama-3.3-70B-Instruct", nodes=2, method="full", pins={"strategy": "fsdp2_full"})
    assert "ib-hdr" in findings(d, d.recipe)["RG601"].reason


def test_weights_published_in_mxfp4_are_not_quantised_again() -> None:
    d = decided("gpt-oss-20b", method="lora")
    assert d.recipe.dequantize == "mxfp4"
    assert "RG213" not in findings(d, d.recipe)
    assert "RG213" in findings(d, replace(d.recipe, method=Method.QLORA))


def test_nvme_is_said_to_be_a_last_resort() -> None:
    d = decided("Llama-3.3-70B-Instruct", method="full")
    assert d.recipe.parallelism.strategy is Strategy.ZERO3_NVME
    assert not d.recommended
    assert "written per step" in findings(d, d.recipe)["RG603"].reason
    assert d.ways_out


def test_every_rule_has_a_doc_a_source_and_an_id_of_its_own() -> None:
    rules = all_rules()
    assert len({r.id for r in rules}) == len(rules)
    for r in rules:
        assert len(r.doc) > 60, r.id
        assert r.source, r.id
        assert find_rule(r.id.lower()) is r


def test_fp32_and_compensated_updates_survive() -> None:
    assert "RG401" not in findings(FULL, FULL.recipe)
    plain = replace(FULL.recipe, precision=replace(FULL.recipe.precision, compensation=None))
    loud = replace(plain, schedule=replace(plain.schedule, learning_rate=1e-3))
    assert "RG401" not in findings(FULL, loud)
    master = replace(plain, precision=dataclasses.replace(plain.precision, master=Dtype.FP32))
    assert "RG401" not in findings(FULL, master)


# --- files that somebody else wrote


def first(recipe: Recipe, **changed: object) -> Recipe:
    return replace(recipe, fsdp=replace(recipe.fsdp, version=1, **changed))


@pytest.mark.parametrize(
    ("sound", "broken", "rule"),
    [
        (LORA, lambda r: first(r, state_dict_type="FULL_STATE_DICT"), "RG201"),
        (FULL, lambda r: replace(first(r), optimizer=replace(r.optimizer, name="adamw_bnb_8bit")), "RG202"),
        (QLORA, lambda r: first(r, cpu_ram_efficient_loading=True), "RG203"),
    ],
)
def test_what_holds_of_fsdp2_is_not_said_of_fsdp1(
    sound: Decision, broken: Callable[[Recipe], Recipe], rule: str
) -> None:
    recipe = broken(sound.recipe)
    assert rule not in findings(sound, recipe)
    assert rule in findings(sound, replace(recipe, fsdp=replace(recipe.fsdp, version=2)))  # type: ignore[type-var]


def test_an_optimizer_that_runs_nowhere_does_not_run_under_fsdp1() -> None:
    recipe = replace(first(FULL.recipe), optimizer=replace(FULL.recipe.optimizer, name="ao_adamw_8bit"))
    assert "under FSDP1" in findings(FULL, recipe)["RG202"].reason


GENERATED_ONLY = ("RG210", "RG212", "RG215", "RG216")


@pytest.mark.parametrize(("rule", "sound", "breaks"), [row for row in BROKEN if row[0] in GENERATED_ONLY])
def test_what_is_only_not_generated_is_not_said_of_other_files(
    rule: str, sound: Decision, breaks: Callable[[Recipe], Recipe]
) -> None:
    assert rule not in findings(sound, breaks(sound.recipe), generated=False)


def test_the_rules_for_what_is_generated_are_marked() -> None:
    assert {rule.id for rule in all_rules() if rule.generated_only} == set(GENERATED_ONLY)


@pytest.mark.parametrize(
    ("rule", "severity"),
    [
        ("RG204", Severity.NOTE),
        ("RG206", Severity.WARNING),
        ("RG207", Severity.WARNING),
        ("RG208", Severity.WARNING),
        ("RG217", Severity.WARNING),
    ],
)
def test_what_runs_all_the_same_is_no_error_of_other_files(rule: str, severity: Severity) -> None:
    _, sound, breaks = next(row for row in BROKEN if row[0] == rule)
    broken = breaks(sound.recipe)
    assert findings(sound, broken)[rule].severity is Severity.ERROR
    assert findings(sound, broken, generated=False)[rule].severity is severity


def test_an_optimizer_that_was_only_never_run_is_a_note_on_other_files() -> None:
    def said(name: str, *, generated: bool) -> Severity:
        recipe = replace(ZERO.recipe, optimizer=replace(ZERO.recipe.optimizer, name=name))
        return findings(ZERO, recipe, generated=generated)["RG202"].severity

    assert said("adamw_bnb_8bit", generated=True) is Severity.ERROR
    assert said("adamw_bnb_8bit", generated=False) is Severity.NOTE
    assert said("muon", generated=False) is Severity.ERROR  # refused by a validator


def test_some_targets_of_an_adapter_may_be_another_models() -> None:
    def with_targets(*names: str) -> Recipe:
        return replace(LORA.recipe, adapter=replace(LORA.recipe.adapter, target_modules=names))  # type: ignore[type-var]

    some, none = with_targets("q_proj", "c_attn"), with_targets("c_attn")
    assert findings(LORA, some, generated=False)["RG209"].severity is Severity.WARNING
    assert findings(LORA, none, generated=False)["RG209"].severity is Severity.ERROR
    assert findings(LORA, some)["RG209"].severity is Severity.ERROR


def test_a_card_without_bf16_is_judged_by_the_file() -> None:
    """A Recipe has no word for fp16; RG227 looks at what the file says."""
    gpu = replace(FULL.cluster.gpu, bf16=False)
    d = replace(FULL, cluster=replace(FULL.cluster, node=replace(FULL.cluster.node, gpu=gpu)))
    assert "no bf16" in findings(d, d.recipe)["RG205"].reason
    assert "RG205" not in findings(d, d.recipe, generated=False)
