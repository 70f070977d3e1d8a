"""A Hugging Face `config.json` as a ModelSpec.

What a `model_type` makes of its keys (defaults, biases, norms, fused matrices) is data: architectures.yaml. Nothing
of a config is executed or trusted: every size is checked to be a whole number within bounds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from recipegen.catalog import vision
from recipegen.catalog.reading import load_yaml
from recipegen.spec import ModelSpec, MoeSpec, QkNorm, RecipegenError


@lru_cache(maxsize=1)
def architecture_facts() -> Mapping[str, Any]:
    """The table of known architectures: `architectures`, `multimodal`, `vision`, `limits`, `turn_end_tokens`."""
    return load_yaml(Path(__file__).parent / "architectures.yaml")


def known_model_types() -> tuple[str, ...]:
    """Every `model_type` that can be planned, alphabetically."""
    facts = architecture_facts()
    return tuple(sorted([*facts["architectures"], *facts["multimodal"]]))


def parse_json(data: bytes, where: str) -> dict[str, Any]:
    """A JSON mapping from bytes. Raises RecipegenError with file and line for anything else."""
    limit = int(architecture_facts()["limits"]["config_bytes"])
    if len(data) > limit:
        raise RecipegenError(f"is {len(data)} bytes; a configuration has at most {limit}", where=where)
    try:
        value = json.loads(data.decode("utf-8"))
    except json.JSONDecodeError as error:
        raise RecipegenError(f"not valid JSON: {error.msg}", where=f"{where}:{error.lineno}") from None
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise RecipegenError("not UTF-8 text", where=f"{where}:{line}") from None
    except (RecursionError, ValueError):
        raise RecipegenError("not readable JSON: nested too deeply or a number that is too long", where=where) from None
    if not isinstance(value, dict):
        raise RecipegenError(f"holds a JSON {type(value).__name__}, not a mapping of settings", where=where)
    return value


def from_config(config: Mapping[str, Any], model_id: str, where: str = "config.json") -> ModelSpec:
    """The ModelSpec of a parsed config.json, nested `text_config` of multimodal models included.

    Shapes only: who made it, its licence and its chat template are not in a config. Raises RecipegenError (naming
    `where` and the key) for an unknown architecture, a missing or impossible size, or quantised weights.
    """
    facts = architecture_facts()
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise RecipegenError("has no model_type, so its architecture is unknown", where=where)
    quantization = _quantization(config, where)
    multimodal = facts["multimodal"].get(model_type)
    if multimodal is None:
        return _text_model(config, model_type, model_id, quantization, where)

    text = _section(config, "text_config", where)
    text_type = text.get("model_type", multimodal["default_text"])
    if not isinstance(text_type, str):
        raise RecipegenError("text_config.model_type is not a name", where=where)
    # The class that is loaded reads the outer key; the text part alone would fall back to its own default.
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings", multimodal["tie_word_embeddings"]))
    spec = _text_model({**text, "tie_word_embeddings": tied}, text_type, model_id, quantization, where)
    tower = vision.tower(config, multimodal, spec.hidden_size, where)
    return replace(
        spec,
        model_type=model_type,
        layers_path=multimodal["layers_path"],
        extra_parameters=tower.parameters,
        own_loss=multimodal.get("own_loss", False),
        extra_linear=tower.linear,
    )


def _text_model(
    config: Mapping[str, Any], model_type: str, model_id: str, quantization: str | None, where: str
) -> ModelSpec:
    facts = architecture_facts()
    row = facts["architectures"].get(model_type)
    if row is None:
        raise RecipegenError(
            f"architecture {model_type!r} is not known",
            where=where,
            fix=f"Known: {', '.join(known_model_types())}.",
        )
    read = _Reader(config, row["defaults"], where)
    hidden, heads, layers = map(read.size, ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    kv_heads = read.size("num_key_value_heads", default=heads)
    if read.get("head_dim") is None and hidden % heads:
        raise RecipegenError(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}", where=where)
    head_dim = read.size("head_dim", default=hidden // heads)
    if kv_heads > heads or heads % kv_heads:
        raise RecipegenError(
            f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}", where=where
        )
    return ModelSpec(
        id=model_id,
        model_type=model_type,
        layer_class=row["layer_class"],
        hidden_size=hidden,
        intermediate_size=read.size("intermediate_size"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=read.size("vocab_size"),
        max_position_embeddings=read.size("max_position_embeddings"),
        tie_word_embeddings=read.flag("tie_word_embeddings"),
        qkv_bias=read.trait(row.get("qkv_bias", False)),
        o_bias=read.trait(row.get("o_bias", False)),
        mlp_bias=read.trait(row.get("mlp_bias", False)),
        qk_norm=QkNorm(row.get("qk_norm", "none")),
        norms_per_layer=row.get("norms_per_layer", 2),
        fused_qkv=row.get("fused_qkv", False),
        fused_gate_up=row.get("fused_gate_up", False),
        attention_sinks=row.get("attention_sinks", False),
        sliding_window=_window(read, row),
        logit_softcap=read.number("final_logit_softcapping") is not None,
        moe=_moe(read, row, layers),
        quantization=quantization,
    )


def _moe(read: _Reader, row: Mapping[str, Any], layers: int) -> MoeSpec | None:
    keys = row.get("moe")
    if keys is None:
        return None
    experts = read.size(keys["num_experts"], "num_experts")
    chosen = read.size(keys["experts_per_token"], "experts_per_token")
    if chosen > experts:
        raise RecipegenError(f"{chosen} experts per token of {experts}", where=read.where)
    dense = read.config.get("mlp_only_layers") or []
    first = isinstance(dense, list) and len(dense) < layers and dense == list(range(len(dense)))
    if not first or read.config.get("decoder_sparse_step", 1) != 1:
        raise RecipegenError(
            "only mixture-of-experts models whose dense layers come first are known"
            " (decoder_sparse_step 1, mlp_only_layers [0, 1, ...])",
            where=read.where,
        )
    return MoeSpec(
        num_experts=experts,
        experts_per_token=chosen,
        intermediate_size=read.size(keys["intermediate_size"], "intermediate_size"),
        first_dense_layers=len(dense),
        router_bias=keys.get("router_bias", False),
        expert_bias=keys.get("expert_bias", False),
        adapter_names=tuple(keys.get("adapter_names", {}).items()),
    )


def _window(read: _Reader, row: Mapping[str, Any]) -> int | None:
    switch = row.get("window_switch")
    if switch is not None and not read.trait(switch):
        return None
    if read.get("sliding_window") is None:
        return None
    return read.size("sliding_window")


def _quantization(config: Mapping[str, Any], where: str) -> str | None:
    """The storage format of published weights; only MXFP4 (which transformers expands for training) is accepted."""
    section = config.get("quantization_config")
    if section is None:
        return None
    method = section.get("quant_method") if isinstance(section, dict) else None
    if method == "mxfp4":
        return "mxfp4"
    raise RecipegenError(
        f"the weights are already quantised ({method if isinstance(method, str) else 'unknown method'});"
        " they cannot be trained as they are",
        where=where,
        fix="Name the original model; QLoRA quantises while loading.",
    )


def _section(config: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    value = config.get(key)
    if not isinstance(value, dict):
        raise RecipegenError(f"{key} is missing or not a mapping", where=where)
    return value


class _Reader:
    """Values of one config with the architecture's defaults behind them; every value is checked."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any], where: str) -> None:
        self.config = config
        self.defaults = defaults
        self.where = where

    def get(self, key: str) -> Any:
        """The value, else the architecture's default; JSON null counts as missing."""
        value = self.config.get(key)
        return self.defaults.get(key) if value is None else value

    def size(self, key: str, limit: str | None = None, default: int | None = None) -> int:
        """A whole number from 1 to the limit (the entry named `limit`, else `key`, of `limits`)."""
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise RecipegenError(f"{key} is missing", where=self.where)
        highest = architecture_facts()["limits"][limit or key]
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= highest:
            raise RecipegenError(
                f"{key} is {_short(value)}; it must be a whole number from 1 to {highest}", where=self.where
            )
        return value

    def number(self, key: str) -> float | None:
        """A number, or None where it is absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise RecipegenError(f"{key} is {_short(value)}; it must be a number", where=self.where)
        return float(value)

    def flag(self, key: str) -> bool:
        """true or false; absent is false."""
        value = self.get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise RecipegenError(f"{key} is {_short(value)}; it must be true or false", where=self.where)
        return value

    def trait(self, rule: bool | str) -> bool:
        """A trait of the architecture: fixed, or the value of the config key it names."""
        return rule if isinstance(rule, bool) else self.flag(rule)


def _short(value: object) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**18 else "a number of many digits"
    return text if len(text) <= 40 else text[:37] + "..."
