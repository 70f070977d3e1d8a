"""Page-locked host memory: PyTorch's allocator rounds every block up to a power of two and never gives one back.

Source: torch 2.13 ATen/core/CachingHostAllocator.h (PowerOf2Ceil, no threshold unless PYTORCH_ALLOC_CONF sets one);
https://github.com/pytorch/pytorch/issues/150517 measured it.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from recipegen.estimate import parameters

if TYPE_CHECKING:
    from recipegen.spec import ModelSpec


def block(size: float) -> float:
    """Bytes of the pinned block that holds `size` bytes."""
    return float(1 << (math.ceil(size) - 1).bit_length()) if size >= 1 else 0.0


@lru_cache(maxsize=64)
def tensors(model: ModelSpec) -> tuple[tuple[int, int, bool], ...]:
    """The large tensors of the text model: elements, how many of them, and whether 4-bit loading packs them."""
    dense = parameters.dense_layers(model)
    # of an MoE model these are the attention's; its few dense MLP layers do not change the ratio below
    linear = [i * o for i, o, _ in parameters.linear_modules(model).values()]
    found = [(size, model.num_hidden_layers, True) for size in linear]
    found += [
        (math.prod(shape), model.num_hidden_layers - dense, False)
        for shape in parameters.expert_tensors(model).values()
        if len(shape) > 1
    ]
    found += [(size, 1, False) for size in (parameters.embedding(model), parameters.head(model)) if size]
    return tuple(tensor for tensor in found if tensor[1])


def rounding(model: ModelSpec, width: float, ranks: int, packed: float | None = None) -> float:
    """What pinning a model tensor by tensor takes, over its bytes: each of `ranks` pins its slice of every tensor.

    `width` is bytes per element, `packed` those of a 4-bit weight.
    """
    exact = held = 0.0
    for elements, count, packs in tensors(model):
        size = elements * (packed if packed is not None and packs else width) / ranks
        exact += count * size
        held += count * block(size)
    return held / exact
