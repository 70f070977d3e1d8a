"""CPU time and memory of `recipegen plan` for 70B on two nodes, against an interpreter that does nothing.

    python benchmarks/plan_speed.py

Prints seconds, MB and the ratios; the promise is under 0.5 s of CPU time and 80 MB.
"""

from __future__ import annotations

import resource
import subprocess
import sys

PLAN = [
    "-m", "recipegen.cli.main", "plan", "--model", "Llama-3.3-70B-Instruct", "--method", "full", "--hardware",
    "kentino-8x-rtx-pro-6000", "--nodes", "2", "--network", "roce-100", "--global-batch-size", "128",
]  # fmt: skip
REPEATS = 5


def measure(args: list[str]) -> tuple[float, float]:
    """CPU seconds (user + system) and peak resident MB of one child process, the best of REPEATS."""
    code = (
        "import resource, subprocess, sys; "
        "p = subprocess.run([sys.executable, *sys.argv[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); "
        "u = resource.getrusage(resource.RUSAGE_CHILDREN); print(u.ru_utime + u.ru_stime, u.ru_maxrss)"
    )
    best_s, best_kib = float("inf"), float("inf")
    for _ in range(REPEATS):
        done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True)
        cpu_s, rss_kib = (float(x) for x in done.stdout.split())
        best_s, best_kib = min(best_s, cpu_s), min(best_kib, rss_kib)
    return best_s, best_kib * 1024 / 1e6


def main() -> None:
    empty_s, empty_mb = measure(["-c", "pass"])
    plan_s, plan_mb = measure(PLAN)
    print(f"empty interpreter: {empty_s:.3f} s CPU, {empty_mb:.0f} MB")
    print(
        f"recipegen plan:    {plan_s:.3f} s CPU ({plan_s / empty_s:.1f} x), "
        f"{plan_mb:.0f} MB ({plan_mb / empty_mb:.1f} x)"
    )
    print("promise of 0.5 s and 80 MB:", "kept" if plan_s < 0.5 and plan_mb < 80 else "NOT kept")
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss > 0


if __name__ == "__main__":
    main()
