"""`recipegen simulate`: one step of the real classes without a GPU, next to the estimate. Writes nothing."""

from __future__ import annotations

import json
import os
import stat
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from recipegen.cli.options import make_request, request_options
from recipegen.spec import GpuMemory, ModelSpec, Phase, Recipe, RecipegenError
from recipegen.spec.simulation import Simulation
from recipegen.spec.units import GIB, gib

if TYPE_CHECKING:
    from recipegen.catalog import Stack

FORMAT_VERSION = 1
_WIDTH = 100
_LARGEST_NUMBER = 10**8  # of tokens in a micro-batch, and of what it is made of: sizes stay within 64 bits
_TRAINERS = ("axolotl", "accelerate")
_SHOWN_BYTES = GIB / 200  # smaller terms only with -v


@dataclass(frozen=True)
class _Case:
    """What is simulated. `edited` says which files of the project are not what recipe.lock says was written."""

    model: ModelSpec
    recipe: Recipe
    stack: Stack
    triton: bool
    capacity_bytes: int
    edited: tuple[str, ...] = ()


@click.command()
@click.argument("path", required=False, type=click.Path())
@request_options
@click.option("--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("-v", "--verbose", is_flag=True, help="Every phase with its terms, and the tensors in them.")
def simulate(path: str | None, output: str, verbose: bool, **given: Any) -> int:
    """Measure a recipe's exact peak without a GPU, and set it beside the estimate.

    PATH is a project that `recipegen new` wrote; without it, plan's options say what to decide and simulate. The real
    model class, adapters, FSDP2, checkpointing, loss and optimizer run one step on tensors that have a shape and no
    memory. Needs torch (its CPU build is enough): pip install 'recipegen[simulate]'. No weights, no network.

    \b
    Examples:
      recipegen simulate my-project
      recipegen simulate --model Llama-3.1-8B --hardware kentino-8x-rtx-5090 --method full
      recipegen simulate --model Qwen3-32B --hardware kentino-8x-rtx-5090 --method lora -v
      recipegen simulate my-project --format json | jq .simulated.peak_bytes

    Exit code: 0 what is allocated is less than the card has, 1 it is more, 2 bad input or not simulated.
    """
    from recipegen.estimate.memory import gpu_memory
    from recipegen.estimate.symbols import symbols
    from recipegen.simulate import Options, refuse_unsupported, versions
    from recipegen.simulate import simulate as run

    case = _from_project(path, given) if path else _from_options(given, ask=output == "text")
    refuse_unsupported(case.recipe)
    versions()
    memory = gpu_memory(symbols(case.model, case.recipe, case.stack, triton=case.triton), case.capacity_bytes)
    with _progress(case.model) as progress:
        found = run(case.model, case.recipe, case.stack, progress=progress, options=Options(compiled_loss=case.triton))
    if output == "json":
        click.echo(json.dumps(as_json(case.recipe, memory, found), indent=2))
    else:
        for line in _text(case, memory, found, verbose):
            click.echo(line)
    for change in case.edited:
        click.echo(f"note: {change}; what recipe.lock says was simulated", err=True)
    if found.peak_bytes <= case.capacity_bytes:
        return 0
    reason = f"the step allocates {gib(found.peak_bytes)}, PyTorch sees {gib(case.capacity_bytes)} of the card"
    click.echo(click.style("does not fit: ", fg="red", bold=True) + reason, err=True)
    return 1


# --- what to simulate


def _from_options(given: dict[str, Any], *, ask: bool) -> _Case:
    from recipegen.catalog import load_stack
    from recipegen.cli.solve import solve

    decision = solve(make_request(given, ask=("model", "hardware") if ask else ()))
    gpu = decision.cluster.gpu
    return _Case(decision.model, decision.recipe, load_stack(decision.recipe.stack), gpu.triton, gpu.memory_bytes)


def _from_project(path: str, given: dict[str, Any]) -> _Case:
    from recipegen.catalog import load_cluster, load_model, load_stack
    from recipegen.formats import lock

    extra = [f"--{name.replace('_', '-')}" for name, value in given.items() if value and name != "dataset_format"]
    if extra:
        raise RecipegenError(f"PATH is a decided recipe; {extra[0]} cannot change it", fix="Leave out one of the two.")
    where = os.path.join(path, lock.NAME)
    if os.path.exists(path) and not os.path.isdir(path):
        raise RecipegenError("not a folder", where=path, fix="Give the folder that `recipegen new` wrote.")
    content = _read(where, path)
    kept = lock.read(content, where)
    recipe = kept.recipe
    _refuse_impossible(recipe, where)
    model = load_model(_beside(path, recipe.model), revision=recipe.model_revision)
    nodes = recipe.parallelism.nodes
    cluster = load_cluster(_beside(path, recipe.hardware), nodes=nodes, network=recipe.network, overrides={})
    now = {name: _digest(os.path.join(path, name)) for name in kept.files}
    edited = tuple(
        f"{name} was edited" if now[name] else f"{name} cannot be read"
        for name, digest in kept.files.items()
        if now[name] != digest
    )
    return _Case(model, recipe, load_stack(recipe.stack), cluster.gpu.triton, cluster.gpu.memory_bytes, edited)


def _refuse_impossible(recipe: Recipe, where: str) -> None:
    """A lock that was edited by hand may hold numbers that no step can have."""
    batch = ("micro_batch_size", "sequence_len", "gradient_accumulation")
    for name in batch:
        value = getattr(recipe, name)
        if not 1 <= value <= _LARGEST_NUMBER:
            raise RecipegenError(
                f"recipe.{name} is {value}; it must lie between 1 and {_LARGEST_NUMBER:,}", where=where
            )
    tokens = recipe.micro_batch_size * recipe.sequence_len
    if tokens > _LARGEST_NUMBER:
        raise RecipegenError(f"a micro-batch of {tokens:,} tokens is more than {_LARGEST_NUMBER:,}", where=where)
    if recipe.trainer not in _TRAINERS:
        raise RecipegenError(
            f"recipe.trainer is {recipe.trainer!r}; it must be one of {', '.join(_TRAINERS)}", where=where
        )


def _read(where: str, folder: str) -> bytes:
    """A regular recipe.lock of bounded size."""
    from recipegen.catalog.bounded_yaml import LARGE

    try:
        mode = os.stat(where).st_mode
        if not stat.S_ISREG(mode):
            raise RecipegenError("not a regular file", where=where)
        with open(where, "rb") as file:
            content = file.read(LARGE.size_bytes + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        fix = "Give a folder that `recipegen new` wrote."
        raise RecipegenError(f"no readable recipe.lock in it: {reason}", where=folder, fix=fix) from None
    if len(content) > LARGE.size_bytes:
        raise RecipegenError(f"is larger than {LARGE.size_bytes} bytes; it is no recipe.lock", where=where)
    return content


def _beside(folder: str, name: str) -> str:
    """A relative path in a recipe is meant from the project's folder; a name stays a name."""
    if os.path.isabs(name) or name.startswith("~"):
        return name
    beside = os.path.join(folder, name)
    return beside if name.startswith(("./", "../")) or ("/" in name and os.path.exists(beside)) else name


def _digest(path: str) -> str | None:
    from recipegen.formats import lock

    try:
        with open(path, "rb") as file:
            return lock.digest(file.read())
    except OSError:
        return None


@contextmanager
def _progress(model: ModelSpec) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr, on a terminal only; importing torch is its first, silent part."""
    if not sys.stderr.isatty():
        yield None
        return
    label = f"simulating {model.id.rpartition('/')[2]}"
    with click.progressbar(length=1, label=label, file=sys.stderr) as bar:

        def progress(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield progress


# --- output


def as_json(recipe: Recipe, memory: GpuMemory, found: Simulation) -> dict[str, Any]:
    """The document of docs/schemas/simulate.schema.json."""
    from recipegen import __version__
    from recipegen.formats.plain import to_plain

    recipe_json: dict[str, Any] = to_plain(recipe)
    return {
        "format_version": FORMAT_VERSION,
        "tool_version": __version__,
        "command": "simulate",
        "recipe": recipe_json,
        "estimated": {
            "peak_bytes": step_peak(memory).bytes,
            "phase": step_peak(memory).name,
            "phases": [_phase_json(p) for p in memory.phases],
        },
        "simulated": {
            "peak_bytes": found.peak_bytes,
            "phase": found.phase,
            "phases": [_phase_json(p) for p in found.phases],
            "total_parameters": found.total_parameters,
            "trainable_parameters": found.trainable_parameters,
        },
        "error": round(step_peak(memory).bytes / found.peak_bytes - 1.0, 6),
        "capacity_bytes": memory.capacity_bytes,
        "seconds": round(found.seconds, 3),
        "versions": dict(found.versions),
        "notes": list(found.notes),
    }


def step_peak(memory: GpuMemory) -> Phase:
    """The estimate's largest phase of a step; loading and saving are not simulated."""
    return max((p for p in memory.phases if p.name not in ("load", "save")), key=lambda p: p.bytes)


def _phase_json(phase: Phase) -> dict[str, Any]:
    from recipegen.formats.plain import to_plain

    return {"name": phase.name, "bytes": phase.bytes, "terms": [to_plain(term) for term in phase.terms]}


def _text(case: _Case, memory: GpuMemory, found: Simulation, verbose: bool) -> Iterator[str]:
    r, guess = case.recipe, step_peak(memory)
    difference = guess.bytes / found.peak_bytes - 1.0
    yield click.style(f"estimate {gib(guess.bytes)}, simulated {gib(found.peak_bytes)}, {difference:+.1%}", bold=True)
    ranks = r.parallelism
    yield (
        f"  {case.model.id} ({found.total_parameters / 1e9:.2f}B, {found.trainable_parameters / 1e6:,.1f}M trainable), "
        f"{r.method.value}, {ranks.strategy.label} on {ranks.world_size} "
        f"GPU{'s' if ranks.world_size > 1 else ''}, {r.micro_batch_size} x {r.sequence_len} tokens"
    )
    yield f"  allocated by tensors on one GPU of {gib(case.capacity_bytes)}; peak in {found.phase.replace('_', ' ')}"
    yield ""
    yield click.style(f"  {'phase':26} {'estimate':>12} {'simulated':>12}", bold=True)
    yield from _beside_each_other({p.name: p.bytes for p in memory.phases}, {p.name: p.bytes for p in found.phases}, 0)
    yield ""
    same = next((p for p in memory.phases if p.name == found.phase), guess)
    yield click.style(
        f"  {'at the peak, ' + found.phase.replace('_', ' '):26} {'estimate':>12} {'simulated':>12}", bold=True
    )
    yield from _beside_each_other(
        {t.name: t.bytes for t in same.terms}, {t.name: t.bytes for t in found.terms}, 0 if verbose else _SHOWN_BYTES
    )
    if verbose:
        yield ""
        for phase in found.phases:
            yield click.style(f"  {phase.name.replace('_', ' ')}  {gib(phase.bytes)}", bold=True)
            for term in phase.terms:
                yield from textwrap.wrap(
                    f"{term.name.replace('_', ' '):24} {gib(term.bytes):>12}  {term.basis}",
                    _WIDTH, initial_indent="    ", subsequent_indent=" " * 43,
                )  # fmt: skip
    yield ""
    ran = ", ".join(f"{name} {version}" for name, version in found.versions)
    yield f"  {found.seconds:.1f} s with {ran}"
    for note in found.notes:
        yield from textwrap.wrap(f"{note}.", _WIDTH, initial_indent="  ", subsequent_indent="    ")


def _beside_each_other(estimated: dict[str, int], simulated: dict[str, int], smallest: float) -> Iterator[str]:
    for name in dict.fromkeys([*estimated, *simulated]):
        left, right = estimated.get(name), simulated.get(name)
        if max(left or 0, right or 0) < smallest:
            continue
        yield f"  {name.replace('_', ' '):26} {gib(left) if left else '-':>12} {gib(right) if right else '-':>12}"
