"""The emulated losses against the code that they stand for, allocation by allocation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from recipegen.simulate.ledger import Ledger

pytestmark = pytest.mark.stack

TOKENS, WIDTH, VOCABULARY = 512, 64, 4000
#: index tensors of a few numbers that the emulation does not make
SMALL_BYTES = 4096


def peaks(loss: Callable[[Any, Any, Any], Any], dtype: str, *, trained: bool) -> dict[str, int]:
    """Peak bytes of forward and backward above the inputs'."""
    import torch

    from recipegen.simulate.tracker import Tracker

    ledger = Ledger()
    tracker = Tracker(ledger)
    hidden = torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.nn.Parameter(torch.randn(VOCABULARY, WIDTH, dtype=getattr(torch, dtype)), requires_grad=trained)
    labels = torch.zeros(TOKENS, dtype=torch.long)
    for tensor in (hidden, weight, labels):
        tracker.mark(tensor, "inputs")
    before = ledger.total
    ledger.enter("forward")
    with tracker:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "float32"):
            value = loss(hidden, weight, labels)
        ledger.enter("backward")
        value.backward()
    return {phase: bytes_ - before for phase, (bytes_, _) in ledger.peaks.items()}


@pytest.mark.parametrize(("dtype", "trained"), [("bfloat16", True), ("bfloat16", False), ("float32", False)])
def test_the_fused_loss_allocates_what_ligers_code_does(
    monkeypatch: pytest.MonkeyPatch, dtype: str, trained: bool
) -> None:
    """Liger's own function, with its Triton kernels (which work in place) left out.

    An fp32 head that is trained is missing: there Liger takes another path on CUDA than on a CPU.
    """
    liger = pytest.importorskip("liger_kernel.ops.fused_linear_cross_entropy")

    from recipegen.simulate.losses import FusedLinear

    class Nothing:
        def __getitem__(self, grid: Any) -> Callable[..., None]:
            return lambda *_, **__: None

    monkeypatch.setattr(liger, "liger_cross_entropy_kernel", Nothing())
    monkeypatch.setattr(liger, "element_mul_kernel", Nothing())
    real = peaks(lambda h, w, y: liger.LigerFusedLinearCrossEntropyFunction.apply(h, w, y)[0], dtype, trained=trained)
    ours = peaks(FusedLinear.apply, dtype, trained=trained)
    assert ours["forward"] == pytest.approx(real["forward"], abs=SMALL_BYTES)
    assert ours["backward"] == pytest.approx(real["backward"], abs=SMALL_BYTES)


def test_a_trained_bf16_head_costs_eight_bytes_a_parameter_while_the_fused_loss_runs() -> None:
    """Its gradient, the product of a chunk, and that product's fp32 copy."""
    from recipegen.simulate.losses import FusedLinear

    frozen, trained = (peaks(FusedLinear.apply, "bfloat16", trained=t)["forward"] for t in (False, True))
    assert trained - frozen == pytest.approx(8 * VOCABULARY * WIDTH, rel=0.1)


@pytest.mark.long
def test_compiled_chunks_leave_no_fp32_copy_behind() -> None:
    """Axolotl's chunked loss through inductor, from the allocator's events: two copies of the logits, none in fp32.

    Backward: the bf16 logits and the bf16 gradients of all chunks, then those and their concatenation.
    """
    chunked = pytest.importorskip("axolotl.monkeypatch.loss.chunked")
    import time

    import torch
    from torch.profiler import ProfilerActivity, profile

    from recipegen.simulate.losses import chunked as ours

    tokens, vocabulary = 512, 8000
    logits_bytes = 2 * tokens * vocabulary
    compiled = chunked.get_causal_lm_loss()

    def step() -> tuple[int, int]:
        source = torch.randn(1, tokens, vocabulary, dtype=torch.bfloat16, requires_grad=True)
        labels = torch.randint(0, vocabulary, (1, tokens))
        logits = source * 1
        began = time.time_ns()
        loss = compiled(logits, labels, vocabulary)
        del logits
        turned = time.time_ns()
        loss.backward()
        return began, turned

    step()  # compiles
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        began, turned = step()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    live, real = 0, {"forward": 0, "backward": 0}
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        if event.start_ns() >= began:
            phase = "forward" if event.start_ns() < turned else "backward"
            real[phase] = max(real[phase], live - logits_bytes)  # without the source
    assert real["forward"] == pytest.approx(logits_bytes, rel=0.02)
    assert real["backward"] == pytest.approx(2 * logits_bytes, rel=0.02)
    emulated = peaks(lambda h, w, y: ours(True)((h @ w.t()).unsqueeze(0), y.unsqueeze(0)), "bfloat16", trained=True)
    assert emulated["backward"] == pytest.approx(2 * 2 * TOKENS * VOCABULARY, rel=0.05)


def chunk_peaks(loss: Callable[[Any, Any], Any]) -> dict[str, int]:
    import torch

    def with_logits(hidden: Any, weight: Any, labels: Any) -> Any:
        return loss((hidden @ weight.t()).unsqueeze(0), labels.unsqueeze(0))

    assert torch.is_grad_enabled()
    return peaks(with_logits, "bfloat16", trained=True)


def test_uncompiled_chunks_allocate_what_axolotls_code_does() -> None:
    chunked = pytest.importorskip("axolotl.monkeypatch.loss.chunked")

    from recipegen.simulate.losses import chunked as ours

    kernel = chunked.CEWithChunkedOutputLoss()

    def axolotls(logits: Any, labels: Any) -> Any:
        import torch.nn.functional as F

        shifted = F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
        return kernel(list(logits.chunk(kernel.num_output_chunks, dim=1)), shifted, reduction="mean")

    real, found = chunk_peaks(axolotls), chunk_peaks(lambda x, y: ours(False)(x, y))
    assert found["forward"] == pytest.approx(real["forward"], abs=SMALL_BYTES)
    assert found["backward"] == pytest.approx(real["backward"], abs=SMALL_BYTES)
