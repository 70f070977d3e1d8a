"""Launches that take too long for every change: DeepSpeed, what a seed does, and a known fault of the stack."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from recipegen.catalog import load_model
from recipegen.estimate import parameters
from tests.trainers.harness import Project, Run, launch, resume
from tests.trainers.strategies import CASES, CHECKPOINT, STEPS, UNPACKED, Case
from tests.trainers.test_axolotl_runs import SPREAD_OVER_SEEDS, TORCH, assert_same_after_resume

pytestmark = [pytest.mark.run, pytest.mark.long]

NewProject = Callable[..., Project]
ZERO2 = Case(
    "llama-zero2-full", "llama", "alpaca", "full", "cpu-2x", "zero2", "DEEPSPEED",
    settings={"optimizer": "adamw_torch_fused", **UNPACKED},
)  # fmt: skip
ZERO3 = dataclasses.replace(ZERO2, name="llama-zero3-cpu-full", strategy="zero3_cpu")


class LossesDiffer(Exception):
    """A resumed run went another way than the uninterrupted one."""


def last_three(run: Run) -> float:
    return sum(run.losses()[-3:]) / 3


@pytest.mark.parametrize("name", ["llama-single-full", "qwen3-single-lora"])
def test_seed_spread(new_project: NewProject, name: str) -> None:
    """The number that the loss must fall by: how far the last losses lie apart over four seeds."""
    found = [last_three(launch(new_project(CASES[name], f"{name}-seed-{s}", seed=s))) for s in (41, 42, 43, 44)]
    spread = max(found) - min(found)
    print(f"{name}: means of the last three losses {found}, spread {spread:.4f}")
    assert spread <= SPREAD_OVER_SEEDS


@pytest.mark.xfail(
    strict=True,
    raises=LossesDiffer,
    reason="FSDP2 + LoRA + FULL_STATE_DICT: only rank 0's slice of the adapter is written to what resume reads "
    "(accelerate 1.13; huggingface/accelerate pull request 4206). When this passes, allow FULL_STATE_DICT again.",
)
def test_full_state_dict_of_an_adapter_resumes(new_project: NewProject) -> None:
    """The one project that is edited by hand: `new` does not write this combination."""
    project = new_project(CASES["qwen3-fsdp2-lora"], "qwen3-fsdp2-lora-full-state-dict")
    path = project.folder / "axolotl.yaml"
    text = path.read_text(encoding="utf-8")
    assert text.count("SHARDED_STATE_DICT") >= 1
    path.write_text(text.replace("SHARDED_STATE_DICT", "FULL_STATE_DICT"), encoding="utf-8")
    whole = launch(project)
    assert whole.report["fsdp"]["state_dict_type"] == "FULL_STATE_DICT"
    again = resume(whole, CHECKPOINT)
    assert again.report["started_at_step"] == CHECKPOINT
    worst = max(abs(loss - whole.steps()[step][0]) for step, (loss, _) in again.steps().items())
    if worst > 1e-3:
        raise LossesDiffer(f"a loss of steps {CHECKPOINT + 1} to {STEPS} differs by {worst:.4f}")


@pytest.fixture(scope="module")
def deepspeed_operators() -> None:
    """DeepSpeed compiles its CPU operators on first use; a killed build leaves a lock that hangs the next one."""
    for lock in (Path.home() / ".cache" / "torch_extensions").glob("*/*/lock"):
        lock.unlink()


@pytest.fixture(scope="module")
def zero_run(new_project: NewProject, deepspeed_operators: None) -> Callable[[Case], Run]:
    """The finished run of a DeepSpeed case, launched once."""
    finished: dict[str, Run] = {}

    def get(case: Case) -> Run:
        if case.name not in finished:
            finished[case.name] = launch(new_project(case))
        return finished[case.name]

    return get


each_stage = pytest.mark.parametrize("case", [ZERO2, ZERO3], ids=lambda case: case.name)


@each_stage
def test_deepspeed_trains_with_fp32_master_weights(
    zero_run: Callable[[Case], Run], run_of: Callable[[str], Run], case: Case
) -> None:
    run = zero_run(case)
    recipe, precision = run.project.recipe, run.project.recipe.precision
    zero = recipe.deepspeed
    assert zero is not None
    for report in run.reports:
        assert report["distributed_type"] == "DEEPSPEED"
        assert report["world_size"] == 2
        engine = report["engine"]
        assert engine["stage"] == zero.stage
        assert engine["offload_optimizer"] == zero.offload_optimizer
        assert engine["offload_param"] == zero.offload_param
        # ZeRO-3 leaves only a stub of each parameter in its module; ZeRO-2 keeps them whole.
        assert engine["partitioned"] == (zero.stage == 3)
        assert engine["parameters"] == [TORCH[precision.parameters]]
        assert precision.master is not None
        assert engine["master"] == [TORCH[precision.master]]
        assert engine["states"] == {name: [TORCH[precision.states]] for name in ("exp_avg", "exp_avg_sq")}
        assert engine["gradient_accumulation_dtype"] == f"torch.{TORCH[precision.gradients]}"
        assert engine["communication_dtype"] == f"torch.{TORCH[precision.reduction]}"
        assert report["trainable_parameters"] == parameters.total(load_model(recipe.model))
    group = run.report["optimizer"]["groups"][0]
    assert list(group["betas"]) == [recipe.optimizer.beta1, recipe.optimizer.beta2]
    assert group["eps"] == recipe.optimizer.epsilon
    losses = run.losses()
    assert len(losses) == STEPS
    assert sum(losses[:3]) / 3 - sum(losses[-3:]) / 3 > SPREAD_OVER_SEEDS
    assert losses == pytest.approx(run_of("llama-single-full").losses(), abs=0.02)


@each_stage
def test_deepspeed_resumes_as_the_uninterrupted_run(zero_run: Callable[[Case], Run], case: Case) -> None:
    assert_same_after_resume(zero_run(case), resume(zero_run(case), CHECKPOINT))
