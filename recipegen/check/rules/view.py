"""What the files of a Subject say together: who trains, on how many processes, under which engine.

Everything here is what a file states, or a default that is written down with its source; what nobody states is None.
Values are looked for in the trainer's own file first, then in the launcher's, in DeepSpeed's and in scripts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from recipegen.check.subject import Subject
from recipegen.formats import deepspeed_read
from recipegen.formats.documents import Document
from recipegen.formats.reading import Reading, at
from recipegen.spec import Dtype, Gpu, Method, ModelSpec

_ORDER = ("axolotl", "arguments", "train_json", "accelerate", "deepspeed", "launch")
_TRAINERS = ("axolotl", "arguments", "train_json")
_ENGINES = {"FSDP": "fsdp", "DEEPSPEED": "deepspeed"}
_PIN = re.compile(r"\s*([A-Za-z0-9._-]+)\s*==\s*([0-9][0-9A-Za-z.+!-]*)")
_REQUIREMENTS = re.compile(r"(?:.*/)?requirements[^/]*\.txt\Z")
FOUR_BIT, EIGHT_BIT = 4, 8


class View:
    """A Subject, looked at. Properties are worked out once."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    # --- what is stated

    @cached_property
    def readings(self) -> tuple[Reading, ...]:
        """The trainer's own file, then the other files by kind; a DeepSpeed mapping inside a file as one of its own."""
        main, found = self.subject.main, list(self.subject.readings.values())
        found.sort(key=lambda r: (r.name != main, _ORDER.index(r.format) if r.format in _ORDER else len(_ORDER)))
        inline = self.raw("deepspeed")
        if isinstance(inline, Mapping) and main in self.subject.documents:
            found.append(deepspeed_read.interpret(self.subject.documents[main].inner("deepspeed")))
        return tuple(found)

    def of(self, *formats: str) -> tuple[Reading, ...]:
        """The readings of these formats."""
        return tuple(reading for reading in self.readings if reading.format in formats)

    def fact(self, name: str, *formats: str) -> Any:
        """A fact, of the first reading that has it; of the assembled files else (never when formats are named)."""
        for reading in self.of(*formats) if formats else self.readings:
            if name in reading.facts:
                return reading.facts[name]
        return None if formats else self.subject.assembled.facts.get(name)

    def value(self, path: str) -> Any:
        """The value of a Recipe field as a file states it, else as the trainer's default decides it; None: unknown."""
        for reading in self.readings:
            if path in reading.values:
                return reading.values[path]
        return self.default(path)

    def default(self, path: str) -> Any:
        """The value of a Recipe field in the assembled recipe."""
        recipe = self.subject.assembled.recipe
        return at(recipe, path) if recipe is not None else None

    def states(self, path: str) -> bool:
        """True when a file states this Recipe field."""
        return any(path in reading.values for reading in self.readings)

    def raw(self, key: str) -> Any:
        """A key of the trainer's own file as it is written, dotted; an argument of a script where there is no file."""
        document = self.subject.documents.get(self.subject.main)
        value: Any = document.values if document else None
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            return value
        for reading in self.subject.readings.values():
            if reading.format in ("launch", "arguments") and key in reading.passthrough:
                return reading.passthrough[key]
        return None

    def where(self, *names: str) -> str:
        """`file:line` of the first of these fields, facts or keys of the trainer's own file that has a place."""
        for name in names:
            for reading in self.readings:
                place = reading.provenance.get(name) or reading.fact_provenance.get(name)
                if place:
                    return place
        for name in names:
            for document in self._documents():
                path = tuple(name.split("."))
                if path in document.lines:
                    return document.where(path)
        for name in names:
            for reading in self.readings:
                if name in reading.facts or name in reading.values:
                    return reading.name
        return self.subject.main or next(iter(self.subject.readings), "")

    def _documents(self) -> tuple[Document, ...]:
        main, documents = self.subject.main, self.subject.documents
        return tuple(documents[name] for name in sorted(documents, key=lambda name: (name != main, name)))

    # --- who trains what

    @cached_property
    def trainer(self) -> str:
        """The format of the trainer's own file: axolotl, arguments or train_json; "" when there is none."""
        main = self.subject.readings.get(self.subject.main)
        if main is not None and main.format in _TRAINERS:
            return main.format
        return "axolotl" if self.fact("trainer") == "axolotl" else ""

    @property
    def model(self) -> ModelSpec | None:
        return self.subject.assembled.model

    @property
    def gpu(self) -> Gpu | None:
        return self.subject.cluster.gpu if self.subject.cluster else None

    @cached_property
    def has_adapter(self) -> bool | None:
        """None when no trainer's file is there to say."""
        method = self.value("method")
        if isinstance(method, Method):
            return method.is_adapter
        if self.fact("foreign_adapter") is not None:
            return True
        return False if self.trainer in ("axolotl", "arguments") else None

    @cached_property
    def bits(self) -> int | None:
        """4 or 8 for a base that bitsandbytes quantises while loading; None for any other."""
        stated = self.value("precision.parameters")
        if stated is Dtype.NF4 or self.raw("load_in_4bit") is True:
            return FOUR_BIT
        return EIGHT_BIT if stated is Dtype.INT8 or self.fact("load_in_8bit") or self.raw("load_in_8bit") else None

    @cached_property
    def computes_in_fp16(self) -> bool:
        """A file asks for fp16."""
        if self.trainer == "axolotl" and self.subject.main:
            return bool(self.fact("mixed_precision") == "fp16")
        stated = self.fact("fp16") is True or self.fact("fp16_enabled") is True
        return stated or self.fact("mixed_precision") == "fp16"

    @cached_property
    def is_preference(self) -> bool:
        """Reinforcement or preference learning, or a reward model."""
        return bool(self.fact("rl") or self.fact("reward_model") or self.fact("process_reward_model"))

    # --- engines

    @cached_property
    def engine(self) -> str:
        """fsdp, deepspeed or none. The trainer's own file decides; Accelerate's file where it leaves it open."""
        if self.trainer == "axolotl" and self.subject.main:
            stated = self.fact("engine", "axolotl")
            if stated != "none":
                return str(stated)
        elif self.trainer == "arguments":
            if self.of("arguments") and "fsdp_version" in self.of("arguments")[0].facts:
                return "fsdp"
            if self.raw("deepspeed"):
                return "deepspeed"
        strategy = self.fact("distributed_type")
        if strategy in _ENGINES:
            return _ENGINES[strategy]
        launched = self.fact("launcher", "launch") == "deepspeed" or self.fact("deepspeed_config_file", "launch")
        return "deepspeed" if launched or (self.of("deepspeed") and not self.subject.main) else "none"

    @cached_property
    def fsdp_version(self) -> int | None:
        """1 or 2 under FSDP."""
        if self.engine != "fsdp":
            return None
        found = self.value("fsdp.version") or self.fact("fsdp_version")
        return found if isinstance(found, int) else 1

    @cached_property
    def zero_stage(self) -> int | None:
        """ZeRO's stage under DeepSpeed, where a file states it."""
        if self.engine != "deepspeed":
            return None
        stage = self.fact("zero_stage")
        return stage if isinstance(stage, int) else None

    @property
    def is_zero3(self) -> bool:
        return self.zero_stage == 3

    def offload(self, what: str) -> str:
        """none, cpu or nvme of `optimizer` or `param`."""
        return str(self.value(f"deepspeed.offload_{what}") or "none") if self.engine == "deepspeed" else "none"

    # --- processes

    @cached_property
    def machines(self) -> int | None:
        return _count(self.fact("num_machines", "launch")) or _count(self.fact("num_machines", "accelerate"))

    @cached_property
    def processes(self) -> int | None:
        """Over all machines, as a launcher or its file states it. Plain python is one."""
        stated = _count(self.fact("num_processes", "launch"))
        if stated is None and self.is_plain_python:
            return 1
        return stated or _count(self.fact("num_processes", "accelerate"))

    @cached_property
    def is_plain_python(self) -> bool:
        """Started by `python` alone: not by a launcher, not by srun with a task for each GPU."""
        tasks = (self.fact("sbatch", "launch") or {}).get("ntasks-per-node", "1")
        return self.fact("launcher", "launch") == "python" and tasks in ("", "1")

    @cached_property
    def world(self) -> int | None:
        """Processes over all machines; as many as there are GPUs where nobody says."""
        if self.processes is not None:
            return self.processes
        return self.subject.cluster.world_size if self.subject.cluster else None

    @cached_property
    def per_machine(self) -> int | None:
        return self.processes // (self.machines or 1) if self.processes is not None else None

    @cached_property
    def visible(self) -> int | None:
        """GPUs that CUDA_VISIBLE_DEVICES or gpu_ids leaves to the processes of a machine; None when nothing limits."""
        devices = self.environment.get("CUDA_VISIBLE_DEVICES")
        if isinstance(devices, str) and "CUDA_VISIBLE_DEVICES" not in self.overridable:
            return len([item for item in devices.split(",") if item.strip()])
        chosen = self.fact("gpu_ids")
        if isinstance(chosen, str) and re.fullmatch(r"\d+(,\s*\d+)*", chosen.strip()):
            return len(chosen.split(","))
        return None

    @cached_property
    def environment(self) -> Mapping[str, str | None]:
        """Variables that the scripts export."""
        found: dict[str, str | None] = {}
        for reading in self.of("launch"):
            found.update(reading.facts.get("environment") or {})
        return found

    @cached_property
    def unknown(self) -> frozenset[str]:
        """Options and variables of the scripts whose values only a running shell knows."""
        return frozenset(name for reading in self.of("launch") for name in reading.facts.get("unknown") or ())

    @cached_property
    def overridable(self) -> frozenset[str]:
        """Variables of the caller that win over what the scripts say."""
        return frozenset(name for reading in self.of("launch") for name in reading.facts.get("overridable") or ())

    def passes(self, *options: str) -> bool:
        """True when a command line holds one of these options, whatever its value and wherever it stands: the reading
        takes what follows a word that only a running shell knows for arguments of the script."""
        words = self.fact("arguments", "launch") or ()
        return any(str(word).partition("=")[0].lstrip("-").replace("-", "_") in options for word in words)

    @property
    def has_script(self) -> bool:
        """A script that launches something is among the files."""
        return self.fact("launcher", "launch") is not None

    def text(self, *formats: str) -> str:
        """The text of the files of these formats, one after the other."""
        names = [reading.name for reading in self.of(*formats)]
        return "\n".join(self.subject.files.get(name, b"").decode("utf-8", "replace") for name in names)

    def line_of(self, variable: str) -> str:
        """`file:line` where a script sets this variable."""
        assigns = re.compile(rf"(?:^|[\s;\"']){re.escape(variable)}=")
        for reading in self.of("launch"):
            lines = self.subject.files.get(reading.name, b"").decode("utf-8", "replace").splitlines()
            for number, line in enumerate(lines, 1):
                if assigns.search(line) and not line.lstrip().startswith("#"):
                    return f"{reading.name}:{number}"
        return self.where("environment", "launcher")

    # --- versions

    @cached_property
    def pins(self) -> Mapping[str, tuple[str, str]]:
        """Package -> (version, place) of what a requirements file pins with `==`."""
        found: dict[str, tuple[str, str]] = {}
        for name in sorted(self.subject.files):
            if _REQUIREMENTS.match(name):
                for line, text in enumerate(self.subject.files[name].decode("utf-8", "replace").splitlines(), 1):
                    pin = _PIN.match(text)
                    if pin:
                        found[pin[1].lower().replace("_", "-")] = (pin[2], f"{name}:{line}")
        return found

    def version(self, package: str) -> tuple[int, ...]:
        """The pinned version, else that of the stack; () when neither names the package."""
        text = self.pins[package][0] if package in self.pins else self.subject.stack.pins.get(package, "")
        return version_number(text)


def version_number(text: str) -> tuple[int, ...]:
    """1.13.0+cu129 -> (1, 13, 0)."""
    match = re.match(r"\d{1,6}(?:\.\d{1,6})*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
