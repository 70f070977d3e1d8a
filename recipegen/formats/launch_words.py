"""The launchers that a command can be, and their options by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from recipegen.formats import arguments_read, documents
from recipegen.formats.shell_words import MAX_DEPTH, Variables, Word, assignment, expand, scan

# Options of torchrun and deepspeed that are facts under their own name.
PLAIN = (
    "rdzv_backend",
    "rdzv_endpoint",
    "rdzv_id",
    "standalone",
    "hostfile",
    "include",
    "exclude",
    "no_ssh",
    "launcher_kind",
)
THREADS = "num_cpu_threads_per_process"
# Flags without a value: of accelerate launch 1.13, torchrun 2.13 and deepspeed 0.18.
_FLAGS = frozenset(
    [
        "cpu",
        "debug",
        "downcast_bf16",
        "dynamo_use_dynamic",
        "dynamo_use_fullgraph",
        "dynamo_use_regional_compilation",
        "enable_cpu_affinity",
        "fp8_use_autocast_during_eval",
        "h",
        "help",
        "m",
        "module",
        "multi_gpu",
        "no_python",
        "no_tpu_cluster",
        "q",
        "quiet",
        "same_network",
        "tpu",
        "tpu_cluster",
        "tpu_use_sudo",
        "use_deepspeed",
        "use_fsdp",
        "use_megatron_lm",
        "use_parallelism_config",
        "run_path",
        "standalone",
        "virtual_local_rank",
        "no_local_rank",
        "no_ssh",
        "no_ssh_check",
        "force_multi",
        "save_pid",
        "elastic_training",
        "bind_cores_to_rank",
    ]
)
_ENGINES = {
    "use_fsdp": "FSDP",
    "use_deepspeed": "DEEPSPEED",
    "multi_gpu": "MULTI_GPU",
    "use_megatron_lm": "MEGATRON_LM",
}
_SECTIONS = ("fsdp", "parallelism_config", "dynamo", "fp8", "megatron_lm")
_IN_DEEPSPEED = ("zero", "offload_", "gradient_", "deepspeed_")
_DEEPSPEED_NAMES = {"num_nodes": "nnodes", "num_gpus": "nproc_per_node", "num_accelerators": "nproc_per_node"}
_TRAINERS = {"axolotl": "axolotl", "llamafactory-cli": "llamafactory", "llamafactory": "llamafactory", "trl": "trl"}
_TORCH_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_NOT_LAUNCHES = frozenset({"echo", "printf", "pip", "which", "command", "type", "hf", "cat", "mkdir", "cd", "fail"})
_PREPARES = ("preprocess", "--prepare", "inference", "evaluate", "merge-lora", "merge_lora", "fetch")
_WRAPPERS = 64  # words before the launcher that are looked through: srun and its options
_MOST_WORDS = 10_000  # of one command, once expanded
_FILES = (".yaml", ".yml", ".json")


@dataclass
class Found:
    """One launch. `options` are accelerate's own file keys, or the launcher's options; `lines` by dotted key."""

    launcher: str
    strength: int  # of several in one script the strongest counts
    options: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class _Text:
    """A word, expanded: `text` None where it cannot be known."""

    text: str | None
    word: Word


def find(words: Sequence[Word], variables: Variables, depth: int = MAX_DEPTH) -> Found | None:
    """The launch that a command is, behind variables, srun, nohup and their kin; None for any other command."""
    environment: dict[str, str | None] = {}
    first = 0
    while first < len(words) and (pair := assignment(words[first].raw)):
        environment[pair[0]] = expand(pair[1], variables)
        first += 1
    texts = _expanded(words[first:], variables)
    if not texts or texts[0].text in _NOT_LAUNCHES:
        return None
    for start in range(min(len(texts), _WRAPPERS)):
        found = _at(texts, start, variables, depth)
        if found:
            return _with_environment(found, environment, texts[:start])
    return None


def _with_environment(found: Found, environment: dict[str, str | None], before: Sequence[_Text]) -> Found:
    for item in before:  # env NAME=value accelerate launch
        pair = assignment(item.word.raw)
        if pair and item.text is not None:
            environment[pair[0]] = item.text.partition("=")[2]
    found.environment |= environment
    return found


def _expanded(words: Sequence[Word], variables: Variables) -> list[_Text]:
    """The words without redirections, arrays spelt out."""
    result: list[_Text] = []
    target = False
    for word in words:
        if len(result) > _MOST_WORDS:
            break
        bare = word.raw.lstrip("0123456789&")
        if target or bare[:1] in ("<", ">"):
            target = not target and not bare.strip("<>|")  # `> file`: the file is the next word
            continue
        name = word.raw.strip('"').removeprefix("${").removesuffix("[@]}").removesuffix("[*]}")
        if name in variables.arrays and "[" in word.raw:
            result += [_Text(expand(item.raw, variables), item) for item in variables.arrays[name]]
            continue
        text = expand(word.raw, variables)
        if text is not None and word.raw.startswith("$") and len(text.split()) != 1:
            result += [_Text(part, Word(part, word.line)) for part in text.split()]  # unquoted: the shell splits it
        else:
            result.append(_Text(text, word))
    return result


def _at(texts: Sequence[_Text], start: int, variables: Variables, depth: int) -> Found | None:
    """The launch whose launcher stands at `start`."""
    name = (texts[start].text or "").rpartition("/")[2]
    following = texts[start + 1].text if start + 1 < len(texts) else None
    if name in ("bash", "sh") and following in ("-c", "-lc") and start + 2 < len(texts) and depth:
        inner = texts[start + 2].text
        commands = scan(inner).commands if inner is not None else []
        return next((found for one in commands if (found := find(one.words, variables, depth - 1))), None)
    if name == "accelerate" and following == "launch":
        return _launch("accelerate", texts[start + 2 :])
    if name == "accelerate-launch":
        return _launch("accelerate", texts[start + 1 :])
    if name in ("torchrun", "deepspeed"):
        return _launch(name, texts[start + 1 :])
    if name in _TRAINERS and following not in (None, *_PREPARES):
        return _trainer(_TRAINERS[name], texts[start + 2 :])
    if name.startswith("python"):
        return _python(texts[start + 1 :])
    return None


def _python(texts: Sequence[_Text]) -> Found | None:
    first = 0
    while first < len(texts) and (texts[first].text or "").startswith("-") and texts[first].text != "-m":
        first += 1  # python -u
    rest = texts[first:]
    if rest and rest[0].text == "-m" and len(rest) > 1:
        module = rest[1].text or ""
        if module in _TORCH_MODULES:
            return _launch("torchrun", rest[2:])
        if module == "accelerate.commands.launch":
            return _launch("accelerate", rest[2:])
        if module.startswith("axolotl.cli.") and not module.endswith(_PREPARES):
            found = _trainer("axolotl", rest[2:])
            found.facts["module"] = module
            return found
        return None
    if not rest or not (rest[0].text or "").endswith(".py") or any(item.text in _PREPARES for item in rest):
        return None
    found = Found("python", strength=0)
    found.facts["script"] = rest[0].text
    _script_arguments(found, rest[1:])
    return found


def _trainer(name: str, texts: Sequence[_Text]) -> Found:
    found = Found(name, strength=1)
    if name == "axolotl":
        found.facts["trainer"] = name
    _script_arguments(found, texts)
    return found


def _launch(name: str, texts: Sequence[_Text]) -> Found | None:
    """Options up to the script or module, then its arguments."""
    found = Found(name, strength=2)
    i, module = 0, False
    while i < len(texts):
        text = texts[i].text
        if text is None or not text.startswith("-"):
            break
        key, equals, value = text.lstrip("-").partition("=")
        key, word = key.replace("-", "_"), texts[i].word
        i += 1
        if key in ("m", "module"):
            module = True
        elif equals:
            _option(found, key, value, word)
        elif key in _FLAGS or i >= len(texts):
            _option(found, key, True, word)
        else:
            _option(found, key, texts[i].text, texts[i].word)
            i += 1
    if i < len(texts):
        target = texts[i].text
        if any(item.text in _PREPARES for item in texts[i:]):
            return None
        if target is None:
            found.unknown["script"] = texts[i].word.raw
        else:
            found.facts["module" if module else "script"] = target
            if target.startswith("axolotl.cli."):
                found.facts["trainer"] = "axolotl"
        _script_arguments(found, texts[i + 1 :])
    return found


def _option(found: Found, key: str, value: str | bool | None, word: Word) -> None:
    if value is None:
        found.unknown[key] = word.raw
        return
    if found.launcher != "accelerate":
        key = _DEEPSPEED_NAMES.get(key, key)
        key = "launcher_kind" if key == "launcher" else key
        found.options[key] = value
        found.lines[key] = word.line
        return
    if key in ("config_file", THREADS):
        found.facts[key] = value
        found.lines[key] = word.line
        return
    if key in _ENGINES:
        key, value = "distributed_type", _ENGINES[key]
    elif key == "cpu":
        key = "use_cpu"
    elif key == "use_parallelism_config":
        return
    section = next(
        (f"{name}_config".replace("_config_config", "_config") for name in _SECTIONS if key.startswith(name)), ""
    )
    if key.startswith(_IN_DEEPSPEED):
        section = "deepspeed_config"
    target = found.options.setdefault(section, {}) if section else found.options
    target[key] = value
    found.lines[f"{section}.{key}" if section else key] = word.line


def _script_arguments(found: Found, texts: Sequence[_Text]) -> None:
    """The script's own arguments: all as words, files by their names, and what the Transformers trainer takes."""
    words = tuple(item.text if item.text is not None else item.word.raw for item in texts)
    if words:
        found.facts["arguments"] = words
    files = tuple(word for word in words if word.endswith(_FILES) and not word.startswith("-"))
    if files:
        found.facts["config_files"] = files
    i = 0
    while i < len(texts):
        text, line = texts[i].text, texts[i].word.line
        i += 1
        if text is None:
            continue
        key, equals, value = text.lstrip("-").partition("=")
        key = key.replace("-", "_")
        if not (text.startswith("--") or equals) or not arguments_read.understands(key):
            continue
        values: list[str | None] = [value] if equals else []
        while not equals and i < len(texts) and not (texts[i].text or "").startswith("--"):
            values.append(texts[i].text)
            i += 1
        if None in values:
            found.unknown[key] = texts[i - 1].word.raw
            continue
        found.arguments[key] = _argument([item for item in values if item is not None])
        found.lines[key] = line


def _argument(values: list[str]) -> Any:
    """As HfArgumentParser has it: a flag alone is true, several words are a list, JSON is a mapping."""
    if len(values) != 1:
        return values or True
    if values[0].startswith("{"):
        return documents.read_json(values[0].encode(), "").values or values[0]
    return values[0]
