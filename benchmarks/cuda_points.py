"""Estimate and simulation against this machine's CUDA card: a few real steps of eight recipes with random weights.

    python -m benchmarks.cuda_points [--out FILE.csv] [--only NAME ...] [--minutes 10] [--dry-run GIB]

Each recipe is the largest of its kind that the estimate puts on the card, runs in a process of its own, and gives peak
allocated, reserved and nvidia-smi. Nothing is downloaded. FILE.csv gets the measurements in the columns that
`python -m benchmarks.accuracy` reads. Without a card: one line, exit 2. --dry-run shows what a card with GIB free would
run, and needs none.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.cuda_recipes import NOT_STEPS, POINTS, Chosen, Point, choose
from benchmarks.cuda_step import STEPS
from benchmarks.rows import COLUMNS, Row
from recipegen.catalog import load_stack
from recipegen.spec import LossKernel, Method, PrecisionLabel, RecipegenError, Strategy
from recipegen.spec.units import GIB

_ROOT = Path(__file__).resolve().parents[1]
_ALWAYS = ("torch", "transformers", "accelerate")
_MINUTES = 10.0
# as the generated launchers export it (recipegen/formats/launcher.py); the caller's environment wins
_ENVIRONMENT = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
_PROBE_S = 120.0  # an import of torch on a cold disk
_FUSED_CE = {LossKernel.STOCK: "none", LossKernel.CHUNKED_UPCAST: "chunked", LossKernel.FUSED_LINEAR: "liger"}
_PRECISION = {
    PrecisionLabel.PURE_BF16: "pure bf16",
    PrecisionLabel.MIXED: "bf16 weights with fp32 embeddings, head and norms, autocast",
}


@dataclass(frozen=True)
class Outcome:
    """One point after its turn: what was chosen and measured, or why not. Bytes; None where nothing was said."""

    name: str
    skipped: str = ""
    chosen: Chosen | None = None
    result: dict[str, Any] | None = None
    simulated_bytes: int | None = None
    not_simulated: str = ""

    @property
    def ran(self) -> bool:
        return self.result is not None and "error" not in self.result


def missing(point: Point) -> str:
    """Packages that a point needs and that are not here, in words; empty when it can run."""
    lacking = [name for name in (*_ALWAYS, *point.needs) if find_spec(name) is None]
    return f"not installed: {', '.join(lacking)}" if lacking else ""


def measure(
    points: Iterable[Point],
    card: dict[str, Any],
    *,
    seconds: float,
    work: Callable[[Chosen, float], dict[str, Any]],
    say: Callable[[str], None],
) -> list[Outcome]:
    """Every point in turn. The time that is left is shared by the points that are left; none starts after it."""
    todo = list(points)
    deadline = time.monotonic() + seconds
    outcomes = []
    for index, point in enumerate(todo):
        left = deadline - time.monotonic()
        reason = missing(point) or ("the time is up" if left <= 0 else "")
        chosen = None if reason else choose(point, card["free_bytes"], triton=card["triton"])
        if chosen is None:
            outcomes.append(Outcome(point.name, skipped=reason or "not even its smallest shape fits this card"))
            continue
        say(f"{point.name}: {chosen.label} ...")
        begun = time.monotonic()
        result = work(chosen, left / (len(todo) - index + 1))  # one share is for the simulations
        simulated, why_not = _simulated(chosen, card["triton"]) if time.monotonic() < deadline else (None, "time is up")
        say(f"{point.name}: {time.monotonic() - begun:.0f} s")
        outcomes.append(Outcome(point.name, "", chosen, result, simulated, why_not))
    return outcomes


def run_step(
    chosen: Chosen, seconds: float, *, device: str = "cuda", steps: int = STEPS, uuid: str | None = None
) -> dict[str, Any]:
    """The worker's measurements, or `error` in words."""
    work = {"spec": chosen.model, "recipe": chosen.recipe, "device_type": device, "steps": steps, "uuid": uuid}
    command = [sys.executable, "-m", "benchmarks.cuda_step"]
    options: dict[str, Any] = {"env": _ENVIRONMENT | os.environ, "cwd": _ROOT, "capture_output": True, "check": False}
    try:
        done = subprocess.run(command, input=pickle.dumps(work), timeout=seconds, **options)
    except subprocess.TimeoutExpired:
        return {"error": f"not done within its {seconds:.0f} s", "oom": False}
    return _last_json(done.stdout) or {"error": _last_line(done.stderr) or f"exit {done.returncode}", "oom": False}


def probe() -> dict[str, Any]:
    """benchmarks.cuda_step's view of the card, from a process of its own: this one keeps no memory on it."""
    command = [sys.executable, "-m", "benchmarks.cuda_step", "--probe"]
    try:
        done = subprocess.run(command, capture_output=True, cwd=_ROOT, timeout=_PROBE_S, check=False)
    except subprocess.TimeoutExpired:
        return {"reason": "PyTorch does not answer"}
    return _last_json(done.stdout) or {"reason": _last_line(done.stderr) or "PyTorch cannot be asked"}


