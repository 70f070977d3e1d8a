"""What peft's adapters and the decoder layers of transformers keep for backward, of real layers on CPU tensors.

Only attention stands in: a function that keeps what a flash kernel does. The bytes of one layer are the difference
between a model of two layers and one of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from cpu_allocations import measured

from recipegen.estimate.activations import attention_saved, saved_per_token
from recipegen.estimate.symbols import Symbols, symbols
from recipegen.spec import AttentionMemory, Method, ModelSpec, MoeSpec, QkNorm
from tests.simulate import tiny_recipes

pytestmark = pytest.mark.stack

TOKENS = 256
RANK = 1
#: the formula leaves out what is narrow: the products of rank `RANK`, one number per token of every norm
NARROW = 0.01

MIXTURES = ("mixtral", "qwen3_moe")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
TARGETS = {
    "q and v": ("q_proj", "v_proj"),
    "q alone": ("q_proj",),
    "o alone": ("o_proj",),
    "attention": ATTENTION,
    "gate and up": ("gate_proj", "up_proj"),
    "down alone": ("down_proj",),
    "all linear": (*ATTENTION, "gate_proj", "up_proj", "down_proj"),
}


def spec(kind: str) -> ModelSpec:
    """Ratios of real models: an MLP of 3.5 hidden sizes, four query heads to a key head."""
    classes = {"llama": "Llama", "qwen3": "Qwen3", "mixtral": "Mixtral", "qwen3_moe": "Qwen3Moe"}
    more: dict[str, Any] = {"layer_class": classes[kind] + "DecoderLayer"}
    if kind.startswith("qwen3"):
        more["qk_norm"] = QkNorm.PER_HEAD
    if kind in MIXTURES:
        more["moe"] = MoeSpec(4, 2, 896)
    width = 128 if kind == "llama" else 256  # wide beside numbers per token and head or expert, which are not counted
    return ModelSpec(
        id=kind,
        model_type=kind,
        hidden_size=width,
        intermediate_size=width * 7 // 2,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=width // 8,
        vocab_size=256,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        **more,
    )


@cache
def stand_in() -> str:
    """Registers attention that keeps q, k, v, its output and one fp32 number per head and token."""
    import torch
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
            if torch.is_autocast_enabled("cpu"):  # as sdpa under autocast
                q, k, v = (x.to(torch.bfloat16) for x in (q, k, v))
            batch, heads, rows, width = q.shape
            out = torch.zeros(batch, rows, heads, width, dtype=q.dtype)
            ctx.save_for_backward(q, k, v, out, torch.zeros(batch, heads, rows))
            return out

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return tuple(torch.zeros_like(x) for x in ctx.saved_tensors[:3])

    name = "claims_attention"
    AttentionInterface.register(name, lambda module, q, k, v, *_, **__: (Keeps.apply(q, k, v), None))
    AttentionMaskInterface.register(name, lambda *_, **__: None)
    return name


def base(kind: str, attention: str = "") -> Any:
    import torch
    from transformers import AutoModelForCausalLM, initialization
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from recipegen.simulate.config import config_values

    config = CONFIG_MAPPING[kind](**config_values(spec(kind)))
    options = {"experts_implementation": "grouped_mm"} if kind in MIXTURES else {}
    with initialization.no_init_weights():
        made = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation=attention or stand_in(), **options
        )
    for parameter in made.parameters():
        parameter.data.fill_(0.01)
    return made


def quantise(model: Any) -> None:
    """Real Linear4bit in the place of every linear module of the decoder."""
    import bitsandbytes as bnb
    import torch

    for path, module in list(model.model.named_modules()):
        if type(module) is torch.nn.Linear:
            packed = bnb.nn.Linear4bit(
                module.in_features, module.out_features, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4"
            )
            packed.load_state_dict(module.state_dict())
            parent, _, name = path.rpartition(".")
            setattr(model.model.get_submodule(parent), name, packed.to("cpu"))
    model.is_loaded_in_4bit = True  # what peft looks at; transformers sets it when it quantises


def model(kind: str, targets: tuple[str, ...], *, packed: bool, dtype: str) -> Any:
    """A full fine-tune without targets."""
    import torch
    from peft import LoraConfig, get_peft_model

    made = base(kind)
    if packed:
        quantise(made)
    if not targets:
        return made.train()
    made.enable_input_require_grads()
    made = get_peft_model(made, LoraConfig(r=RANK, target_modules=list(targets)))
    for parameter in made.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(getattr(torch, dtype))
    return made.train()


@contextmanager
def autocast(enabled: bool) -> Iterator[None]:
    """bf16 autocast as on CUDA: peft asks `torch.is_autocast_enabled()`, which means that of CUDA."""
    import torch

    with ExitStack() as stack:
        if enabled:
            before = torch.is_autocast_enabled("cuda")
            torch.set_autocast_enabled("cuda", True)
            stack.callback(torch.set_autocast_enabled, "cuda", before)
            stack.enter_context(torch.autocast("cpu", torch.bfloat16, cache_enabled=False))
        yield


def kept_per_token(
    kind: str,
    targets: tuple[str, ...] = (),
    *,
    packed: bool = False,
    dtype: str = "float32",
    casts: bool = False,
    wide: bool = False,
) -> float:
    """Bytes per token that one decoder layer keeps for its backward."""
    import torch

    network = model(kind, targets, packed=packed, dtype=dtype)
    decoder = (network.float() if wide else network).get_decoder()
    tokens = torch.zeros(1, TOKENS, dtype=torch.long)
    held: list[Any] = []

    def forward(layers: int) -> None:
        decoder.config.num_hidden_layers = layers
        held.clear()
        with autocast(casts):
            held.append(decoder(input_ids=tokens, use_cache=False).last_hidden_state)

    forward(1)  # tables and other things of the first time
    held.clear()
    two, none, one = measured(lambda: forward(2), held.clear, lambda: forward(1))
    assert none.left < one.left / 100
    return (two.left - one.left) / TOKENS


def letters(kind: str, targets: tuple[str, ...], method: Method = Method.LORA, **changes: Any) -> Symbols:
    recipe = tiny_recipes.recipe(spec(kind), method, targets=targets, activation_checkpointing=False)
    return replace(symbols(spec(kind), recipe, tiny_recipes.stack()), **changes)


def agrees(kind: str, x: Symbols, targets: tuple[str, ...] = (), **how: Any) -> None:
    assert kept_per_token(kind, targets, **how) == pytest.approx(saved_per_token(x), rel=NARROW)


@pytest.mark.parametrize("name", TARGETS)
def test_under_autocast_every_adapter_on_a_linear_module_keeps_its_own_bf16_copy(name: str) -> None:
    """That o_proj's input is kept by attention anyway does not spare its adapter the copy."""
    x = letters("llama", TARGETS[name])
    assert (x.autocast, x.own_copy) == (True, 2)
    agrees("llama", x, TARGETS[name], casts=True)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("qwen3", "all linear"), ("qwen3", "q and v"), ("mixtral", "attention"), ("qwen3_moe", "attention")],
)
def test_so_it_is_in_other_architectures(kind: str, name: str) -> None:
    agrees(kind, letters(kind, TARGETS[name]), TARGETS[name], casts=True)


