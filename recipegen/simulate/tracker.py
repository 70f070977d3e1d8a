"""Follows every storage that torch makes, as a dispatch mode, and writes it into a Ledger.

Under FakeTensorMode a storage has a size and no memory; it dies when the last tensor over it does, just as the real
one would be given back to the allocator. FSDP2 frees and re-makes gathered weights by resizing their storage, which no
operator shows, so `UntypedStorage.resize_` is followed too.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from recipegen.simulate.ledger import Entry, Ledger

_SHORT = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int64: "int64",
    torch.uint8: "uint8",
    torch.bool: "bool",
}
_FLASH_BLOCK = 128  # rows that flash attention's backward rounds a sequence up to
_FLASH_HEAD = 32  # and a head's width


def local(tensor: Any) -> Any:
    """The part of a tensor that this rank holds."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def describe(name: str, tensor: Any) -> str:
    """`mm (4096, 14336) bf16`."""
    return f"{name.split('.')[0]} {tuple(tensor.shape)} {_SHORT.get(tensor.dtype, str(tensor.dtype)[6:])}"


class Tracker(TorchDispatchMode):
    """Writes births and deaths of storages into `ledger`; new ones get `label` unless the operator tells more."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger
        self.label = "other"
        self.live: dict[int, tuple[Entry, Any]] = {}
        self.head_shape: tuple[int, int] = (0, 0)  # vocabulary x hidden size
        self.sequence_len = 0

    # --- storages

    def follow(self, storage: Any, label: str, what: str, fixed: bool = False) -> Entry:
        """The entry of a storage, new or known; a known one of another size ends and goes on as a new one."""
        key = storage._cdata
        known = self.live.get(key)
        if known is not None and known[1]() is storage:
            return self._resized(key, known, storage.nbytes())
        entry = self.ledger.open(storage.nbytes(), label, what, fixed)
        self._hold(key, storage, entry)
        return entry

    def _hold(self, key: int, storage: Any, entry: Entry) -> None:
        def gone(reference: Any) -> None:
            held = self.live.get(key)
            if held is not None and held[1] is reference:
                del self.live[key]
                self.ledger.close(held[0])

        self.live[key] = (entry, weakref.ref(storage, gone))

    def _resized(self, key: int, known: tuple[Entry, Any], size: int) -> Entry:
        entry, reference = known
        if entry.bytes == -(-size // self.ledger.rounding) * self.ledger.rounding:
            return entry
        self.ledger.close(entry)
        fresh = self.ledger.open(size, entry.label, entry.what, entry.fixed)
        self.live[key] = (fresh, reference)
        return fresh

    def mark(self, tensor: Any, label: str, what: str = "") -> None:
        """What a tensor is for, from someone who knows."""
        if tensor is None:
            return
        tensor = local(tensor)
        entry = self.follow(tensor.untyped_storage(), label, what or describe(label, tensor), fixed=True)
        entry.label, entry.fixed = label, True
        if what:
            entry.what = what

    def label_of(self, tensor: Any) -> str:
        """The label a tensor's storage has; empty when it was never seen."""
        known = self.live.get(local(tensor).untyped_storage()._cdata)
        return known[0].label if known else ""

    @contextmanager
    def resizes(self) -> Iterator[None]:
        """Follow `UntypedStorage.resize_` while this is open."""
        original = torch.UntypedStorage.resize_

        def resize(storage: Any, size: int) -> None:
            original(storage, size)
            known = self.live.get(storage._cdata)
            if known is not None and known[1]() is storage:
                self._resized(storage._cdata, known, storage.nbytes())
            elif size:
                self.follow(storage, "gathered_layers", "resized", fixed=True)

        torch.UntypedStorage.resize_ = resize
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = original

    # --- operators

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind is DTensor for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]
        if func is torch.ops.prim.device.default:
            return result
        name = func.__name__
        if func is torch.ops.c10d._allgather_base_.default:
            self.mark(args[0], "gathered_layers", describe("all_gather", args[0]))
        elif func is torch.ops.c10d._reduce_scatter_base_.default:
            self.mark(args[1], "reduce_scatter", describe("reduce_scatter", args[1]))
            self.mark(args[0], "reduce_scatter", describe("reduce_scatter", args[0]))
        for tensor in (result,) if isinstance(result, torch.Tensor) else tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and not isinstance(tensor, DTensor):
                storage = tensor.untyped_storage()
                known = self.live.get(storage._cdata)
                if known is None or known[1]() is not storage:
                    self.follow(storage, self._label(func, tensor, args), describe(name, tensor))
                elif known[0].bytes < storage.nbytes():
                    self._resized(storage._cdata, known, storage.nbytes())
        if "_flash_attention_backward" in name:
            self._flash_workspace(args)
        return result

    def _label(self, func: Any, tensor: Any, args: Any) -> str:
        shape = tuple(tensor.shape)
        if self.label in ("saved_activations", "logits_and_loss", "layer_working_set", "embedding_gradients"):
            if func is torch.ops.aten._to_copy.default and self.label_of(args[0]) in (
                "parameters",
                "adapters",
                "root_group",
            ):
                return "weight_casts"
            if len(shape) == 4 and shape[1] == 1 and shape[2] == shape[3] == self.sequence_len:
                return "attention_mask"
        if self.label != "saved_activations":
            if func is torch.ops.aten.embedding_dense_backward.default:
                return "embedding_gradients"
            if func is torch.ops.aten.mm.default and shape in (self.head_shape, self.head_shape[::-1]):
                return "head_gradient"
        return self.label

    def _flash_workspace(self, args: Any) -> None:
        """What flash attention's backward needs beside its results: fp32 dq, softmax sums, dk and dv per query head.

        Source: flash-attention 2 csrc/flash_attn/flash_api.cpp mha_bwd (dq_accum, softmax_d, dk_expanded, dv_expanded).
        """
        query, key = args[1], args[2]
        batch, heads, length, width = query.shape
        rows = -(-length // _FLASH_BLOCK) * _FLASH_BLOCK
        columns = -(-width // _FLASH_HEAD) * _FLASH_HEAD
        fp32 = 4
        size = batch * heads * rows * (columns + 1) * fp32
        if key.shape[1] != heads:
            size += 2 * batch * heads * key.shape[2] * width * query.element_size()
        self.ledger.close(self.ledger.open(size, "kernel_workspace", "flash attention backward"))
