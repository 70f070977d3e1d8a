"""How people write what a column of a measurements file says: one reading for every spelling of the same thing.

A text that has no reading here gives None, and the row is then named as not expressible: nothing is guessed.
"""

from __future__ import annotations

import re

from recipegen.spec import Method

_NUMBER = re.compile(
    r"[~≈]?\s*(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*\.?\d+(?:e[+-]?\d+)?|\d+\.)\s*(?P<unit>gib|gb|g|mib|mb)?\*?",
    re.IGNORECASE,
)
_WHOLE = re.compile(
    r"(?P<number>\d{1,3}(?:,\d{3})+|\d{1,9})(?:\.0{1,9})?\s*(?P<k>k)?\s*(?:tokens?|per (?:device|gpu)|/\s*gpu)?",
    re.IGNORECASE,
)
_NO = {"no", "none", "false", "off", "not", "without", "disabled", "n", "0"}
_YES = {"yes", "true", "on", "full", "enabled", "y", "1", "packed", "multipack", "sample", "padding-free", "unsloth"}
#: optimizers with other states than Adam's two moments
_NOT_ADAM = re.compile(
    r"adafactor|ademamix|galore|mini|apollo|badam|lomo|lion|muon|sgd|came|shampoo|soap|prodigy|sophia"
)
_FULL = re.compile(r"(?:full|fft)(?:[- ](?:parameter[- ])?(?:ft|fine[- ]?tun(?:e|ing)|sft))?")
_ADAPTER = re.compile(r"(?P<quantised>q?)(?:rs)?(?P<kind>lora|dora)\+?")


def number(text: str) -> tuple[float, str] | None:
    """A finite number that is not negative, and the unit written beside it (lower case, may be empty)."""
    found = _NUMBER.fullmatch(text.strip())
    if not found:
        return None
    value = float(found["number"].replace(",", ""))
    return (value, (found["unit"] or "").lower()) if value < float("inf") else None


def whole(text: str) -> int | None:
    """A whole number below a billion: `4096`, `4096.0`, `4,096`, `4k`, `2 per device`. A bound (`max 4096`) is none."""
    found = _WHOLE.fullmatch(text.strip())
    value = int(found["number"].replace(",", "")) * (1024 if found["k"] else 1) if found else None
    return value if value is not None and value < 10**9 else None


def method(text: str) -> tuple[Method, bool] | None:
    """The method, and whether its adapters are DoRA's."""
    word = text.strip().lower()
    found = _ADAPTER.fullmatch(word)
    if found:
        return Method.QLORA if found["quantised"] else Method.LORA, found["kind"] == "dora"
    return (Method.FULL, False) if _FULL.fullmatch(word) else None


def yes(text: str) -> bool | None:
    """Yes or no, by the first word."""
    word = re.split(r"[\s(,;:]", text.strip().lower(), maxsplit=1)[0]
    return True if word in _YES else False if word in _NO else None


def checkpointing(text: str) -> str | None:
    """`yes`, `no` or `selective`."""
    word = text.strip().lower()
    if word.startswith("selective"):
        return "selective"
    if re.fullmatch(r"(?:non-?)?reentrant|(?:full )?recompute|full ac", word):
        return "yes"
    said = yes(word)
    return None if said is None else "yes" if said else "no"


def fused_attention(text: str) -> bool | None:
    """Whether a kernel keeps the scores to itself."""
    word = text.strip().lower()
    if re.match(r"(?:no|without|none|eager|math|native|vanilla|manual)\b", word):
        return False
    if re.search(r"flash|sdpa|\bfa[23]?\b|\bte\b|transformer.?engine|flex|xformers|memory.?efficient|cudnn", word):
        return True
    return None


def adam_bits(text: str) -> int | None:
    """32, 8 or 4: what an Adam keeps its moments in. None for an optimizer with other states."""
    word = text.lower()
    if _NOT_ADAM.search(word) or not re.search(r"adam|lora-fa", word):
        return None
    return 4 if re.search(r"4[- ]?bit", word) else 8 if re.search(r"8[- ]?bit", word) else 32


def loss(text: str) -> str:
    """`fused_linear`, `cut`, `none`, or the text itself, for the table of frameworks."""
    word = text.strip().lower()
    if re.match(r"liger|fused[_ -]linear|flce", word):
        return "fused_linear"
    if re.match(r"(?:apple )?(?:cce|cut)", word):
        return "cut"
    return "none" if yes(word) is False or re.match(r"(?:stock|default|standard|torch|pytorch)\b", word) else text


def strategy(text: str) -> str:
    """A strategy in the words of `benchmarks.layout`."""
    word = re.sub(r"\b(?:deepspeed|pytorch|accelerate|torch|hf|q?lora)\b", " ", text.lower())
    word = re.sub(r"zero[ _-]*(?:stage[ _-]*)?([123])", r"zero\1", word)
    word = re.sub(r"fsdp(?:1\b| v1\b|[ _-]?(?=2\b))", "fsdp", word)
    word = re.sub(r"[ _(]*full[ _-]shard(?:ing)?\)?", "", word)
    word = re.sub(
        r"[ _+(w/]*(?:with )?(?:(?:cpu|nvme|param(?:eter)?|optimi[sz]er)[ _-]+)*offload(?:ing)?\)?", "_offload", word
    )
    word = re.sub(r"\b(?:single|one|1)[ -_]?gpu\b|^none$", "single", word)
    word = re.sub(r"^\s*(?:dp|data[ -]parallel)\s*$", "ddp", word)
    return word.strip()


def memory_metric(text: str) -> str:
    """`allocated`, `reserved`, or `unknown` for what is neither (what nvidia-smi prints, say)."""
    word = text.lower()
    allocated, reserved = "alloc" in word or word == "active", "reserv" in word
    return "unknown" if allocated == reserved else "allocated" if allocated else "reserved"


def outcome(text: str) -> str:
    """`ran`, `oom`, or the text itself."""
    word = text.strip().lower()
    if re.search(r"\boom\b|out[ -]of[ -]memory", word):
        return "oom"
    return "ran" if re.match(r"(?:ran|ok|success|completed)\b", word) else text.strip()
