"""requirements.txt, DECISION.md and README.md."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipegen.formats import decision_md, launcher, readme_md, requirements
from recipegen.formats.axolotl import FIELDS
from recipegen.spec import (
    EnvVar,
    Finding,
    Launch,
    LossKernel,
    Method,
    Recipe,
    RecipegenError,
    Saving,
    Severity,
    Strategy,
    Verdict,
)
from tests.recipes_for_tests import PINS, dataset, decision, model, recipe, recipes

SAMPLES = dict(recipes())
HOSTILE = "x | y <script>alert(1)</script> `$(touch canary)`\n\n# Heading\n| a | b |"


def pins(chosen: object) -> dict[str, str]:
    text = requirements.write(chosen, PINS)  # type: ignore[arg-type]
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)$", text, re.MULTILINE))


@pytest.mark.parametrize("name", SAMPLES)
def test_requirements_are_exact(name: str) -> None:
    text = requirements.write(SAMPLES[name], PINS)
    names = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all("==" in line or line == "flash-attn" for line in names)
    assert {"torch", "axolotl", "transformers", "accelerate", "peft"} <= set(pins(SAMPLES[name]))


def test_requirements_hold_what_the_recipe_uses_and_no_more() -> None:
    plain = pins(recipe())
    assert not {"torch-optimi", "liger-kernel", "deepspeed"} & set(plain)
    assert "tensorboard" not in plain  # comes with Axolotl
    assert pins(recipe(trainer="accelerate"))["tensorboard"] == PINS["tensorboard"]
    hub = (dataset("tatsu-lab/alpaca", local=False),)
    assert "datasets" in pins(recipe(trainer="accelerate", datasets=hub))
    assert "datasets" not in pins(recipe(trainer="accelerate"))
    assert "pyarrow" in requirements.packages(recipe(trainer="accelerate", datasets=(dataset("x.parquet"),)))
    assert pins(recipe(optimizer_name="optimi_adamw"))["torch-optimi"] == "0.2.1"
    assert "liger-kernel" in pins(recipe(loss_kernel=LossKernel.FUSED_LINEAR))
    assert "deepspeed" in pins(recipe(Strategy.ZERO2))
    assert "axolotl" not in pins(recipe(trainer="accelerate"))
    assert "bitsandbytes" not in pins(recipe(trainer="accelerate"))
    assert "bitsandbytes" in pins(recipe(Strategy.DDP, Method.QLORA, trainer="accelerate"))
    with pytest.raises(RecipegenError):
        requirements.write(recipe(trainer="megatron"), PINS)


def test_a_package_outside_the_stack_says_so() -> None:
    text = requirements.write(recipe(saving=Saving(1, 2, None, 1, "mlflow")), PINS)
    assert text.endswith("# Not part of the tested stack; any version.\nmlflow\n")


def test_a_version_cannot_smuggle_a_line() -> None:
    with pytest.raises(RecipegenError, match="exact"):
        requirements.write(recipe(), {**PINS, "torch": "2.13.0\n--index-url https://evil.example"})


def test_the_decision_shows_verdict_budget_and_alternatives() -> None:
    text = decision_md.write(decision())
    assert "**Verdict: fits**\n" in text
    for line in (
        "| `data.jsonl` | 1,000 (messages) | tokenizer | 640 / 3,900 / 4,100 | 10 of 1,000 rows, 10,000 tokens drop",
        "| logits | 7.00 GiB | chunked upcast |",
        "| peak allocated | 15.00 GiB | in the phase layer backward |",
        "| peak reserved | 17.00 GiB | planning value; 16.00 GiB to 19.00 GiB |",
        "| `sync_each_batch` | without it every GPU keeps 15.0 GiB of unsharded gradients |",
        "| `--method lora` | LoRA, FSDP2 full shard: 9.1 GiB of 31.37 GiB |",
        "| does not fit | 64.1 GiB of states on a 31.37 GiB card |",
    ):
        assert line in text
    assert "could not be verified" in text
    assert text.index("| logits") < text.index("| parameters")


def test_not_recommended_is_in_the_verdict() -> None:
    text = decision_md.write(decision(recommended=False, verdict=Verdict.TIGHT))
    assert "**Verdict: tight: inside the error band of the estimate**, **not recommended**" in text


def test_what_is_not_known_is_said() -> None:
    chosen = recipe(Strategy.FSDP2_HYBRID, nodes=2)
    text = decision_md.write(decision(chosen, model=model(unconfirmed=True)))
    assert "no second source" in text
    assert "not this network's" in text
    unread = dataclasses.replace(chosen, datasets=(dataset("x/y", rows=None, lengths=None, local=False),))
    assert "| `x/y` | not known | not measured |" in decision_md.write(decision(unread))
    assert "The data set was not read" in decision_md.write(decision(unread))


@pytest.mark.parametrize("name", SAMPLES)
def test_the_readme_fits_the_recipe(name: str) -> None:
    chosen = SAMPLES[name]
    text = readme_md.write(decision(chosen), ("axolotl.yaml", "launch.sh"))
    assert ("libaio" in text) == (chosen.parallelism.strategy is Strategy.ZERO3_NVME)
    assert ("MASTER_ADDR" in text) == (chosen.parallelism.nodes > 1)
    assert ("`micro_batch_size:" in text) == (chosen.micro_batch_size > 1)
    assert ("`activation_checkpointing: true`" in text) == (not chosen.activation_checkpointing)
    assert "\nrecipegen update " in text
    assert "| `axolotl.yaml` |" in text
    assert "train.py" not in text
    assert "\n\n\n" not in text


def readme(chosen: Recipe) -> str:
    return readme_md.write(decision(chosen), ("axolotl.yaml",))


def test_the_readme_shows_every_node_first() -> None:
    text = readme(recipe(Strategy.FSDP2_HYBRID, nodes=4))
    run = text[text.index("## Run") : text.index("## Resume")]
    for line in ("MASTER_ADDR=10.0.0.1 NODE_RANK=0 ./launch.sh", "NODE_RANK=1 ./launch.sh", "to NODE_RANK=3", "29500"):
        assert line in run
    assert "\n./launch.sh\n" not in run
    assert "\n./launch.sh\n" in readme(recipe())


def test_the_readme_does_not_advise_what_launch_sh_does_already() -> None:
    off = Launch(29500, 8, (EnvVar("NCCL_P2P_DISABLE", "1", "no peer access"),))
    assert "try `NCCL_P2P_DISABLE=1`" in readme(recipe())
    assert "sets `NCCL_P2P_DISABLE=1` already" in readme(recipe(launch=off))
    assert "try `NCCL_P2P_DISABLE=1`" not in readme(recipe(launch=off))
    assert "NCCL" not in readme(recipe(Strategy.SINGLE))


def test_out_of_memory_advice_is_what_is_left() -> None:
    text = readme(recipe(Strategy.DDP, Method.LORA, micro_batch_size=4, activation_checkpointing=False))
    for advice in ("micro_batch_size: 2", "activation_checkpointing: true", "sequence_len: 2048", "method: qlora"):
        assert f"`{advice}`" in text
    last = readme(recipe(Strategy.DDP, Method.QLORA, sequence_len=512))
    assert not re.search(r"^- `(micro_batch|activation|sequence|method)", last, re.MULTILINE)


def test_a_model_folder_is_read_in_place() -> None:
    here = decision(recipe(model="/models/base"))
    text = readme_md.write(here, ("axolotl.yaml",))
    assert "read in place" in text
    assert "downloads" not in text
    assert "hf auth login" not in text
    assert "| model, read in place | 16.0 GB |" in decision_md.write(here)
    assert "| model download | 16.0 GB |" in decision_md.write(decision())


def test_a_finding_is_listed_once() -> None:
    finding = Finding("RG501", Severity.WARNING, "data", "10 of 1000 rows are longer", "Use 8192.")
    warnings = ("RG501 10 of 1000 rows are longer (Use 8192.)", "RG5012 something else", "a note")
    text = decision_md.write(decision(findings=(finding,), warnings=warnings))
    assert text.count("10 of 1000 rows are longer") == 1
    assert "- RG5012 something else\n- a note\n" in text


def test_reasons_are_of_fields_that_the_recipe_has() -> None:
    reasons = {
        "adapter.r": "of the adapter",
        "fsdp.reshard_after_forward": "of fsdp",
        "schedule.warmup_steps": "of the steps",
        "schedule.warmup_ratio": "of the ratio",
        "saving.save_steps": "once per epoch",
        "no.such.field": "of nothing",
    }
    full = decision_md.write(decision(recipe(saving=Saving(None, 2, None, 1, "none")), reasons=reasons))
    assert "| of fsdp |" in full
    assert "| of the steps |" in full
    assert not re.search(r"of the adapter|of the ratio|of nothing", full)
    assert "| once per epoch |" in full
    lora = decision_md.write(decision(recipe(Strategy.DDP, Method.LORA), reasons=reasons))
    assert "of the adapter" in lora
    assert "of fsdp" not in lora


def test_the_time_says_how_long_the_run_and_a_sequence_are() -> None:
    text = decision_md.write(decision())
    assert "| one sequence | up to 4,096 tokens, 700 on average |" in text
    assert "| the whole run, 2 epochs | 6.4 min |" in text
    short = decision_md.write(decision(recipe(max_steps=1500, packing=True)))
    assert "| one sequence | 4,096 tokens |" in short
    assert "| the whole run, 1,500 steps | 6.4 min |" in short
    small, large = dataset("a", rows=100), dataset("b", rows=300)
    assert small.lengths
    mixed = (dataclasses.replace(small, lengths=dataclasses.replace(small.lengths, mean=300.0)), large)
    assert "up to 4,096 tokens, 600 on average" in decision_md.write(decision(recipe(datasets=mixed)))
    unread = (dataset("x/y", rows=None, lengths=None, local=False),)
    assert "| one sequence | up to 4,096 tokens |" in decision_md.write(decision(recipe(datasets=unread)))


def test_host_memory_and_disk_are_in_gb() -> None:
    text = decision_md.write(decision())
    section = text[text.index("## Host memory") : text.index("## What was decided")]
    assert "| capacity | 768.0 GB |" in section
    assert "GiB" not in section


@given(st.text(max_size=40) | st.just(HOSTILE))
@settings(max_examples=60, deadline=None)
def test_no_text_becomes_markup(text: str) -> None:
    chosen = recipe(model=text, hardware=text)
    answer = decision(chosen, model=model(id=text, license=text), reasons={"model": text}, warnings=(text,))
    place = "x" if launcher.hub_model(chosen) else "./x"  # the README of a model folder has other lines
    plain = decision(recipe(model=place), model=model(id="x", license="x"), reasons={"model": "x"}, warnings=("x",))
    for write in (decision_md.write, lambda d: readme_md.write(d, ("axolotl.yaml",))):
        lines, expected = write(answer).splitlines(), write(plain).splitlines()
        assert len(lines) == len(expected)
        assert [line[:2] for line in lines if line.startswith(("#", "|", "```"))] == [
            line[:2] for line in expected if line.startswith(("#", "|", "```"))
        ]
        assert not any(re.search(r"(?<!\\)<[a-z/]", line) for line in lines)


def test_the_fields_of_the_decision_are_fields_of_the_recipe() -> None:
    assert {path.split(".")[0] for paths in FIELDS.values() for path in paths} <= set(vars(recipe()))
