"""What becomes of what an earlier run left behind: checkpoints, prepared data, the folder of outputs, served adapters.

What resumes was run on the stack (losses and gradient norms of a resumed run against the uninterrupted one); what was
never run says so instead of promising.
"""

from __future__ import annotations

from collections.abc import Iterator

from recipegen.review.difference import Change, Compatibility, Statement, Weight
from recipegen.review.kinds import FROM_CHECKPOINT, PREPARED, STALE, under
from recipegen.review.pair import Pair, words
from recipegen.spec import Method, Strategy

# Classes that keep the same state under the same names (torch.optim.AdamW).
_SAME_STATE = (frozenset({"adamw_torch", "adamw_torch_fused"}),)
_ADAPTER_SHAPE = ("adapter.r", "adapter.target_modules", "adapter.use_dora", "adapter.modules_to_save")
# Written by FSDP2 as shards with names, which another number of ranks reads (run: 2 ranks into 2 x 2).
_RESHARDS = (Strategy.FSDP2_FULL, Strategy.FSDP2_HYBRID)
_UNSHARDED = (Strategy.SINGLE, Strategy.DDP)


def compatibility(pair: Pair) -> Compatibility:
    """Of a checkpoint of the before side under the after side."""
    blocking = tuple(_blocking(pair))
    doubts = tuple(_doubts(pair))
    resumes: bool | None = False if blocking else (None if doubts else True)
    if pair.before.recipe is None or pair.after.recipe is None:
        resumes = False if blocking else None
    ignored: tuple[Change, ...] = ()
    if resumes is not False:
        ignored = tuple(pair.parts(*FROM_CHECKPOINT))
    return Compatibility(
        resumes,
        (*blocking, *doubts),
        ignored,
        tuple(_rebuild(pair)),
        _same_output(pair),
        tuple(_inference(pair)),
    )


def _blocking(pair: Pair) -> Iterator[Statement]:
    """Why a checkpoint cannot be gone on from."""

    def no(rule: str, text: str, *paths: str) -> Statement:
        return pair.say(rule, Weight.ALARM, text, *paths)

    if pair.changed("model") and not _same_shape(pair):
        yield no("RV401", "another model: its tensors have other shapes or meanings", "model")
    if pair.changed("trainer"):
        yield no("RV402", "another trainer writes other files", "trainer")
    old, new = pair.both("method")
    if isinstance(old, Method) and isinstance(new, Method) and old.is_adapter is not new.is_adapter:
        yield no("RV403", f"{old.value} -> {new.value}: a checkpoint of one holds nothing of the other", "method")
    elif "method" in pair.changes or pair.changed("precision.parameters"):
        yield no("RV404", "the adapter was trained on a base in another precision", "method", "precision.parameters")
    shape = [path for path in _ADAPTER_SHAPE if pair.changed(path)]
    if shape and pair.before.get("adapter.r") and pair.after.get("adapter.r"):
        names = ", ".join(path.partition(".")[2].replace("_", " ") for path in shape)
        yield no("RV405", f"another shape of the adapter ({names})", *shape)
    yield from _state(pair)
    yield from _layout(pair)
    if pair.before.get("saving.save_only_model"):
        yield no("RV406", "save_only_model: the earlier checkpoints hold no optimizer state", "saving.save_only_model")
    if _lost_adapter(pair):
        text = "FULL_STATE_DICT under FSDP2: the earlier checkpoints hold one rank's slice of the adapter"
        yield no("RV407", text, "fsdp.state_dict_type")


def _state(pair: Pair) -> Iterator[Statement]:
    """The optimizer's state."""
    if "optimizer.name" in pair.changes:
        old, new = pair.both("optimizer.name")
        if not any({old, new} <= names for names in _SAME_STATE):
            text = f"optimizer {old} -> {new}: another state"
            yield pair.say("RV408", Weight.ALARM, text, "optimizer.name")
            return
    paths = ("precision.states", "precision.master", "precision.compensation", "precision.trainable")
    moved = [path for path in paths if path in pair.changes]
    if moved and not pair.changed("method", "parallelism.strategy"):
        text = f"what is kept in which dtype changed ({', '.join(path.partition('.')[2] for path in moved)})"
        yield pair.say("RV409", Weight.ALARM, text, *moved)


