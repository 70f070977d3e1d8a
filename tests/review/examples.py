"""Reviews made by hand for the printers: every kind of change, alone and together, few and many, kind and hostile."""

from __future__ import annotations

from dataclasses import replace

from recipegen.review import (
    Change,
    Compatibility,
    Effect,
    Experiment,
    RecipeDifference,
    Review,
    Statement,
    Status,
    Weight,
)
from recipegen.spec import Finding, Method, Severity, Verdict

GIB = 2**30
FILE = "recipes/llama-3.1-8b/axolotl.yaml"


def effects(*, factor: float = 1.0, because: str = "") -> tuple[Effect, ...]:
    """The numbers of an 8B LoRA; the after side of those that grow with the micro-batch, times a factor."""

    def grown(name: str, unit: str, value: float, why: str = "", *, whole: bool = True) -> Effect:
        after = value * factor
        return Effect(name, unit, value, int(after) if whole else after, because=why if factor != 1 else "")

    peak = 21.8 * GIB
    return (
        Effect(
            "GPU memory needed at the peak",
            "bytes",
            int(peak),
            int(peak + (factor - 1) * 3.5 * GIB),
            int(0.95 * (peak + (factor - 1) * 3.5 * GIB)),
            int(1.08 * (peak + (factor - 1) * 3.5 * GIB)),
            because if factor != 1 else "",
        ),
        Effect("host RAM at the peak", "bytes", int(31.3 * GIB), int(31.3 * GIB)),
        Effect("disk", "bytes", 33_798_766_592, 33_798_766_592),
        Effect("one checkpoint", "bytes", 503_316_480, 503_316_480),
        Effect("trainable parameters", "parameters", 41_943_040, 41_943_040),
        grown("global batch", "sequences", 16),
        grown("tokens per step", "tokens", 65_536),
        Effect("steps per epoch", "steps", 1_200, int(1_200 / factor)),
        Effect("steps", "steps", 2_400, int(2_400 / factor)),
        grown("time per step", "s", 4.65, whole=False),
        Effect("throughput", "tokens/s", 14_094.0, 14_094.0 * factor**0.05),
        Effect("time of the run", "s", 11_160.0, 11_160.0 / factor**0.05),
        Effect("transfers between the GPUs of a node", "bytes per step", 293_601_280.0, 293_601_280.0),
    )


def one_sided(*, added: bool) -> tuple[Effect, ...]:
    if added:
        return tuple(replace(one, before=None) for one in effects())
    return tuple(replace(one, after=None, low=None, high=None) for one in effects())


RATE = Change("schedule.learning_rate", 2e-4, 1e-3, f"{FILE}:23", f"{FILE}:23")
DECAY = Change("optimizer.weight_decay", 0.0, 0.01, "", f"{FILE}:25")
BATCH = Change("micro_batch_size", 2, 4, f"{FILE}:19", f"{FILE}:19")
TARGETS = Change("adapter.target_modules", ("q_proj", "v_proj"), ("k_proj", "q_proj", "v_proj"), "", f"{FILE}:31")
METHOD = Change("method", Method.LORA, Method.QLORA, f"{FILE}:30", f"{FILE}:30")
ALARM = Statement(
    "RV103", Weight.ALARM, "learning rate 2e-4 -> 1e-3 (5 times)", ("schedule.learning_rate",), f"{FILE}:23"
)
NOTICE = Statement(
    "RV101",
    Weight.NOTICE,
    "global batch 16 -> 32 sequences, the rate did not move; large batches cost adapters more than they gain",
    ("micro_batch_size",),
    f"{FILE}:19",
)
DETAIL = Statement("RV221", Weight.DETAIL, "launch: changes speed or memory, not what is learnt", ("launch",))
DEAD = Statement(
    "RV501", Weight.NOTICE, "schedule.warmup_ratio 0.03 -> 0.1 does nothing: warmup_steps wins", (), f"{FILE}:28"
)
STATE = Statement("RV408", Weight.ALARM, "optimizer adamw_torch_fused -> lion_pytorch: another state", (), f"{FILE}:24")
STACK = Statement("RV414", Weight.NOTICE, "a checkpoint of another stack: never run", ("stack",))
TOO_LARGE = Finding(
    "RG101",
    Severity.ERROR,
    "memory",
    "does not fit the GPU: 25.30 GiB needed of 23.52 GiB per GPU",
    "lower micro_batch_size to 2",
    field="micro_batch_size",
    where=f"{FILE}:19",
    required_bytes=int(25.3 * GIB),
    available_bytes=int(23.52 * GIB),
)
WARNED = Finding(
    "RG403", Severity.WARNING, "learning", "beta2 0.999 is slow for short runs", "0.99", where=f"{FILE}:26"
)
NOTE = Finding("RG780", Severity.NOTE, "verification", "the driver: needs 580 or newer", "nvidia-smi", where=FILE)
UNKNOWN_KEY = Finding("RG701", Severity.ERROR, "schema", "learning_rte is no key", "learning_rate", where=f"{FILE}:22")

