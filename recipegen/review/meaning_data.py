"""What a change means for what is learnt from: model, data, rows, masking, packing, validation, and the stack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from recipegen.review.difference import Statement, Weight
from recipegen.review.fields import Meaning
from recipegen.review.pair import Pair, number, words
from recipegen.spec import Strategy

_MASKING = ("facts.train_on_inputs", "eot_tokens", "chat_template", "facts.chat_template_jinja", "facts.special_tokens")
_MASKING_OF_ROWS = (
    "roles_to_train",
    "train_on_eos",
    "train_on_eot",
    "train_on_inputs",
    "type",
    "message_field_training",
)
_SPEED = (
    "activation_checkpointing", "activation_offloading", "fsdp", "deepspeed", "loading", "saving", "launch",
    "environment", "sync_each_batch",
)  # fmt: skip


def model(pair: Pair) -> Iterator[Statement]:
    if "model" in pair.changes:
        old, new = pair.both("model")
        yield pair.say("RV201", Weight.ALARM, f"another model: {old} -> {new}", "model")
        yield from _terms(pair)
    elif "model_revision" in pair.changes:
        old, new = pair.both("model_revision")
        yield pair.say(
            "RV202", Weight.NOTICE, f"model revision {words(old)} -> {words(new)}", "model_revision", "model"
        )
    if pair.changed("trust_remote_code"):
        on = pair.after.get("trust_remote_code")
        text = (
            "trust_remote_code: code from the model's repository runs on the training box"
            if on
            else ("trust_remote_code is off: the model's own code does not run any more")
        )
        yield pair.say("RV203", Weight.ALARM if on else Weight.NOTICE, text, "trust_remote_code")


def _terms(pair: Pair) -> Iterator[Statement]:
    """Under which terms the weights may be had."""
    old, new = pair.before.model, pair.after.model
    if old is None or new is None:
        return
    if old.license != new.license:
        yield pair.say("RV204", Weight.NOTICE, f"licence {old.license} -> {new.license}", "model")
    if new.gated and not old.gated:
        yield pair.say(
            "RV205", Weight.NOTICE, f"{new.id} is gated: its terms must be accepted on the Hub first", "model"
        )


def method(pair: Pair) -> Iterator[Statement]:
    if "method" in pair.changes:
        old, new = pair.both("method")
        yield pair.say("RV206", Weight.NOTICE, f"{words(old)} -> {words(new)}: something else is trained", "method")
    if pair.changed("precision.parameters") and not pair.changed("method"):
        old, new = pair.both("precision.parameters")
        yield pair.say(
            "RV207",
            Weight.NOTICE,
            f"the base is loaded in {words(old)} -> {words(new)}",
            "precision.parameters",
            "method",
        )


def data(pair: Pair) -> Iterator[Statement]:
    """Sources first, then how rows are read."""
    old, new = _sources(pair.before), _sources(pair.after)
    if old != new:
        more, less = [x for x in new if x not in old], [x for x in old if x not in new]
        parts = [f"{word} {', '.join(names)}" for word, names in (("more", more), ("less", less)) if names]
        yield pair.say("RV208", Weight.ALARM, f"data: {'; '.join(parts) or 'in another order'}", "datasets")
    for change in pair.parts("datasets"):
        parts_of = change.path.split(".")
        name = ".".join(parts_of[3:]) if len(parts_of) > 3 and parts_of[2] == "entry" else ".".join(parts_of[2:])
        if old != new or name in ("path", "split", "format"):
            continue
        masking = name.split(".")[0] in _MASKING_OF_ROWS
        text = f"{name} of a data set: {words(change.before)} -> {words(change.after)}"
        yield pair.say("RV209", Weight.ALARM if masking else Weight.NOTICE, text, change.path)


def rows(pair: Pair) -> Iterator[Statement]:
    """Rows that are longer than a sequence, and what happens to them."""
    if not pair.changed("sequence_len", "excess_length_strategy", "datasets"):
        return
    old, new = _lost(pair.before), _lost(pair.after)
    if pair.changed("sequence_len"):
        lengths = (
            f"sequence length {number(pair.before.get('sequence_len'))} -> {number(pair.after.get('sequence_len'))}"
        )
        tail = f"; rows that are too long {old:,} -> {new:,}" if old is not None and new is not None else ""
        yield pair.say("RV210", Weight.NOTICE, lengths + tail, "sequence_len")
    elif old is not None and new is not None and old != new:
        yield pair.say("RV210", Weight.NOTICE, f"rows that are too long {old:,} -> {new:,}", "datasets", "sequence_len")
    if pair.changed("excess_length_strategy"):
        before, after = pair.both("excess_length_strategy")
        yield pair.say("RV211", Weight.NOTICE, f"rows that are too long: {before} -> {after}", "excess_length_strategy")


def masking(pair: Pair) -> Iterator[Statement]:
    """What of a row is learnt, and how a turn is written."""
    for path in _MASKING:
        if path in pair.changes:
            change = pair.changes[path]
            name = path.rpartition(".")[2]
            text = f"{name} {words(change.before)} -> {words(change.after)}: rows are written or masked in another way"
            yield pair.say("RV212", Weight.ALARM, text, path)


def packing(pair: Pair) -> Iterator[Statement]:
    """A packed step holds more rows, and what a bin holds depends on attention, micro-batch and ranks."""
    if "packing" in pair.changes:
        on = pair.after.get("packing")
        text = "packing on: a step holds more rows, at the same rate" if on else "packing off: a step holds fewer rows"
        yield pair.say("RV213", Weight.NOTICE, text, "packing")
    elif pair.after.get("packing"):
        causes = [path for path in ("attention", "micro_batch_size", "sequence_len") if pair.changed(path)]
        said = [cause.replace("_", " ") for cause in causes] + (["the number of ranks"] if pair.ranks_changed else [])
        if said:
            text = f"packed rows fall into other bins: {' and '.join(said)} changed"
            yield pair.say("RV214", Weight.NOTICE, text, *causes, "parallelism")


def validation(pair: Pair) -> Iterator[Statement]:
    """Whether the curves of eval loss can be laid over one another."""
    why = [
        text
        for path, text in (
            ("val_set_size", "other validation rows"),
            ("facts.test_dataset_entries", "other validation rows"),
            ("datasets", "other data"),
            ("sequence_len", "another sequence length"),
            ("chat_template", "another chat template"),
            ("model", "another model"),
            ("facts.train_on_inputs", "other tokens count"),
        )
        if pair.changed(path)
    ]
    if "seed" in pair.changes and pair.after.get("val_set_size"):
        why.append("another seed splits other rows off")
    validated = pair.before.get("val_set_size") or pair.after.get("val_set_size")
    if why and (validated or pair.changed("val_set_size")):
        text = f"eval loss is not comparable: {', '.join(dict.fromkeys(why))}"
        yield pair.say("RV215", Weight.NOTICE, text, "val_set_size", "datasets", "seed")


def stack(pair: Pair) -> Iterator[Statement]:
    """The same file keeps other dtypes under another version of a trainer."""
    for path, what in (("stack", "stack"), ("trainer", "trainer")):
        if path in pair.changes:
            old, new = pair.both(path)
            yield pair.say("RV216", Weight.ALARM, f"{what} {old} -> {new}: the same keys can mean other bytes", path)


def machines(pair: Pair) -> Iterator[Statement]:
    """Where it runs, and how the ranks divide the work."""
    if pair.changed("hardware", "network"):
        old = f"{pair.before.get('hardware')}, {pair.before.get('network')}"
        new = f"{pair.after.get('hardware')}, {pair.after.get('network')}"
        yield pair.say(
            "RV217", Weight.NOTICE, f"machines {old} -> {new}: all numbers move with them", "hardware", "network"
        )
    old, new = pair.both("parallelism.strategy")
    if old != new and isinstance(old, Strategy) and isinstance(new, Strategy):
        text = f"{old.label} -> {new.label}: the same mathematics up to the order of sums"
        yield pair.say("RV218", Weight.NOTICE, text, "parallelism.strategy")


def rounding(pair: Pair) -> Iterator[Statement]:
    """Kernels that compute the same in another order."""
    for path in ("loss_kernel", "attention", "torch_compile", "tf32"):
        if path in pair.changes:
            old, new = pair.both(path)
            text = f"{path.replace('_', ' ')} {words(old)} -> {words(new)}: results differ by rounding"
            yield pair.say("RV219", Weight.DETAIL, text, path)


def speed(pair: Pair) -> Iterator[Statement]:
    for change in pair.parts(*_SPEED):
        if isinstance(change.before, Mapping) or isinstance(change.after, Mapping):
            continue  # of another engine, which is said
        text = (
            f"{change.path} {words(change.before)} -> {words(change.after)}: memory, time or files, not what is learnt"
        )
        yield pair.say("RV220", Weight.DETAIL, text, change.path)


def _sources(side: Meaning) -> list[str]:
    found, index = [], 0
    while (path := side.get(f"datasets.{index}.path")) is not None:
        split = side.get(f"datasets.{index}.split", "train")
        found.append(str(path) if split == "train" else f"{path} ({split})")
        index += 1
    return found


def _lost(side: Meaning) -> int | None:
    """Rows longer than a sequence, of all data sets; None where they were not measured."""
    recipe = side.recipe
    if recipe is None or any(spec.lengths is None for spec in recipe.datasets):
        return None
    return sum(spec.lengths.rows_longer_than(recipe.sequence_len) for spec in recipe.datasets if spec.lengths)


SAY: tuple[Callable[[Pair], Iterator[Statement]], ...] = (
    model,
    method,
    data,
    rows,
    masking,
    packing,
    validation,
    stack,
    machines,
    rounding,
    speed,
)
