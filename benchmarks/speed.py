"""How fast recipegen is: plans per minute in one process on one core, a cold `recipegen plan`, the estimate's import.

    python -m benchmarks.speed [--format text|json] [--seconds 5]

Plans are a fixed mixture of models, machines, methods and trainers, each from its request to its decision, with the
catalogue's files already loaded by a first pass. Everything is measured in one run beside an interpreter that does
nothing, because seconds differ between machines and ratios hardly do.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from recipegen.cli.solve import solve
from recipegen.spec import Request

MODELS = (
    "Llama-3.2-1B", "Llama-3.1-8B-Instruct", "Qwen3-14B", "gemma-3-12b-it", "Qwen3-30B-A3B", "Llama-3.3-70B-Instruct",
)  # fmt: skip
MACHINES = (
    ("1x-rtx-4090", 1, "none"),
    ("kentino-8x-rtx-5090", 1, "none"),
    ("kentino-4x-rtx-pro-6000", 2, "roce-100"),
    ("8x-h100", 1, "none"),
)
METHODS = (None, "full", "lora", "qlora")
TRAINERS = ("axolotl", "accelerate")
# What was promised: plans per minute; milliseconds; seconds and MB of a cold plan.
PLANS_PER_MINUTE = 2000
IMPORT_MS = 50
COLD_CPU_S, COLD_MB = 0.5, 80
ROOM = "recipegen.estimate"
COLD_PLAN = (
    "-m", "recipegen.cli.main", "plan", "--model", "Llama-3.3-70B-Instruct", "--method", "full", "--hardware",
    "kentino-8x-rtx-pro-6000", "--nodes", "2", "--network", "roce-100", "--global-batch-size", "128",
)  # fmt: skip
REPEATS = 7
_ROOT = Path(__file__).resolve().parents[1]


def requests() -> Iterator[Request]:
    """The mixture: every model on every machine by every method, the trainers in turn. No data files."""
    for i, (model, (hardware, nodes, network), method) in enumerate(product(MODELS, MACHINES, METHODS)):
        trainer = TRAINERS[(i + i // len(METHODS)) % len(TRAINERS)]
        yield Request(model, hardware, nodes=nodes, network=network, method=method, trainer=trainer)


@dataclass(frozen=True)
class Plans:
    """Speed of planning in one process. CPU seconds, so that a busy neighbour counts less."""

    different_requests: int
    plans: int
    plans_per_minute: float
    mean_ms: float
    median_ms: float
    slowest_ms: float
    slowest: str
    pinned_to_core: int | None


@dataclass(frozen=True)
class Start:
    """Child processes, the best of REPEATS: seconds of CPU (user and system), peak resident MB, wall milliseconds."""

    empty_cpu_s: float
    empty_mb: float
    plan_cpu_s: float
    plan_mb: float
    import_ms: float
    import_to_empty: float  # wall time of the import over the CPU time of an empty interpreter

    @property
    def cpu_ratio(self) -> float:
        return self.plan_cpu_s / self.empty_cpu_s

    @property
    def memory_ratio(self) -> float:
        return self.plan_mb / self.empty_mb


def pin() -> int | None:
    """Bind this process to one core, where the system can; the core, else None."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return core


def time_plans(mixture: list[Request], seconds: float, *, core: int | None = None) -> Plans:
    """Plan the whole mixture, again and again for about `seconds`, after one pass that loads the files."""
    for request in mixture:
        solve(request)
    best: dict[int, float] = {}
    plans, begun = 0, time.process_time()
    while not plans or time.process_time() - begun < seconds:
        for index, request in enumerate(mixture):
            start = time.process_time()
            solve(request)
            taken = time.process_time() - start
            best[index] = min(taken, best.get(index, taken))
        plans += len(mixture)
    total = time.process_time() - begun
    slowest = max(best, key=lambda index: best[index])
    r = mixture[slowest]
    return Plans(
        different_requests=len(mixture),
        plans=plans,
        plans_per_minute=60 * plans / total,
        mean_ms=1e3 * total / plans,
        median_ms=1e3 * statistics.median(best.values()),
        slowest_ms=1e3 * best[slowest],
        slowest=f"{r.model} on {r.hardware}, {r.method or 'method open'}, {r.trainer}",
        pinned_to_core=core,
    )


