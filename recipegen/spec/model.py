"""A language model as the planner sees it: shapes, nothing learned."""

from __future__ import annotations

from dataclasses import dataclass

from recipegen.spec.kinds import QkNorm


@dataclass(frozen=True)
class MoeSpec:
    """The mixture-of-experts part of every MoE layer.

    `intermediate_size` is the width of ONE expert; `shared_intermediate_size` is the total width of the
    shared experts (0: none). `expert_bias`/`router_bias` say whether those linears carry biases (gpt-oss).
    `first_dense_layers` layers at the start keep a dense MLP of ModelSpec.intermediate_size.
    """

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    shared_intermediate_size: int = 0
    shared_gate: bool = False
    first_dense_layers: int = 0
    router_bias: bool = False
    expert_bias: bool = False
    adapter_names: tuple[tuple[str, str], ...] = ()  # (gate | up | down | router, the name peft knows it by)


@dataclass(frozen=True)
class LinearGroup:
    """`count` equal linear modules outside the text decoder (a vision tower, its projector), by module path suffix."""

    name: str
    in_features: int
    out_features: int
    bias: bool
    count: int


@dataclass(frozen=True)
class ModelSpec:
    """Shape facts of a decoder-only language model (the text part, for multimodal ones).

    Sizes are in elements. `num_parameters` is the exact total when known (asserted against the real
    `transformers` class in the tests), 0 when it has to be computed from the shape.
    """

    id: str
    model_type: str  # transformers `model_type`
    layer_class: str  # decoder layer class that FSDP wraps, e.g. "LlamaDecoderLayer"
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    qk_norm: QkNorm = QkNorm.NONE
    norms_per_layer: int = 2
    norm_bias: bool = False  # LayerNorm with bias instead of RMSNorm
    gated_mlp: bool = True  # gate, up, down; False: up, down
    fused_qkv: bool = False  # one qkv_proj (Phi-3)
    fused_gate_up: bool = False  # one gate_up_proj (Phi-3, GLM-4)
    attention_sinks: bool = False  # one learned value per head (gpt-oss)
    sliding_window: int | None = None
    logit_softcap: bool = False  # final tanh cap (Gemma 2)
    #: the class makes its own loss of shifted fp32 logits, which no chunked loss replaces (Gemma 3 with images)
    own_loss: bool = False
    moe: MoeSpec | None = None
    extra_parameters: int = 0  # parameters outside the text decoder (vision tower, projector)
    num_parameters: int = 0
    # --- what a person needs to know before downloading
    license: str = "unknown"
    gated: bool = False
    chat_template: str | None = None  # Axolotl's name of the family's template
    end_of_turn: tuple[str, ...] = ()  # tokens that end an assistant's turn
    eos_token: str | None = None
    instruct: bool = False
    download_bytes: int = 0  # size of the safetensors files; 0: 2 bytes per parameter
    trust_remote_code: bool = False
    unconfirmed: bool = False  # the total count has no second source
    source: str = ""  # where the shape is from
    layers_path: str = "model.layers"  # module path of the decoder layers
    extra_linear: tuple[LinearGroup, ...] = ()  # linear modules that extra_parameters contains
    quantization: str | None = None  # the format of the published weights when it is not bf16/fp16 (mxfp4)

    @property
    def q_size(self) -> int:
        """Width of the query projection: heads x head_dim."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of the key (or value) projection: key-value heads x head_dim."""
        return self.num_key_value_heads * self.head_dim

    @property
    def is_moe(self) -> bool:
        return self.moe is not None

    @property
    def is_multimodal(self) -> bool:
        """The class that the trainer loads has more than the text decoder."""
        return self.extra_parameters > 0