@pytest.mark.parametrize("name", ["q and v", "o alone", "gate and up", "all linear"])
def test_bf16_adapters_share_the_copy_of_an_input_and_that_of_attention_costs_nothing(name: str) -> None:
    """As under FSDP2, which gives the adapters bf16 before they run."""
    x = letters("llama", TARGETS[name], autocast=False, t=2.0)
    assert x.own_copy == 0
    agrees("llama", x, TARGETS[name], dtype="bfloat16")


@pytest.mark.parametrize("name", ["q and v", "all linear"])
def test_without_autocast_fp32_adapters_keep_four_byte_copies(name: str) -> None:
    x = letters("llama", TARGETS[name], autocast=False)
    assert x.own_copy == 4
    agrees("llama", x, TARGETS[name])


@pytest.mark.parametrize("name", ["q and v", "o alone", "all linear"])
def test_on_a_4_bit_module_adapters_share_their_input_under_autocast(name: str) -> None:
    x = letters("llama", TARGETS[name], Method.QLORA)
    assert (x.autocast, x.own_copy) == (True, 0)
    agrees("llama", x, TARGETS[name], packed=True, casts=True)


def test_on_a_4_bit_module_fp32_embeddings_make_activations_fp32_without_autocast() -> None:
    """A Linear4bit returns the dtype of its input, so what comes in fp32 stays fp32."""
    import bitsandbytes as bnb
    import torch

    linear = bnb.nn.Linear4bit(64, 64, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4").to("cpu")
    assert linear(torch.zeros(2, 64)).dtype is torch.float32
    assert linear(torch.zeros(2, 64, dtype=torch.bfloat16)).dtype is torch.bfloat16


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mixtral", "qwen3_moe"])
def test_a_full_fine_tune_in_bf16_keeps_what_the_formula_says(kind: str) -> None:
    recipe = tiny_recipes.recipe(spec(kind), activation_checkpointing=False)
    x = symbols(spec(kind), recipe, tiny_recipes.stack())
    assert (x.full, x.autocast) == (True, False)
    agrees(kind, x)


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe"])
def test_trained_experts_keep_their_tokens_and_their_results_once_each(kind: str) -> None:
    """4 H k: the gathered tokens for the weights' gradient, the results for that of the router."""
    x = symbols(spec(kind), tiny_recipes.recipe(spec(kind), activation_checkpointing=False), tiny_recipes.stack())
    a = x.shape
    dense = saved_per_token(replace(x, shape=replace(a, E=0)))
    assert kept_per_token(kind) == pytest.approx(dense + 4 * a.H * a.k + 8 * a.E, rel=NARROW)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_fp32_under_autocast_keeps_what_the_formula_says_and_bf16_copies_of_linear_weights(kind: str) -> None:
    recipe = tiny_recipes.recipe(spec(kind), activation_checkpointing=False, precision=tiny_recipes.FP32)
    x = symbols(spec(kind), recipe, tiny_recipes.stack())
    assert (x.full, x.autocast) == (True, True)
    assert fp32_kept(kind, x) == pytest.approx(saved_per_token(x), rel=NARROW)


def fp32_kept(kind: str, x: Symbols) -> float:
    """Without the casts of weights that autocast keeps: bf16, of all but the norms."""
    norms = 2 * x.shape.H + (2 * x.shape.D if x.shape.qk_norm else 0)
    return kept_per_token(kind, wide=True, casts=True) - 2 * (x.shape.P_l - norms) / TOKENS


@pytest.mark.parametrize(("kind", "heads"), [("llama", 0), ("qwen3", 6)])
def test_under_autocast_an_fp32_norm_keeps_8_per_element_and_every_linear_module_a_cast_of_its_input(
    kind: str, heads: int
) -> None:
    """`heads`: what a norm over q and k keeps per element."""
    recipe = tiny_recipes.recipe(spec(kind), activation_checkpointing=False, precision=tiny_recipes.FP32)
    x = symbols(spec(kind), recipe, tiny_recipes.stack())
    a = x.shape
    casts = 2 * (3 * a.H + 2 * a.H)  # q, k, v and gate, up; o and down get bf16
    attention = 4 * a.q + 4 * a.kv + 4 * a.A + heads * (a.q + a.kv)
    assert fp32_kept(kind, x) == pytest.approx(8 * a.H * a.norms + casts + attention + 8 * a.F, rel=NARROW)


# --- other ways to run a layer


def decoder_kept(decoder: Any, *, packed_rows: bool = False) -> tuple[float, float]:
    """Bytes per token of one layer of a decoder that is not adapted, and those beside its layers.

    `packed_rows`: two documents in a row, for which transformers builds a mask.
    """
    import torch

    tokens = torch.zeros(1, TOKENS, dtype=torch.long)
    positions = torch.cat([torch.arange(TOKENS // 2)] * 2)[None] if packed_rows else None
    held: list[Any] = []

    def forward(layers: int) -> None:
        decoder.config.num_hidden_layers = layers
        held.clear()
        held.append(decoder(input_ids=tokens, position_ids=positions, use_cache=False).last_hidden_state)

    forward(1)
    held.clear()
    two, _, one = measured(lambda: forward(2), held.clear, lambda: forward(1))
    return (two.left - one.left) / TOKENS, (2 * one.left - two.left) / TOKENS


def test_eager_attention_keeps_fp32_probabilities_their_bf16_copy_and_repeated_keys() -> None:
    recipe = tiny_recipes.recipe(
        spec("llama"), activation_checkpointing=False, attention_memory=AttentionMemory.EAGER, sequence_len=TOKENS
    )
    x = symbols(spec("llama"), recipe, tiny_recipes.stack())
    assert x.s == TOKENS
    found, _ = decoder_kept(base("llama", "eager").train().get_decoder())
    assert found == pytest.approx(saved_per_token(x), rel=NARROW)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_layer_keeps_the_residual_at_its_boundary(dtype: str, reentrant: bool) -> None:
    import torch

    network = base("llama").to(getattr(torch, dtype)).train()
    network.gradient_checkpointing_enable({"use_reentrant": reentrant})
    network.enable_input_require_grads()
    width = {"bfloat16": 2, "float32": 4}[dtype]
    generator = torch.get_rng_state().nbytes / TOKENS  # the state to recompute dropout from; a GPU's is 16 bytes
    found, _ = decoder_kept(network.get_decoder())
    assert found - generator == pytest.approx(width * spec("llama").hidden_size, rel=NARROW)


def masked() -> Symbols:
    fields = {"attention_memory": AttentionMemory.MASKED, "sequence_len": TOKENS}
    recipe = tiny_recipes.recipe(spec("llama"), activation_checkpointing=False, **fields)
    return symbols(spec("llama"), recipe, tiny_recipes.stack())


def test_masked_sdpa_keeps_what_the_formula_says() -> None:
    found, _ = decoder_kept(base("llama", "sdpa").train().get_decoder(), packed_rows=True)
    assert found == pytest.approx(saved_per_token(masked()), rel=NARROW)


def test_masked_sdpa_repeats_keys_and_values_and_keeps_a_bf16_mask_of_its_own_in_every_layer() -> None:
    """The mask of transformers is boolean; torch's sdpa converts it in every call and keeps that for backward."""
    x = masked()
    a = x.shape
    found, _ = decoder_kept(base("llama", "sdpa").train().get_decoder(), packed_rows=True)
    rest = saved_per_token(x) - attention_saved(x)
    assert found == pytest.approx(rest + 8 * a.q + 4 * a.A + 2 * TOKENS, rel=NARROW)


def test_checkpointed_layers_share_one_boolean_mask() -> None:
    """One byte per token and position, as an argument of every checkpoint."""
    beside = []
    for packed_rows in (True, False):
        network = base("llama", "sdpa").train()
        network.gradient_checkpointing_enable({"use_reentrant": False})
        network.enable_input_require_grads()
        beside.append(decoder_kept(network.get_decoder(), packed_rows=packed_rows)[1])
    assert beside[0] - beside[1] == pytest.approx(TOKENS, rel=0.05)