def _layout(pair: Pair) -> Iterator[Statement]:
    """How a checkpoint is laid out on the disk."""
    old, new = pair.both("parallelism.strategy")
    if not isinstance(old, Strategy) or not isinstance(new, Strategy):
        return
    if _family(old) != _family(new):
        text = f"{old.label} -> {new.label}: checkpoints are laid out in another way"
        yield pair.say("RV410", Weight.ALARM, text, "parallelism.strategy")
    elif old.is_deepspeed and (old is not new or pair.changed("deepspeed.stage")):
        yield pair.say("RV410", Weight.ALARM, f"{old.label} -> {new.label}: other partitions", "parallelism.strategy")
    elif old.is_deepspeed and _ranks(pair)[0] != _ranks(pair)[1]:
        text = "DeepSpeed's partitions are of the number of ranks that wrote them ({} -> {})".format(*_ranks(pair))
        yield pair.say("RV411", Weight.ALARM, text, "parallelism")
    elif old.is_fsdp and pair.changed("fsdp.state_dict_type"):
        before, after = pair.both("fsdp.state_dict_type")
        yield pair.say(
            "RV412",
            Weight.ALARM,
            f"state dict {before} -> {after}: one does not read the other",
            "fsdp.state_dict_type",
        )
    elif old.is_fsdp and pair.changed("fsdp.version"):
        yield pair.say("RV413", Weight.ALARM, "FSDP1 and FSDP2 name their shards differently", "fsdp.version")


def _doubts(pair: Pair) -> Iterator[Statement]:
    """What was never run, or goes on with another order of the rows."""
    if pair.changed("stack"):
        yield pair.say("RV414", Weight.NOTICE, "a checkpoint of another stack: never run", "stack")
    if pair.changed("model") and _same_shape(pair):
        text = "another repository of the same shape: not known to hold the same weights"
        yield pair.say("RV416", Weight.NOTICE, text, "model")
    if pair.changed("passthrough"):
        keys = ", ".join(change.path.rpartition(".")[2] for change in pair.parts("passthrough"))
        yield pair.say("RV415", Weight.NOTICE, f"{keys}: what it does to a checkpoint is not known here", "passthrough")


def _rebuild(pair: Pair) -> Iterator[str]:
    named = [path for path in pair.changes if under(path, PREPARED)]
    stale = [path for path in pair.changes if under(path, STALE)]
    if pair.after.get("trainer", "axolotl") != "axolotl":
        return
    if named:
        yield f"prepared data are made again ({', '.join(dict.fromkeys(map(_short, named)))})"
    elif stale:
        yield (
            f"prepared data of the earlier run are taken as they are: their name does not hold {', '.join(stale)}; "
            "delete the folder"
        )


def _same_output(pair: Pair) -> bool:
    """Whether the run goes on from a checkpoint that a run of another meaning left: the last one of the same folder, or
    the one that is named on both sides."""
    named_old, named_new = pair.both("facts.resume_from_checkpoint")
    if named_new:
        return bool(pair.changes) and named_old == named_new
    old, new = pair.both("facts.output_dir")
    return bool(pair.after.get("facts.auto_resume_from_checkpoints")) and old == new and bool(pair.changes)


def _same_shape(pair: Pair) -> bool:
    """Mirrors of one model: the shape of both is known by one name."""
    old, new = pair.before.model, pair.after.model
    return old is not None and new is not None and old.id == new.id


def _inference(pair: Pair) -> Iterator[str]:
    """What changes for who serves the result."""
    old, new = pair.both("method")
    if isinstance(old, Method) and isinstance(new, Method) and old.is_adapter is not new.is_adapter:
        yield "an adapter beside the base" if new.is_adapter else "a whole model instead of an adapter"
    if pair.changed("model"):
        yield f"another base: {words(pair.after.get('model'))}"
    if pair.changed("chat_template", "eot_tokens", "facts.chat_template_jinja", "facts.special_tokens"):
        yield "prompts must be written with the new template and end tokens"
    if pair.changed("facts.added_tokens"):
        yield "the vocabulary has other tokens"
    r_old, r_new = pair.both("adapter.r")
    if r_old and r_new and r_new > r_old:
        yield f"adapter rank {r_old} -> {r_new}: a server's limit on the rank must allow it"


def _family(strategy: Strategy) -> str:
    if strategy in _RESHARDS:
        return "fsdp"
    return "plain" if strategy in _UNSHARDED else "deepspeed"


def _ranks(pair: Pair) -> tuple[int, int]:
    counts = [
        side.recipe.parallelism.world_size if side.recipe else side.get("parallelism.dp_shard", 1)
        for side in (pair.before, pair.after)
    ]
    return counts[0], counts[1]


def _lost_adapter(pair: Pair) -> bool:
    strategy, method = pair.before.get("parallelism.strategy"), pair.before.get("method")
    return (
        isinstance(strategy, Strategy)
        and strategy.is_fsdp
        and isinstance(method, Method)
        and method.is_adapter
        and pair.before.get("fsdp.state_dict_type") == "FULL_STATE_DICT"
        and pair.before.get("fsdp.version", 2) == 2
    )


def _short(path: str) -> str:
    return path.split(".")[0] if path.startswith("datasets") else path.rpartition(".")[2]
