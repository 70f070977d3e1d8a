"""Load what a request names, measure its data, decide."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import click

from recipegen.catalog import load_cluster, load_model, load_stack
from recipegen.dataset.measure import measure
from recipegen.decide import decide
from recipegen.spec import DatasetSpec, Decision, ModelSpec, Request


def solve(
    request: Request, *, model: ModelSpec | None = None, measured: Mapping[str, DatasetSpec] | None = None
) -> Decision:
    """The decision of a request; progress goes to stderr on a terminal.

    `model` is what its name means, where that is known already; `measured` are data sets, by their paths, that are not
    measured again.
    """
    cluster = load_cluster(
        request.hardware, nodes=request.nodes, network=request.network, overrides=request.hardware_overrides
    )
    model = model or load_model(request.model, revision=request.model_revision)
    stack = load_stack(request.stack)
    known = measured or {}
    datasets = tuple(known[path] if path in known else _measure(path, request, model) for path in request.dataset)
    decision = decide(request, model, cluster, stack, datasets)
    if any(request.passthrough.values()):
        from recipegen.formats.modelled import refuse_modelled_keys

        refuse_modelled_keys(decision.recipe)
    return decision


def _measure(path: str, request: Request, model: ModelSpec) -> DatasetSpec:
    tokenizer = request.model if os.path.isfile(os.path.join(request.model, "tokenizer.json")) else None
    size = os.path.getsize(path) if os.path.isfile(path) else 0
    if size < 20_000_000 or not sys.stderr.isatty():
        return measure(path, model=model, format=request.dataset_format, tokenizer_path=tokenizer)
    with click.progressbar(length=size, label=f"measuring {os.path.basename(path)}", file=sys.stderr) as bar:
        seen = 0

        def progress(done_bytes: int, total_bytes: int) -> None:
            nonlocal seen
            bar.update(done_bytes - seen)
            seen = done_bytes

        return measure(path, model=model, format=request.dataset_format, tokenizer_path=tokenizer, progress=progress)
