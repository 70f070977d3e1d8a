"""What Axolotl's own paths keep: attention over packed rows."""

from __future__ import annotations

from typing import Any

import pytest

from recipegen.estimate.activations import attention_saved
from recipegen.estimate.symbols import symbols
from recipegen.spec import AttentionMemory
from tests.simulate import tiny_recipes

pytestmark = pytest.mark.stack

TOKENS, HEADS, KEY_HEADS, WIDTH = 64, 8, 2, 16


@pytest.fixture
def varlen(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    """Axolotl's forward with a kernel that only notes what it is given, and tensors that claim to be on CUDA."""
    import torch
    from torch.nn.attention import varlen as kernel

    sdpa_varlen = pytest.importorskip("axolotl.monkeypatch.attention.sdpa_varlen")
    seen: list[Any] = []

    def note(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> Any:
        seen.append((q, k, v))
        return q.clone()

    monkeypatch.setattr(kernel, "varlen_attn", note)
    forward = sdpa_varlen._build_varlen_forward(lambda *_, **__: pytest.fail("fell back to sdpa"))
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    return forward, seen


def test_keys_and_values_are_repeated_to_the_width_of_queries(varlen: tuple[Any, list[Any]]) -> None:
    import torch

    forward, seen = varlen

    def heads(count: int) -> Any:
        return torch.zeros(1, TOKENS, count, WIDTH, dtype=torch.bfloat16).transpose(1, 2)

    positions = torch.cat([torch.arange(TOKENS // 2)] * 2)[None]
    key, value = heads(KEY_HEADS), heads(KEY_HEADS)
    out, _ = forward(torch.nn.Module(), heads(HEADS), key, value, None, position_ids=positions)
    q, k, v = seen[0]
    assert q.shape == k.shape == v.shape == (TOKENS, HEADS, WIDTH)
    given = {x.untyped_storage().data_ptr() for x in (key, value)}
    assert given.isdisjoint(x.untyped_storage().data_ptr() for x in (k, v))  # copies, not views
    kept = sum(x.untyped_storage().nbytes() for x in (q, k, v, out)) / TOKENS
    spec = tiny_recipes.tiny()
    x = symbols(spec, tiny_recipes.recipe(spec, attention_memory=AttentionMemory.VARLEN), tiny_recipes.stack())
    a = x.shape
    per_width = (attention_saved(x) - 4 * a.A) / a.q  # without the fp32 number per head and token
    assert kept == per_width * HEADS * WIDTH


@pytest.mark.parametrize(("adapter", "expected"), [("qlora", {"": 1}), ("lora", None)])
def test_only_qlora_under_fsdp_is_loaded_whole_on_every_gpu(
    monkeypatch: pytest.MonkeyPatch, adapter: str, expected: dict[str, int] | None
) -> None:
    """`unsharded_model`: the loader sends the whole model to this rank's own device."""
    from types import SimpleNamespace

    loading = pytest.importorskip("axolotl.loaders.model")
    from axolotl.utils.dict import DictDefault

    monkeypatch.setenv("LOCAL_RANK", "1")
    loader = object.__new__(loading.ModelLoader)
    loader.cfg = DictDefault({"adapter": adapter, "fsdp_config": {"fsdp_version": 2}, "fsdp_version": 2})
    loader.model_kwargs = {}
    loader.model_config = SimpleNamespace()
    loader._set_device_map_config()
    assert loader.model_kwargs.get("device_map") == expected