CHANGED = RecipeDifference(
    "recipes/llama-3.1-8b",
    Status.CHANGED,
    verdict_before=Verdict.FITS,
    verdict_after=Verdict.FITS,
    changes=(BATCH, RATE, DECAY),
    effects=effects(factor=2.0, because="logits and loss"),
    meaning=(ALARM, NOTICE, DETAIL),
    experiment=Experiment.COMPARABLE,
    compatibility=Compatibility(True, (), (RATE, DECAY)),
    no_ops=(DEAD,),
    new=(WARNED,),
    fixed=(replace(WARNED, rule="RG404", reason="weight decay 0 without a reason"),),
    kept=(NOTE,),
)
TOO_BIG = replace(
    CHANGED,
    name="recipes/llama-3.1-8b-large-batch",
    verdict_after=Verdict.DOES_NOT_FIT,
    changes=(BATCH,),
    meaning=(NOTICE,),
    compatibility=Compatibility(True),
    no_ops=(),
    new=(TOO_LARGE, UNKNOWN_KEY),
    fixed=(),
)
DIFFERENT = replace(
    CHANGED,
    name="recipes/llama-3.1-8b-qlora",
    verdict_after=Verdict.TIGHT,
    changes=(METHOD, TARGETS, Change("fsdp", None, {"version": 2, "offload_params": False}, "", f"{FILE}:40")),
    effects=effects(),
    meaning=(Statement("RV206", Weight.NOTICE, "lora -> qlora: something else is trained", ("method",), f"{FILE}:30"),),
    experiment=Experiment.DIFFERENT,
    compatibility=Compatibility(
        False,
        (STATE, replace(STATE, rule="RV404", text="the adapter was trained on a base in another precision")),
        rebuild=("prepared data are made again (chat_template, sequence_len)",),
        same_output=True,
        inference=("adapter rank 16 -> 64: a server's limit on the rank must allow it",),
    ),
    no_ops=(),
    new=(),
    fixed=(UNKNOWN_KEY,),
)
ADDED = RecipeDifference(
    "recipes/qwen3-8b",
    Status.ADDED,
    verdict_after=Verdict.FITS,
    effects=one_sided(added=True),
    new=(WARNED, NOTE),
)
REMOVED = RecipeDifference(
    "recipes/old", Status.REMOVED, verdict_before=Verdict.TIGHT, effects=one_sided(added=False), fixed=(NOTE,)
)
RENAMED = RecipeDifference(
    "recipes/new-name",
    Status.RENAMED,
    before_name="recipes/old-name",
    verdict_before=Verdict.FITS,
    verdict_after=Verdict.FITS,
    effects=effects(),
    experiment=Experiment.SAME_ORDER,
    compatibility=Compatibility(True),
)
UNREADABLE = RecipeDifference(
    "recipes/broken",
    Status.UNREADABLE,
    verdict_before=Verdict.FITS,
    problems=("after: recipes/broken/axolotl.yaml:3: this is no YAML: a mapping ends where a value is expected",),
)
NOT_ESTIMATED = replace(
    CHANGED,
    name="recipes/no-machine",
    verdict_before=Verdict.UNKNOWN,
    verdict_after=Verdict.UNKNOWN,
    effects=(),
    compatibility=Compatibility(None, (STACK,), (DECAY,)),
    kept=(),
)
UNCHANGED = RecipeDifference(
    "recipes/same",
    Status.UNCHANGED,
    verdict_before=Verdict.FITS,
    verdict_after=Verdict.FITS,
    effects=effects(),
    experiment=Experiment.SAME_ORDER,
    compatibility=Compatibility(True),
)
SEVERAL = (ADDED, CHANGED, DIFFERENT, NOT_ESTIMATED, RENAMED, REMOVED, TOO_BIG, UNCHANGED, UNREADABLE)


def many(count: int) -> tuple[RecipeDifference, ...]:
    """Recipes of all kinds, by name."""
    rows = [replace(SEVERAL[i % len(SEVERAL)], name=f"recipes/family-{i // 8:02}/recipe-{i:02}") for i in range(count)]
    return tuple(sorted(rows, key=lambda row: row.name))


def review(*rows: RecipeDifference) -> Review:
    return Review("main", "HEAD", rows)


REVIEWS: dict[str, Review] = {
    "changed": review(CHANGED),
    "too-big": review(TOO_BIG),
    "different": review(DIFFERENT),
    "added": review(ADDED),
    "removed": review(REMOVED),
    "renamed": review(RENAMED),
    "unreadable": review(UNREADABLE),
    "not-estimated": review(NOT_ESTIMATED),
    "nothing": review(UNCHANGED),
    "several": review(*SEVERAL),
    "sixty": review(*many(60)),
}


def hostile(said: str) -> RecipeDifference:
    """A recipe that says this wherever a recipe can say something."""
    place = f"{said}:7"
    change = Change(said, said, (said, {said: said}), place, place)
    statement = Statement("RV103", Weight.ALARM, said, (said,), place)
    found = Finding("RG101", Severity.ERROR, "memory", said or "?", said, field=said, where=place)
    return RecipeDifference(
        said,
        Status.RENAMED,
        before_name=said or "?",
        verdict_before=Verdict.FITS,
        verdict_after=Verdict.DOES_NOT_FIT,
        changes=(change,),
        effects=tuple(replace(one, because=said) for one in effects(factor=2.0)),
        meaning=(statement,),
        experiment=Experiment.DIFFERENT,
        compatibility=Compatibility(None, (statement,), (change,), (said,), True, (said,)),
        no_ops=(statement,),
        new=(found,),
        fixed=(found,),
        kept=(found,),
        problems=(said,),
    )
