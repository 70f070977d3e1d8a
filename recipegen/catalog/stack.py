"""A stack: one tested set of trainer versions, and what was found by running it.

All facts are data in stacks/NAME/: pins, key schemas of the trainers' files, the precision table, the optimizers, the
attention and kernel tables. This module only looks them up; a combination that nobody ran is an error, never a guess.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from recipegen.catalog.reading import load_yaml
from recipegen.spec import AttentionMemory, Dtype, Gpu, Method, ModelSpec, Precision, RecipegenError, Strategy

_STACKS = Path(__file__).parent / "stacks"
_NAME = re.compile(r"[a-z0-9][a-z0-9.+-]*")


@dataclass(frozen=True)
class OptimizerFacts:
    """One optimizer of a stack: what it keeps per trainable parameter and where it runs.

    `states` is `parameter` (the parameter's own dtype), `fp32` or `int8`; `temporaries` is `parameter` when a step
    makes one more copy of the trainable parameters (foreach), else `none`. `problems` maps a strategy to the reason
    against it.
    """

    name: str
    moments: int
    states: str
    temporaries: str
    compensation: bool
    resume_verified: bool
    package: str | None
    trainers: tuple[str, ...]  # empty: any
    problems: Mapping[Strategy, str]
    note: str
    mark: str
    source: str
    scale_bytes: float  # per parameter and moment, for int8 states

    def state_dtype(self, trainable: Dtype) -> Dtype:
        """The dtype of one moment for parameters of that dtype."""
        return trainable if self.states == "parameter" else Dtype(self.states)

    def state_bytes_per_parameter(self, states: Dtype) -> float:
        """Bytes of all moments per trainable parameter, block scales included; no compensation, no master copy."""
        scale = self.scale_bytes if states is Dtype.INT8 else 0.0
        return self.moments * (states.bytes + scale)

    def temporary_bytes_per_parameter(self, trainable: Dtype) -> float:
        """Bytes per trainable parameter that exist only during the optimizer step."""
        return trainable.bytes if self.temporaries == "parameter" else 0.0

    def largest_tensor_bytes_per_element(self, states: Dtype) -> float:
        """Bytes per element of the tensor in hand, where tensors are stepped one by one with a temporary each."""
        return states.bytes if self.temporaries == "tensor" else 0.0

    @property
    def paged(self) -> bool:
        """The moments are in memory that the GPU and the host share page by page."""
        return self.name.startswith("paged_")

    def problem_with(self, strategy: Strategy) -> str:
        """Why this optimizer does not run under `strategy`; empty when it does."""
        return self.problems.get(strategy, "")


@dataclass(frozen=True)
class AttentionChoice:
    """A row of the attention table, applied."""

    implementation: str
    memory: AttentionMemory
    packing_ok: bool
    reason: str
    source: str


@dataclass(frozen=True)
class Stack:
    """A tested set of versions. Tables are read on first use and kept."""

    name: str
    folder: Path

    # --- versions
    @cached_property
    def _pins(self) -> Mapping[str, Any]:
        return load_yaml(self.folder / "pins.yaml")

    @property
    def pins(self) -> dict[str, str]:
        """Exact versions by package name, as pip spells it."""
        return {name: str(version) for name, version in self._pins["packages"].items()}

    @property
    def python(self) -> tuple[str, ...]:
        """Python versions the stack installs on, oldest first."""
        return tuple(self._pins["python"])

    # --- what the trainers' files may say
    @cached_property
    def _axolotl_keys(self) -> Mapping[str, Any]:
        return _read_json(self.folder / "axolotl_keys.json")

    def axolotl_keys(self) -> Mapping[str, Any]:
        """The key schema of axolotl.yaml; scripts/gen_axolotl_schema.py says how to read it."""
        return self._axolotl_keys

    @cached_property
    def _deepspeed_keys(self) -> Mapping[str, Any]:
        return _read_json(self.folder / "deepspeed_keys.json")

    def deepspeed_keys(self) -> Mapping[str, Any]:
        """The key schema of the DeepSpeed JSON, in the same grammar."""
        return self._deepspeed_keys

    @cached_property
    def _accelerate_keys(self) -> Mapping[str, Any]:
        return load_yaml(self.folder / "accelerate_keys.yaml")

    def accelerate_keys(self) -> Mapping[str, Any]:
        """What a file for `accelerate launch --config_file` can set, and what it cannot."""
        return self._accelerate_keys

    @cached_property
    def _deepspeed_auto(self) -> frozenset[str]:
        return frozenset(load_yaml(self.folder / "deepspeed_auto.yaml")["filled"])

    def deepspeed_auto(self) -> frozenset[str]:
        """Dotted keys of the DeepSpeed JSON that Transformers fills in when they say "auto"."""
        return self._deepspeed_auto

    @cached_property
    def _other_names(self) -> Mapping[str, Any]:
        return load_yaml(self.folder / "other_names.yaml")

    def other_names(self, trainer: str) -> Mapping[str, str]:
        """Words of other trainers for a decision -> this trainer's key (`axolotl`, `accelerate`, `deepspeed`)."""
        found: Mapping[str, str] = self._other_names[trainer]
        return found

    @cached_property
    def _removed_keys(self) -> Mapping[str, Any]:
        return load_yaml(self.folder / "removed_keys.yaml")

    def removed_keys(self, trainer: str) -> Mapping[str, Mapping[str, str]]:
        """Keys that the trainer knows and refuses -> when, and what to do instead."""
        found: Mapping[str, Mapping[str, str]] = self._removed_keys[trainer]
        return found

    # --- what the trainers take where a file is silent
    @cached_property
    def _trainer_defaults(self) -> Mapping[str, Any]:
        return load_yaml(self.folder / "trainer_defaults.yaml")

    def trainer_defaults(self, section: str) -> Mapping[str, Any]:
        """Recipe field path -> the value a trainer takes where its file is silent; None: it has no default.

        `section` is a format of a trainer's file (axolotl, arguments, llamafactory, train_json), or accelerate,
        deepspeed, launch, and optimizers (by name, the classes with numbers of their own).
        """
        table = self._trainer_defaults[section]
        below = self.trainer_defaults(table["like"]) if "like" in table else {}
        return {**below, **table["fields"]}

    def trainer_rules(self, section: str) -> Mapping[str, Any]:
        """The numbers and names of defaults that depend on other fields."""
        table = self._trainer_defaults[section]
        below = self.trainer_rules(table["like"]) if "like" in table else {}
        return {**below, **table.get("rules", {})}

    # --- optimizers
    @cached_property
    def _optimizers(self) -> Mapping[str, Any]:
        return load_yaml(self.folder / "optimizers.yaml")

    @cached_property
    def _optimizer_facts(self) -> dict[str, OptimizerFacts]:
        return {}

    def optimizer_names(self) -> tuple[str, ...]:
        """Every optimizer whose facts are known, in the trainers' spelling."""
        return tuple(self._optimizers["optimizers"])

    def optimizer(self, name: str) -> OptimizerFacts:
        """The facts of an optimizer. Raises RecipegenError for one that was never looked at."""
        known = self._optimizer_facts
        if name not in known:
            rows = self._optimizers["optimizers"]
            if name not in rows:
                raise RecipegenError(
                    f"nothing is known about the memory of optimizer {name!r} on {self.name}",
                    fix=f"Known: {', '.join(rows)}.",
                )
            known[name] = _optimizer_facts(name, rows[name], self._optimizers)
        return known[name]

    def optimizers_for(self, trainer: str, strategy: Strategy, method: Method, load_dtype: Dtype) -> tuple[str, ...]:
        """The optimizers worth examining for a cell, best first. `load_dtype` fp32 needs no compensation."""
        for row in self._optimizers["recommended"]:
            groups = (self._optimizers["groups"][group] for group in row["groups"])
            if row["trainer"] == trainer and row["method"] == method.value and any(strategy.value in g for g in groups):
                names: list[str] = row["optimizers"]
                if load_dtype is Dtype.FP32 and method is Method.FULL:
                    names = [name for name in names if not self.optimizer(name).compensation]
                return tuple(names)
        raise RecipegenError(
            f"no optimizer was tested for {method.value} under {strategy.label} with {trainer} on {self.name}"
        )

    # --- precision
    @cached_property
    def _precision(self) -> Mapping[str, Any]:
        return load_yaml(self.folder / "precision.yaml")

    def load_dtype(self, trainer: str, strategy: Strategy, method: Method) -> Dtype:
        """What is loaded when nothing else is asked for."""
        table = self._precision["load_dtypes"]
        row = table.get(f"{trainer}_deepspeed") if strategy.is_deepspeed else None
        row = row or table.get(trainer)
        if row is None:
            raise RecipegenError(f"unknown trainer {trainer!r}", fix="Use axolotl or accelerate.")
        return Dtype(row[method.value])

    def precision(
        self,
        trainer: str,
        strategy: Strategy,
        method: Method,
        optimizer: str,
        load_dtype: Dtype,
        attention: str = "sdpa",
    ) -> Precision:
        """What the run keeps in which dtype, after the first optimizer step.

        `attention` matters for a full fine-tune with Axolotl on one GPU or DDP: kernels other than sdpa and eager get
        their embeddings and norms cast to bf16. Raises RecipegenError for a combination that was not run.
        """
        facts = self.optimizer(optimizer)
        row = self._precision_row(trainer, strategy, method, load_dtype, attention)
        trainable, master = Dtype(row["trainable"]), Dtype(row["master"]) if row["master"] else None
        compensated = facts.compensation and trainable is Dtype.BF16 and master is None
        return Precision(
            parameters=Dtype(row["parameters"]),
            trainable=trainable,
            gradients=Dtype(row["gradients"]),
            reduction=Dtype(row["reduction"]),
            states=facts.state_dtype(master or trainable),
            compute=Dtype.BF16,
            fp32_modules=tuple(row["fp32_modules"]),
            master=master,
            compensation=trainable if compensated else None,
        )

    def precision_test(
        self, trainer: str, strategy: Strategy, method: Method, load_dtype: Dtype, attention: str = "sdpa"
    ) -> str:
        """The test that proves the row `precision` reads."""
        return str(self._precision_row(trainer, strategy, method, load_dtype, attention)["test"])

    def _precision_row(
        self, trainer: str, strategy: Strategy, method: Method, load_dtype: Dtype, attention: str
    ) -> Mapping[str, Any]:
        for row in self._precision["rows"]:
            if (
                row["trainer"] == trainer
                and strategy.value in row["strategies"]
                and row["method"] == method.value
                and row["load"] == load_dtype.value
                and ("attention" not in row or attention in row["attention"])
            ):
                found: Mapping[str, Any] = row
                return found
        raise RecipegenError(
            f"{method.value} under {strategy.label} with {trainer}, loaded in {load_dtype.value} and with {attention},"
            f" was not run on {self.name}: its dtypes are not known"
        )

    # --- attention and kernels
    @cached_property
    def _attention(self) -> Mapping[str, Any]:
        return load_yaml(self.folder / "attention.yaml")

    @cached_property
    def _kernels(self) -> Mapping[str, Any]:
        return load_yaml(self.folder / "kernels.yaml")

    def attention(self, gpu: Gpu, model: ModelSpec, packing: bool) -> tuple[str, AttentionMemory, bool, str]:
        """Implementation (trainer's spelling), what it keeps for backward, whether rows may be packed, and why."""
        c = self.attention_choice(gpu, model, packing)
        return c.implementation, c.memory, c.packing_ok, c.reason

    def attention_choice(self, gpu: Gpu, model: ModelSpec, packing: bool) -> AttentionChoice:
        """The first row of the attention table that matches."""
        row = next(row for row in self._attention["rules"] if _matches(row, gpu, model, packing))
        memory = AttentionMemory(row["memory"])
        return AttentionChoice(row["implementation"], memory, row["packing_ok"], row["reason"], row["source"])

    def attention_memory(
        self, implementation: str, gpu: Gpu, model: ModelSpec, packing: bool = True
    ) -> AttentionMemory:
        """What a user's own choice of implementation keeps for backward. Hub kernels count as flash."""
        memory = self._attention["implementations"].get(implementation, "flash" if "/" in implementation else None)
        if memory is None:
            known = ", ".join(self._attention["implementations"])
            raise RecipegenError(
                f"nothing is known about attention {implementation!r} on {self.name}", fix=f"Known: {known}."
            )
        if memory != "by rule":
            return AttentionMemory(memory)
        choice = self.attention_choice(gpu, model, packing)
        return choice.memory if choice.implementation == implementation else AttentionMemory.MASKED

    def supports_fused_linear(self, model: ModelSpec) -> bool:
        """True when the pinned Liger has a fused linear loss for this architecture."""
        return model.model_type in self._kernels["fused_linear_loss"]["model_types"]

    def supports_lora_kernels(self, model: ModelSpec) -> bool:
        """True when Axolotl's fused LoRA kernels know this architecture; otherwise they stop the run."""
        return model.model_type in self._kernels["lora_kernels"]["model_types"]


def stack_names() -> tuple[str, ...]:
    """Every stack of the catalogue."""
    return tuple(sorted(folder.name for folder in _STACKS.iterdir() if (folder / "pins.yaml").is_file()))


@cache
def load_stack(name: str = "axolotl-0.19.0") -> Stack:
    """A stack by its name. Raises RecipegenError when there is none of that name."""
    folder = _STACKS / name if _NAME.fullmatch(name) else None
    if folder is None or not (folder / "pins.yaml").is_file():
        raise RecipegenError(f"unknown stack {name!r}", fix=f"Known: {', '.join(stack_names())}.")
    return Stack(name, folder)


def _read_json(path: Path) -> Mapping[str, Any]:
    with path.open("rb") as file:
        value: Mapping[str, Any] = json.load(file)
    return value


def _optimizer_facts(name: str, row: Mapping[str, Any], table: Mapping[str, Any]) -> OptimizerFacts:
    scale = table["scale_bytes_per_block"]
    problems = row.get("problems", {})
    per_strategy: dict[Strategy, str] = {}
    for strategy in Strategy:
        groups = [group for group, members in table["groups"].items() if strategy.value in members]
        reasons = [problems[key] for key in ("all", *groups, strategy.value) if key in problems]
        if reasons:
            per_strategy[strategy] = reasons[0]
    return OptimizerFacts(
        name=name,
        moments=row["moments"],
        states=row["states"],
        temporaries=row["temporaries"],
        compensation=row.get("compensation", False),
        resume_verified=row["resume"],
        package=row.get("package"),
        trainers=tuple(row.get("trainers", ())),
        problems=per_strategy,
        note=row["note"],
        mark=row["mark"],
        source=row["source"],
        scale_bytes=scale["int8"] / scale["block"],
    )


def _matches(row: Mapping[str, Any], gpu: Gpu, model: ModelSpec, packing: bool) -> bool:
    capability = gpu.compute_capability
    number = int(capability.removeprefix("sm_")) if capability.removeprefix("sm_").isdigit() else None
    below = row.get("compute_capability_below")
    return (
        model.model_type in row.get("model_types", (model.model_type,))
        and row.get("compute_capability", capability) == capability
        and (below is None or (number is not None and number < below))
        and row.get("flash_attention", gpu.flash_attention) == gpu.flash_attention
        and row.get("sliding_window", model.sliding_window is not None) == (model.sliding_window is not None)
        and model.head_dim > row.get("head_dim_above", 0)
        and row.get("packing", packing) == packing
    )