def child(args: tuple[str, ...], environment: Mapping[str, str]) -> tuple[float, float]:
    """CPU seconds (user + system) and peak resident MB of `python ARGS`, each the best of REPEATS."""
    code = (
        "import resource, subprocess, sys; "
        "p = subprocess.run([sys.executable, *sys.argv[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); "
        "assert p.returncode in (0, 1), p.returncode; "  # 1: a plan that does not fit
        "u = resource.getrusage(resource.RUSAGE_CHILDREN); print(u.ru_utime + u.ru_stime, u.ru_maxrss)"
    )
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes on macOS, KiB on Linux
    cpu_s, resident = [], []
    for _ in range(REPEATS):
        said = _python(("-c", code, *args), environment).split()
        cpu_s.append(float(said[0]))
        resident.append(float(said[1]) * unit / 1e6)
    return min(cpu_s), min(resident)


def import_ms(module: str, environment: Mapping[str, str]) -> float:
    """Wall milliseconds of `import MODULE` in an interpreter that has just started, the best of REPEATS."""
    code = f"import time; t = time.perf_counter(); import {module}; print(1e3 * (time.perf_counter() - t))"
    return min(float(_python(("-c", code), environment)) for _ in range(REPEATS))


def _python(args: tuple[str, ...], environment: Mapping[str, str]) -> str:
    command = [sys.executable, *args]
    return subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=True).stdout


def time_start() -> Start:
    """The cold start, with byte code compiled as an installed package has it (in a folder of its own here)."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        path = os.pathsep.join(filter(None, (str(_ROOT), environment.get("PYTHONPATH"))))
        environment |= {"PYTHONPYCACHEPREFIX": cache, "PYTHONPATH": path}
        for first in (COLD_PLAN, ("-c", f"import {ROOM}")):  # compiles
            subprocess.run([sys.executable, *first], env=environment, capture_output=True, check=False)
        empty_s, empty_mb = child(("-c", "pass"), environment)
        plan_s, plan_mb = child(COLD_PLAN, environment)
        imported = import_ms(ROOM, environment)
    return Start(empty_s, empty_mb, plan_s, plan_mb, imported, imported / 1e3 / empty_s)


def _kept(kept: bool) -> str:
    return "kept" if kept else "NOT kept"


def text(plans: Plans, start: Start) -> list[str]:
    """The results for people, with what was promised."""
    where = "one core, not pinned" if plans.pinned_to_core is None else f"core {plans.pinned_to_core}"
    cold = start.plan_cpu_s < COLD_CPU_S and start.plan_mb < COLD_MB
    return [
        f"plans:   {plans.plans_per_minute:,.0f} per minute in one process on {where}: {plans.mean_ms:.1f} ms a plan, "
        f"median {plans.median_ms:.1f} ms ({plans.different_requests} different requests, {plans.plans:,} plans)",
        f"         slowest {plans.slowest_ms:.0f} ms: {plans.slowest}",
        f"         a plan is {plans.mean_ms / 1e3 / start.empty_cpu_s:.2f} starts of an empty interpreter",
        f"         promise of {PLANS_PER_MINUTE:,} per minute: {_kept(plans.plans_per_minute >= PLANS_PER_MINUTE)}",
        f"import:  {start.import_ms:.0f} ms for {ROOM} in a fresh interpreter, {start.import_to_empty:.1f} x an empty "
        f"one; promise of {IMPORT_MS} ms: {_kept(start.import_ms < IMPORT_MS)}",
        f"cold:    an empty interpreter takes {start.empty_cpu_s:.3f} s of CPU and {start.empty_mb:.0f} MB,",
        f"         recipegen plan {start.plan_cpu_s:.3f} s ({start.cpu_ratio:.1f} x) and {start.plan_mb:.0f} MB "
        f"({start.memory_ratio:.1f} x); promise of {COLD_CPU_S} s and {COLD_MB} MB: {_kept(cold)}",
    ]


def document(plans: Plans, start: Start) -> dict[str, object]:
    """The same as JSON; units are in the names."""
    return {
        "format_version": 1,
        "command": "speed",
        "plans": {**asdict(plans), "promise_plans_per_minute": PLANS_PER_MINUTE},
        "import": {"module": ROOM, "ms": start.import_ms, "to_empty": start.import_to_empty, "promise_ms": IMPORT_MS},
        "cold_start": {
            "empty_cpu_s": start.empty_cpu_s,
            "empty_mb": start.empty_mb,
            "plan_cpu_s": start.plan_cpu_s,
            "plan_mb": start.plan_mb,
            "cpu_ratio": start.cpu_ratio,
            "memory_ratio": start.memory_ratio,
            "promise_cpu_s": COLD_CPU_S,
            "promise_mb": COLD_MB,
        },
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--seconds", type=float, default=5.0, help="CPU time spent on plans (default: 5)")
    options = parser.parse_args(arguments)
    start = time_start()
    plans = time_plans(list(requests()), options.seconds, core=pin())
    print(json.dumps(document(plans, start), indent=2) if options.format == "json" else "\n".join(text(plans, start)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
