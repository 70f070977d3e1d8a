"""What the losses hold, per token and vocabulary entry: transformers' own, Axolotl's chunks, Accelerate's copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from cpu_allocations import Moment, measured

pytestmark = pytest.mark.stack

TOKENS, VOCABULARY = 512, 4096
LOGITS = TOKENS * VOCABULARY
#: index tensors and numbers per token
NARROW = 0.05

Loss = Callable[[Any, Any], Any]


def loss_bytes(loss: Loss, dtype: str = "bfloat16") -> tuple[float, float, float]:
    """Bytes per token and vocabulary entry, the logits included: peak of forward, what is left, peak of backward."""
    import torch

    labels = torch.zeros(1, TOKENS, dtype=torch.long)
    source = torch.zeros(LOGITS, dtype=getattr(torch, dtype), requires_grad=True)
    held: list[Any] = []

    def logits() -> None:
        held.append((source * 1.0).view(1, TOKENS, VOCABULARY))  # nothing of it is kept for backward

    def forward() -> None:
        held.append(loss(held.pop(), labels))

    def backward() -> None:
        held.pop().backward()

    _, ahead, back = measured(logits, forward, backward)
    source.grad = None
    return ahead.peak / LOGITS, ahead.left / LOGITS, back.peak / LOGITS


def stock(logits: Any, labels: Any) -> Any:
    from transformers.loss.loss_utils import ForCausalLMLoss

    return ForCausalLMLoss(logits, labels, VOCABULARY)


def test_transformers_loss_holds_ten_bytes_forward_and_twelve_backward() -> None:
    """bf16 logits 2, fp32 copy 4, log-softmax 4; then log-softmax, gradient of nll, gradient of log-softmax."""
    ahead, left, back = loss_bytes(stock)
    assert ahead == pytest.approx(10, rel=NARROW)
    assert left == pytest.approx(4, rel=NARROW)
    assert back == pytest.approx(12, rel=NARROW)


def model(**changes: Any) -> Any:
    """A Llama or Gemma-2 whose vocabulary is all that counts."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    fields: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "use_cache": False,
        "tie_word_embeddings": False,
    }
    config = CONFIG_MAPPING[changes.pop("model_type", "llama")](**(fields | changes))
    made = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    made.requires_grad_(False)  # as for an adapter: no gradient of the head beside the logits
    made.enable_input_require_grads()
    return made.train()


def step(call: Callable[..., Any]) -> tuple[Moment, Moment]:
    import torch

    tokens = torch.zeros(1, TOKENS, dtype=torch.long)
    held: list[Any] = []
    run = (lambda: held.append(call(input_ids=tokens, labels=tokens).loss), lambda: held.pop().backward())
    for warm in run:
        warm()
    ahead, back = measured(*run)
    return ahead, back


def test_a_causal_model_of_transformers_holds_the_same() -> None:
    """The model's output does not outlive its use by the trainer, so the bf16 logits are gone in backward."""
    ahead, back = step(model())
    assert ahead.peak / LOGITS == pytest.approx(10, rel=NARROW)
    assert back.peak / LOGITS == pytest.approx(12, rel=NARROW)


def test_a_soft_cap_keeps_two_bytes_more_forward_and_backward() -> None:
    softcap = model(model_type="gemma2", final_logit_softcapping=30.0, attn_logit_softcapping=None)
    ahead, back = step(softcap)
    assert ahead.peak / LOGITS == pytest.approx(12, rel=NARROW)
    assert back.peak / LOGITS == pytest.approx(14, rel=NARROW)


def axolotls(logits: Any, labels: Any) -> Any:
    import torch.nn.functional as F

    chunked = pytest.importorskip("axolotl.monkeypatch.loss.chunked")
    kernel = chunked.CEWithChunkedOutputLoss()
    shifted = F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
    return kernel(list(logits.chunk(kernel.num_output_chunks, dim=1)), shifted, reduction="mean")


def test_axolotls_chunks_uncompiled_keep_as_much_as_the_stock_loss() -> None:
    _, left, _ = loss_bytes(axolotls)
    assert left == pytest.approx(loss_bytes(stock)[1], rel=NARROW)


def test_axolotl_compiles_its_chunks_and_makes_eight() -> None:
    import inspect

    from recipegen.catalog.planning import planning

    chunked = pytest.importorskip("axolotl.monkeypatch.loss.chunked")
    made = chunked._build_chunked_ce_loss_fn()
    assert made.num_output_chunks == planning().chunked_loss_chunks
    assert hasattr(made.compute_cross_entropy, "_torchdynamo_orig_callable")
    assert inspect.signature(chunked.get_causal_lm_loss).parameters["num_output_chunks"].default == 8


@pytest.mark.long
def test_axolotls_chunks_compiled_keep_the_logits_and_one_chunk() -> None:
    import torch

    chunked = pytest.importorskip("axolotl.monkeypatch.loss.chunked")
    kernel = chunked._build_chunked_ce_loss_fn()
    labels = torch.zeros(1, TOKENS, dtype=torch.long)

    def loss(logits: Any, labels: Any) -> Any:
        return kernel(list(logits.chunk(kernel.num_output_chunks, dim=1)), labels, reduction="mean")

    warm = torch.zeros(1, TOKENS, VOCABULARY, dtype=torch.bfloat16, requires_grad=True)
    loss(warm, labels).backward()
    ahead, left, back = loss_bytes(loss)
    assert left == pytest.approx(2, rel=0.15)
    assert max(ahead, back) <= 4 + 8 / kernel.num_output_chunks + 0.2


def test_ligers_fused_loss_is_for_training_only() -> None:
    """Evaluation has its logits (`evaluation_bytes`)."""
    import inspect

    liger = pytest.importorskip("liger_kernel.transformers.model.llama")
    assert "skip_logits = self.training and" in inspect.getsource(liger.lce_forward)


# --- Accelerate


@pytest.fixture
def no_state() -> Iterator[None]:
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.usefixtures("no_state")
def test_accelerate_makes_an_fp32_copy_of_a_models_outputs_on_one_gpu() -> None:
    """Logits that a chunked loss leaves in bf16 are there twice for a moment, six bytes (`outputs_upcast`)."""
    import torch
    from accelerate import Accelerator

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(LOGITS, dtype=torch.bfloat16))

        def forward(self) -> dict[str, Any]:
            return {"logits": self.weight * 1}

    prepared = Accelerator(mixed_precision="bf16", cpu=True).prepare_model(Logits())
    held: list[Any] = []
    (moment,) = measured(lambda: held.append(prepared()))
    assert held[0]["logits"].dtype is torch.float32
    assert moment.peak / LOGITS == pytest.approx(6, rel=NARROW)


def test_the_estimate_uses_these_numbers() -> None:
    from recipegen.estimate.symbols import Symbols

    fields = {name: field.default for name, field in Symbols.__dataclass_fields__.items()}
    found = SimpleNamespace(**fields)
    assert (found.stock_forward, found.stock_backward) == (10.0, 12.0)
