"""templates/train.py in process: losses, learning rates, optimizers, and what it refuses, one line each."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from recipegen.catalog.resources import data_folder
from tests.trainers import tiny

pytestmark = pytest.mark.stack
TEMPLATES = data_folder("templates")
IGNORE = -100


@pytest.fixture(scope="module")
def train() -> Iterator[ModuleType]:
    """templates/train.py with its modules."""
    sys.path.insert(0, str(TEMPLATES))
    try:
        import train

        yield train
    finally:
        sys.path.remove(str(TEMPLATES))
        for name in ("train", "train_checkpoint", "train_data", "train_recipe"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    folder = tiny.write_model("llama", tmp_path_factory.mktemp("model"))
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def a_batch() -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(5, 300, (2, 1500), generator=generator)  # more tokens than one chunk of the chunked loss
    targets = torch.roll(ids, -1, dims=1)
    targets[:, -1] = IGNORE
    targets[0, :700] = IGNORE
    return {"input_ids": ids, "targets": targets}


def loss_and_gradients(train: ModuleType, model: Any, kernel: str) -> tuple[float, Any]:
    import torch

    model = copy.deepcopy(model).train()
    loss = train.summed_loss(model, a_batch(), kernel)
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()])


def test_the_loss_is_that_of_transformers_summed(train: ModuleType, small_model: Any) -> None:
    batch = a_batch()
    labels = batch["targets"].roll(1, dims=1)
    labels[:, 0] = IGNORE
    expected = small_model(input_ids=batch["input_ids"], labels=labels).loss.item()
    trained = int((batch["targets"] != IGNORE).sum())
    assert loss_and_gradients(train, small_model, "stock")[0] / trained == pytest.approx(expected, rel=1e-5)


def test_the_chunked_loss_is_the_same_loss(train: ModuleType, small_model: Any) -> None:
    import torch

    stock, stock_gradients = loss_and_gradients(train, small_model, "stock")
    chunked, chunked_gradients = loss_and_gradients(train, small_model, "chunked_upcast")
    assert chunked == pytest.approx(stock, rel=1e-6)
    torch.testing.assert_close(chunked_gradients, stock_gradients, rtol=1e-4, atol=1e-4)


def test_the_chunked_loss_keeps_no_fp32_logits_for_backward(train: ModuleType, small_model: Any) -> None:
    """What it is for: 4 bytes per token and vocabulary entry less between forward and backward."""
    import torch

    def saved_logits(kernel: str) -> int:
        model = copy.deepcopy(small_model).to(torch.bfloat16).train()
        batch, sizes = a_batch(), []
        whole = batch["input_ids"].numel() * model.config.vocab_size
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: (sizes.append((t.numel(), t.dtype)), t)[1], lambda t: t
        ):
            train.summed_loss(model, batch, kernel)
        return sum(numel for numel, dtype in sizes if dtype is torch.float32 and numel >= whole / 4)

    assert saved_logits("stock") > 0
    assert saved_logits("chunked_upcast") == 0


def test_vision_is_frozen_and_the_text_decoder_is_not(train: ModuleType, tmp_path: Path) -> None:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**sizes, "vocab_size": 300, "num_key_value_heads": 1, "head_dim": 16}
    config = Gemma3Config(text_config=text, vision_config={**sizes, "image_size": 28, "patch_size": 14})
    Gemma3ForConditionalGeneration(config).save_pretrained(tmp_path)
    fields = {
        "name": str(tmp_path),
        "load_dtype": "float32",
        "attention": "sdpa",
        "freeze_vision": True,
        "gradient_checkpointing": False,
        "loss_kernel": "stock",
        "trust_remote_code": False,
    }
    missing = dict.fromkeys(("revision", "quantization", "dequantize"))
    recipe = SimpleNamespace(model=SimpleNamespace(**fields, **missing), strategy="fsdp2_full", adapter=None)
    trained = {name: p.requires_grad for name, p in train.load_model(recipe, None).named_parameters()}
    assert {"vision_tower", "multi_modal_projector", "language_model"} <= {p for n in trained for p in n.split(".")}
    for name, grad in trained.items():
        assert grad == ("vision_tower" not in name and "multi_modal_projector" not in name), name


def schedule(name: str, **changes: Any) -> SimpleNamespace:
    values = {"learning_rate": 1.0, "scheduler": name, "warmup_steps": 10, "warmup_ratio": None}
    return SimpleNamespace(**{**values, **changes})


def test_learning_rates(train: ModuleType) -> None:
    rates = [train.learning_rate(schedule("cosine"), step, 110) for step in range(110)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == 1.0
    assert rates[60] == pytest.approx(0.5)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert 0 < rates[-1] < 0.001
    assert train.learning_rate(schedule("linear"), 60, 110) == pytest.approx(0.5)
    assert train.learning_rate(schedule("constant"), 0, 110) == 1.0
    assert train.learning_rate(schedule("constant_with_warmup"), 4, 110) == pytest.approx(0.5)
    assert train.learning_rate(schedule("constant_with_warmup"), 100, 110) == 1.0
    by_share = schedule("cosine", warmup_steps=None, warmup_ratio=0.1)
    assert train.learning_rate(by_share, 0, 100) == pytest.approx(0.1)
    assert all(math.isfinite(train.learning_rate(schedule("cosine", warmup_steps=5), step, 5)) for step in range(5))


def optimizer_recipe(name: str, weight_decay: float) -> SimpleNamespace:
    numbers = SimpleNamespace(name=name, beta1=0.8, beta2=0.95, epsilon=1e-7, weight_decay=weight_decay)
    return SimpleNamespace(strategy="single", optimizer=numbers, schedule=SimpleNamespace(learning_rate=3e-4))


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("adamw_torch_fused", "torch.optim.adamw.AdamW"),
        ("adamw_torch", "torch.optim.adamw.AdamW"),
        ("adamw_bnb_8bit", "bitsandbytes.optim.adamw.AdamW8bit"),
        ("optimi_adamw", "optimi.adamw.AdamW"),
    ],
)
def test_every_optimizer_gets_the_numbers_of_the_recipe(
    train: ModuleType, small_model: Any, name: str, cls: str
) -> None:
    made = train.make_optimizer(optimizer_recipe(name, 0.1), small_model, None)
    assert f"{type(made).__module__}.{type(made).__name__}" == cls
    for group in made.param_groups:
        betas = group.get("betas") or (group["beta1"], group["beta2"])
        assert tuple(betas) == (0.8, 0.95)
        assert group["eps"] == 1e-7
        assert group["lr"] == 3e-4
        assert group["weight_decay"] == (0.1 if group["params"][0].ndim > 1 else 0.0)
    assert sum(len(group["params"]) for group in made.param_groups) == len(list(small_model.parameters()))
    if name.startswith("adamw_torch"):
        assert bool(made.defaults["fused"]) == (name == "adamw_torch_fused")


def test_optimi_compensates_bf16_sums(train: ModuleType, small_model: Any) -> None:
    import torch

    model = copy.deepcopy(small_model).to(torch.bfloat16)
    made = train.make_optimizer(optimizer_recipe("optimi_adamw", 0.0), model, None)
    model(input_ids=torch.tensor([[5, 6, 7]])).logits.float().sum().backward()
    made.step()
    states = train.count_states(SimpleNamespace(optimizer=made))
    assert any("kahan" in name for name in states), states
    assert {dtype for found in states.values() for dtype in found} == {"bfloat16"}


def test_resuming_is_asked_for(train: ModuleType, tmp_path: Path) -> None:
    recipe = SimpleNamespace(saving=SimpleNamespace(output=str(tmp_path)))
    assert train.find_checkpoint(recipe, None) is None
    with pytest.raises(train.Problem, match="no checkpoint"):
        train.find_checkpoint(recipe, "latest")
    for step in (5, 10, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "step.json").write_text("{}")
    (tmp_path / "incomplete-200").mkdir()
    assert train.find_checkpoint(recipe, "latest") == tmp_path / "checkpoint-100"
    assert train.find_checkpoint(recipe, str(tmp_path / "checkpoint-5")) == tmp_path / "checkpoint-5"
    with pytest.raises(train.Problem, match="--resume latest"):
        train.find_checkpoint(recipe, None)
    with pytest.raises(train.Problem, match="no checkpoint"):
        train.find_checkpoint(recipe, str(tmp_path / "elsewhere"))


def test_a_missing_file_is_one_line_and_exit_2(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(TEMPLATES / "train.py")], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1].startswith("train.py: error: cannot read train.json")
    assert "Traceback" not in ran.stderr
