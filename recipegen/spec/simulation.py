"""What a simulated training step holds on one GPU: the exact counterpart of `GpuMemory`'s allocated bytes."""

from __future__ import annotations

from dataclasses import dataclass

from recipegen.spec.estimate import Phase, Term


@dataclass(frozen=True)
class Simulation:
    """Peak allocated bytes of rank 0 over one optimizer step (and one evaluation batch, if the recipe evaluates).

    Phases and terms carry the estimate's names where they mean the same; a term's `basis` names the largest tensors
    in it. No allocator overhead, CUDA context or communication buffers: this is what torch.cuda.max_memory_allocated
    would say. `versions` are the libraries that ran; `notes` say what was emulated or left out.
    """

    peak_bytes: int
    phase: str
    phases: tuple[Phase, ...]
    total_parameters: int
    trainable_parameters: int
    seconds: float
    versions: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms of the peak phase."""
        return next(p.terms for p in self.phases if p.name == self.phase)
