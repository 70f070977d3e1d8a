"""Which settings of an existing setup become pins, so that deciding with them gives the recipe that was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from recipegen.catalog.stack import Stack
from recipegen.check.subject import Subject
from recipegen.decide import decide, field_types
from recipegen.decide import pins as pin_fields
from recipegen.formats.plain import to_plain
from recipegen.formats.reading import at
from recipegen.project.imported import Pin, same
from recipegen.spec import Cluster, DatasetSpec, Decision, Dtype, LossKernel, ModelSpec, Recipe, RecipegenError, Request

_ROUNDS = 8  # of pinning what the pins of before changed; two are usual
# Settings that the request itself has words for.
_ASKED = frozenset({"method", "sequence_len", "epochs", "schedule.learning_rate"})
_UNPINNABLE = {"fsdp.version": "FSDP1 is read, never written: the new project uses FSDP2"}
# What FSDP1 bears and FSDP2 does not.
_LOADING = "fsdp.cpu_ram_efficient_loading"
_FULL = ("fsdp.state_dict_type", "FULL_STATE_DICT")
_NOT_WRITTEN = {
    ("loss_kernel", LossKernel.CUT.value): "cut cross entropy needs a package that is not on the index: never written"
}


def otherwise_decided(
    request: Request, model: ModelSpec, cluster: Cluster, stack: Stack, datasets: tuple[DatasetSpec, ...]
) -> tuple[Decision | None, str]:
    """The same training as it would be decided: with the same batch where that multiplies out."""
    why = ""
    for asked in (request, replace(request, global_batch_size=None)):
        try:
            return decide(asked, model, cluster, stack, datasets), ""
        except RecipegenError as error:
            why = why or str(error)
    return None, why


def pinned(
    request: Request,
    wanted: Recipe,
    otherwise: Decision | None,
    model: ModelSpec,
    cluster: Cluster,
    stack: Stack,
    datasets: tuple[DatasetSpec, ...],
) -> tuple[Decision, dict[str, str]]:
    """The decision with the fewest pins that gives `wanted`, and the fields that cannot be pinned, with the reason."""
    refused: dict[str, str] = dict(_UNPINNABLE)
    values: dict[str, Any] = {}
    was_fsdp1 = wanted.fsdp is not None and wanted.fsdp.version == 1
    for path in field_types():
        group = path.rpartition(".")[0]
        if path in _ASKED or path in refused or (group and getattr(wanted, group) is None):
            continue
        if was_fsdp1 and path == _LOADING and wanted.precision.parameters is Dtype.NF4:
            refused[path] = "4-bit weights under FSDP2 cannot be loaded so (RG203), and the new project uses FSDP2"
            continue
        if was_fsdp1 and wanted.method.is_adapter and (path, to_plain(at(wanted, path))) == _FULL:
            refused[path] = "an adapter under FSDP2 would be lost on resume (RG201), and the new project uses FSDP2"
            continue
        if path == "sync_each_batch" and not wanted.parallelism.strategy.is_fsdp:
            continue  # of FSDP alone
        if path == "chat_template" and wanted.trainer != "axolotl" and wanted.chat_template is None:
            continue  # train.json holds the template as text, without its name
        plain = to_plain(at(wanted, path))
        if isinstance(plain, str) and (path, plain) in _NOT_WRITTEN:
            refused[path] = _NOT_WRITTEN[path, plain]
            continue
        try:
            if not same(pin_fields.parse(path, plain), plain):
                raise RecipegenError(f"{path} cannot be {plain!r:.80}")
            values[path] = plain
        except RecipegenError as error:
            refused[path] = str(error)

    def differing(recipe: Recipe) -> dict[str, Any]:
        return {path: value for path, value in values.items() if not same(at(recipe, path), value)}

    def decided(pins: Mapping[str, Any]) -> Decision:
        return decide(replace(request, pins=dict(pins)), model, cluster, stack, datasets)

    def settled(pins: dict[str, Any]) -> Decision:
        for _ in range(_ROUNDS):
            held = decided(pins)
            more = {path: value for path, value in differing(held.recipe).items() if path not in pins}
            if not more:
                break
            pins |= more
        return held

    start = differing(otherwise.recipe) if otherwise else dict(values)
    try:
        return settled(start), refused
    except RecipegenError:
        # Some pins contradict what is decided beside them; all together they are one recipe.
        try:
            return settled(dict(values)), refused
        except RecipegenError as error:
            raise RecipegenError(f"no recipe holds these settings together: {error}") from None


def described(held: Decision, subject: Subject, otherwise: Decision | None) -> Iterator[Pin]:
    places = subject.assembled.provenance
    for path, value in held.request.pins.items():
        other = to_plain(at(otherwise.recipe, path)) if otherwise else None
        why = otherwise.reasons.get(path, "") if otherwise else ""
        yield Pin(path, value, other, places.get(path, ""), why)