def _last_json(output: bytes) -> dict[str, Any] | None:
    for line in reversed(output.decode(errors="replace").splitlines()):
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    return None


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").split("\n")
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def _simulated(chosen: Chosen, triton: bool) -> tuple[int | None, str]:
    """The simulated peak of a step, or why there is none."""
    try:
        from recipegen.simulate import Options, simulate

        found = simulate(chosen.model, chosen.recipe, load_stack(), options=Options(compiled_loss=triton))
    except (RecipegenError, ImportError) as error:
        return None, str(error).splitlines()[0]
    except Exception as error:  # a table with a gap is worth more than none
        return None, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return max(phase.bytes for phase in found.phases if phase.name not in NOT_STEPS), ""


# --- what is printed


def _gib(value: int | None) -> str:
    return "-" if value is None else f"{value / GIB:.2f}"


def _against(value: int | None, measured: int | None) -> str:
    if value is None or measured is None:
        return _gib(value)
    return f"{value / GIB:.2f} ({value / measured - 1:+.1%})"


def table(outcomes: Iterable[Outcome]) -> list[str]:
    """Lines for people, GiB; an error in brackets is that of the number against what was measured."""
    measured = ("reserved", "estimate (band)", "nvidia-smi", "estimate")
    head = ("point", "recipe", "allocated", "estimate", "simulated", *measured)
    widths = (17, 36, 9, 16, 16, 8, 22, 10, 0)
    lines = ["  ".join(f"{h:{w}}" for h, w in zip(head, widths, strict=True)).rstrip()]
    for one in outcomes:
        if one.chosen is None or not one.ran or one.result is None:
            why = one.skipped or ((one.result or {}).get("error") or "nothing came back")
            where = f"{one.chosen.label}: " if one.chosen else ""
            lines.append(f"{one.name:17}  {'skipped' if one.skipped else 'failed'}: {where}{why}")
            continue
        memory, measured = one.chosen.memory, one.result["allocated_bytes"]
        band = f"{_gib(memory.reserved_low_bytes)} to {_gib(memory.reserved_high_bytes)}"
        cells = (
            one.name,
            one.chosen.label,
            _gib(measured),
            _against(one.chosen.estimated_bytes, measured),
            _against(one.simulated_bytes, measured),
            _gib(one.result["reserved_bytes"]),
            f"{_gib(memory.peak_reserved_bytes)} ({band})",
            _gib(one.result["nvidia_smi_bytes"]),
            _against(memory.needed_bytes, one.result["nvidia_smi_bytes"]),
        )
        lines.append("  ".join(f"{c:{w}}" for c, w in zip(cells, widths, strict=True)).rstrip())
    lines += [f"{o.name}: not simulated: {o.not_simulated}" for o in outcomes if o.not_simulated]
    lines += [f"{o.name}: the loss was not finite" for o in outcomes if o.ran and o.result and not o.result["finite"]]
    return lines


# --- what is written


def row_of(outcome: Outcome, card: dict[str, Any]) -> Row | None:
    """One measurement (an out-of-memory is one) in the columns of the measurement files; None where there is none."""
    chosen, result = outcome.chosen, outcome.result
    if chosen is None or result is None or ("error" in result and not result["oom"]):
        return None
    recipe, model = chosen.recipe, chosen.model
    ran = "error" not in result
    tokens = recipe.tokens_per_micro_batch * recipe.gradient_accumulation
    step_s = result["step_s"] if ran else None
    values: dict[str, Any] = {
        "id": f"cuda-{outcome.name}-{_slug(card['name'])}",
        "source": "recipegen benchmarks.cuda_points",
        "url": "n/a",
        "model": model.id,
        "params_b": f"{_parameters(chosen) / 1e9:.3f}",
        "method": recipe.method.value,
        "lora_r": recipe.adapter.r if recipe.adapter else "n/a",
        "lora_targets": _targets(recipe.adapter.target_modules) if recipe.adapter else "n/a",
        "framework": "recipegen cuda_points (HF transformers+PEFT)",
        "strategy": {Strategy.SINGLE: "single", Strategy.FSDP2_FULL: "fsdp2"}[recipe.parallelism.strategy],
        "gpu": card["name"],
        "gpu_mem_gb": math.ceil(card["total_bytes"] / GIB),
        "n_gpus": 1,
        "n_nodes": 1,
        "interconnect": "n/a",
        "seq_len": recipe.sequence_len,
        "micro_batch": recipe.micro_batch_size,
        "grad_accum": recipe.gradient_accumulation,
        "packing": "no",
        "act_checkpointing": "yes" if recipe.activation_checkpointing else "no",
        "precision": _precision(chosen),
        "optimizer": recipe.optimizer.name,
        "fused_ce": _FUSED_CE[recipe.loss_kernel],
        "attention": recipe.attention,
        "peak_mem_gb": _measured(result["allocated_bytes"]) if ran else "",
        "mem_metric": "allocated" if ran else "n/a",
        "tokens_per_s_per_gpu": f"{tokens / step_s:.1f}" if step_s else "n/a",
        "step_time_s": f"{step_s:.4f}" if step_s else "n/a",
        "outcome": "ran" if ran else "oom",
        "notes": _notes(chosen, result),
    }
    return Row(**{column: str(values[column]) for column in COLUMNS})


def _parameters(chosen: Chosen) -> int:
    from recipegen.estimate.parameters import total

    return total(chosen.model)


def _precision(chosen: Chosen) -> str:
    if chosen.recipe.method is Method.FULL:
        return _PRECISION[chosen.recipe.precision.label]
    return "nf4 double-quant + bf16 compute" if chosen.recipe.method is Method.QLORA else "bf16 base, fp32 adapters"


def _targets(modules: tuple[str, ...]) -> str:
    return ",".join(name.removesuffix("_proj") for name in modules)


def _slug(name: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def _measured(value: int | None) -> str:
    return "" if value is None else f"{value / GIB:.4f}"


def _notes(chosen: Chosen, result: dict[str, Any]) -> str:
    parts = ["trust:A unit:GiB"]
    if chosen.model.num_hidden_layers != chosen.layers_of:
        parts.append(f"layers:{chosen.model.num_hidden_layers} of {chosen.layers_of}")
    for name, key in (("peak_reserved", "reserved_bytes"), ("nvidia_smi", "nvidia_smi_bytes")):
        if result.get(key) is not None:
            parts.append(f"{name}={_measured(result[key])} GiB")
    if result.get("alloc_conf"):
        parts.append(f"PYTORCH_ALLOC_CONF={result['alloc_conf']}")
    parts.append("random weights; full rows without padding; peaks of steps, loading not counted")
    parts.append(" ".join(f"{name} {version}" for name, version in result["versions"].items()))
    return "; ".join(parts)


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """A file that benchmarks.rows.read_rows reads."""
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(asdict(row) for row in rows)
    except OSError as error:
        raise RecipegenError(f"cannot be written: {error.strerror}", where=str(path)) from None


# --- the command


def dry_run(free_gib: float) -> list[str]:
    """What a card with that much free memory would run."""
    lines = []
    for point in POINTS:
        chosen = choose(point, round(free_gib * GIB))
        if chosen is None:
            lines.append(f"{point.name:17}  nothing small enough")
            continue
        memory = chosen.memory
        lines.append(
            f"{point.name:17}  {chosen.label:36}  estimate {_gib(chosen.estimated_bytes)} GiB allocated, "
            f"{_gib(memory.reserved_low_bytes)} to {_gib(memory.reserved_high_bytes)} reserved"
        )
    return lines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cuda_points",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, metavar="FILE.csv", help="write the measurements there")
    parser.add_argument("--only", action="append", choices=[p.name for p in POINTS], help="these points alone")
    parser.add_argument("--minutes", type=float, default=_MINUTES, help="for everything together (default: 10)")
    parser.add_argument("--dry-run", type=float, metavar="GIB", help="show what a card with GIB free would run")
    options = parser.parse_args(arguments)
    if options.dry_run is not None:
        if not 0 < options.dry_run < 1e6:
            parser.error(f"--dry-run {options.dry_run:g} is no number of GiB that a card can have free")
        print("\n".join(dry_run(options.dry_run)))
        return 0
    begun = time.monotonic()
    card = probe()
    if "reason" in card:
        print(f"no CUDA card, so nothing is measured: {card['reason']}", file=sys.stderr)
        return 2
    print(f"{card['name']}: {card['free_bytes'] / GIB:.1f} of {card['total_bytes'] / GIB:.1f} GiB are free", flush=True)
    if options.out is not None and not options.out.absolute().parent.is_dir():
        print(f"{options.out}: there is no such folder", file=sys.stderr)
        return 2
    points = [p for p in POINTS if options.only is None or p.name in options.only]
    left = 60 * options.minutes - (time.monotonic() - begun)
    outcomes = measure(
        points,
        card,
        seconds=left,
        work=partial(run_step, uuid=card["uuid"]),
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    print("\n".join(table(outcomes)))
    rows = [row for row in (row_of(o, card) for o in outcomes) if row is not None]
    if options.out is not None:
        try:
            write_rows(options.out, rows)
        except RecipegenError as error:
            print(error, file=sys.stderr)
            return 2
        print(f"{len(rows)} rows are in {options.out}")
    return 0 if any(o.ran for o in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
