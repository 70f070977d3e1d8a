"""launch.sh, batch files for Slurm and single command lines as they are found: what starts, how often, with what set.

Nothing is run. What only a running shell could know stays unknown: no value, and the raw word in the fact `unknown`.
Of `${NAME:-word}` the word is taken, and NAME listed in `overridable`. The options of `accelerate launch` mean what the
keys of its file mean (accelerate_read.py); arguments of the Transformers trainer that a script is given mean what they
mean in a file (arguments_read.py).

| fact | type | meaning |
|---|---|---|
| launcher | str | accelerate, torchrun, deepspeed, axolotl, llamafactory, trl, python |
| launches | int | launch commands found; the first of the strongest kind is read |
| trainer | str | axolotl, when its module or command is what starts |
| module, script | str | what the launcher starts |
| config_file | str | of `accelerate launch --config_file` |
| config_files | tuple of str | YAML and JSON files among the script's arguments |
| arguments | tuple of str | the script's arguments; raw words where unknown |
| num_machines, processes_per_node, num_processes, machine_rank | int | of the launcher |
| main_process_ip, rdzv_backend, rdzv_endpoint, rdzv_id | str | of the launcher |
| hostfile, include, exclude, launcher_kind | str | of deepspeed; the last is its --launcher (pdsh, ...) |
| standalone, no_ssh | bool | of the launcher |
| environment | mapping of str to str or None | every exported variable; None: not known |
| sbatch | mapping of str to str | the `#SBATCH` directives by their long names; "" for a flag |
| overridable | tuple of str | variables of the caller that win over what was read |
| sourced | tuple of str | files that the script reads in; they may set more |
| unknown | mapping of str to str | option or variable -> raw word that cannot be known |

And the facts of accelerate_read.py and arguments_read.py.
"""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from recipegen.catalog.bounded_yaml import LARGE
from recipegen.formats import accelerate_read, arguments_read, launch_words, launcher
from recipegen.formats.collector import Collector, Key, Refused, whole
from recipegen.formats.documents import Document
from recipegen.formats.launch_words import Found
from recipegen.formats.reading import Problem, Reading
from recipegen.formats.shell_words import Command, Variables, Word, array, assignment, expand, scan, set_text
from recipegen.spec import EnvVar, Recipe

FORMAT = "launch"
THREADS = "OMP_NUM_THREADS"
_OPENS, _CLOSES = {"if", "for", "while", "until", "case", "select"}, {"fi", "done", "esac"}
_FILLERS = {"then", "do", "else", "elif", "!", "time", "{", "}"}  # a function is taken to be called
_TESTS = {"[[", "[", "test"}
_EXPORTS = {"export", "declare", "typeset"}
_SHORT = {
    "N": "nodes",
    "n": "ntasks",
    "c": "cpus-per-task",
    "G": "gpus",
    "p": "partition",
    "t": "time",
    "J": "job-name",
}
_LAST_NUMBER = re.compile(r"(?:.*:)?(\d{1,6})(?:\(.*\))?\Z")  # gpu:a100:8
_PER_MACHINE = re.compile(r"gpu|cpu|xpu|auto|\d+:\d+")  # torchrun: what the machine has, or an elastic range
# What launch.sh exports of itself; (name, value, reason) as it stands there.
_OWN = {(variable.name, variable.value, variable.reason) for variable in launcher._DEFAULTS} | {
    ("CUDA_VISIBLE_DEVICES", "0", "the recipe is for one GPU")
}
_OFFLINE = ("HF_HUB_OFFLINE", "1")
_OWN_NAMES = {name for name, _, _ in _OWN} | {THREADS, _OFFLINE[0]}


def _environment_survives(recipe: Recipe) -> bool:
    """A variable without a value is a comment only, and one that launch.sh exports anyway keeps its first place."""
    variables = recipe.launch.environment
    return (
        bool(variables)
        and len({variable.name for variable in variables}) == len(variables)
        and all(
            variable.value
            and variable.name not in _OWN_NAMES
            and variable.reason == " ".join(variable.reason.split())
            and variable.reason.isprintable()
            for variable in variables
        )
    )


# Recipe field -> whether the launch.sh of a recipe states it.
CARRIES: Mapping[str, Callable[[Recipe], bool]] = {
    "launch.main_process_port": lambda _: True,
    "launch.omp_num_threads": lambda r: THREADS not in {variable.name for variable in r.launch.environment},
    "launch.environment": _environment_survives,
}
# The same of launch.slurm.
CARRIES_SLURM: Mapping[str, Callable[[Recipe], bool]] = {
    "parallelism.nodes": lambda _: True,
    "parallelism.gpus_per_node": lambda _: True,
}


@dataclass
class _Script:
    """What reading the commands in order has shown."""

    variables: Variables = field(default_factory=Variables)
    exports: dict[str, EnvVar] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    sourced: list[str] = field(default_factory=list)
    exporters: set[str] = field(default_factory=set)  # functions like launch.sh's `default NAME VALUE`
    launches: list[Found] = field(default_factory=list)


def read(content: bytes, name: str) -> Reading:
    """What a launch script, a batch file or one command line states."""
    problem, text = None, ""
    if len(content) > LARGE.size_bytes:
        problem = Problem("", name, f"larger than {LARGE.size_bytes // 1024} KiB")
    else:
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            problem = Problem("", name, f"not UTF-8 text (byte {error.start})")
    found = Collector(FORMAT, Document(name, {}, {}, problem))
    scanned = scan(text)
    if scanned.unclosed is not None:
        place = Document(name, {}, {("",): scanned.unclosed})
        found.document = place
        found.problem(("",), "a quote or bracket is opened here and never closed; nothing behind it is read")
    script = _Script()
    first = scanned.commands[0].line if scanned.commands else len(text.splitlines()) + 1
    sbatch = _sbatch(text, first)
    _slurm_variables(script, sbatch)
    _run_through(scanned.commands, script)
    _put_directives(found, name, sbatch)
    _put_environment(found, name, script)
    _put_launch(found, name, script)
    if script.unknown:
        found.facts["unknown"] = dict(script.unknown)
    if script.variables.defaulted:
        found.facts["overridable"] = tuple(sorted(script.variables.defaulted))
    if script.sourced:
        found.facts["sourced"] = tuple(script.sourced)
    found.document = Document(name, {})  # a script has no keys of its own to pass through
    return found.reading()


# --- commands in order


def _run_through(commands: list[Command], script: _Script) -> None:
    depth, tested, function, alone = 0, False, "", ""
    for command in commands:
        words = deque(command.words)
        if command.after == ")" and words[0].raw == "{":
            function = alone
        while words and (words[0].raw in _OPENS | _CLOSES | _FILLERS):
            raw = words.popleft().raw
            depth += (raw in _OPENS) - (raw in _CLOSES)
            if raw == "}":
                function = ""
        alone = command.words[0].raw if len(command.words) == 1 else ""
        certain = depth <= 0 and not (command.after == "||" or (command.after == "&&" and tested))
        if words:
            _command(list(words), command, script, function, certain)
            tested = words[0].raw in _TESTS or words[-1].raw in ("]]", "]")


def _command(words: list[Word], command: Command, script: _Script, function: str, certain: bool) -> None:
    first = words[0].raw
    if first in _EXPORTS or first in script.exporters:
        if function and any(word.raw.startswith('"$1=') for word in words):
            script.exporters.add(function)
        elif first in script.exporters and len(words) == 3:  # default NAME VALUE
            _export(script, words[1].raw, words[2], command, certain)
        elif first == "export" or any(word.raw.startswith("-") and "x" in word.raw for word in words[1:]):
            for word in words[1:]:
                pair = assignment(word.raw)
                if pair:
                    _export(script, pair[0], Word(pair[1], word.line), command, certain)
                elif word.raw in script.variables.texts:
                    _export(script, word.raw, Word(f"${word.raw}", word.line), command, certain)
        return
    if first in (".", "source") and len(words) > 1:
        script.sourced.append(words[1].raw)
        return
    if all(assignment(word.raw) or array(word.raw) is not None for word in words):
        for word in words:
            _assign(script, word, certain)
        return
    found = launch_words.find(words, script.variables)
    if found:
        script.launches.append(found)


def _assign(script: _Script, word: Word, certain: bool) -> None:
    items = array(word.raw)
    if items is not None:
        name, added = word.raw.partition("=")[0].removesuffix("+"), word.raw.partition("=")[0].endswith("+")
        if added and certain:
            script.variables.arrays.setdefault(name, []).extend(items)
        elif not added:
            script.variables.arrays[name] = items if certain else [*items, Word("$@", word.line)]
        return
    pair = assignment(word.raw)
    if pair:
        set_text(script.variables, pair[0], expand(pair[1], script.variables), certain)
        if pair[0] in script.exports:
            _export(script, pair[0], Word(pair[1], word.line), None, certain)


def _export(script: _Script, name: str, value: Word, command: Command | None, certain: bool) -> None:
    text = expand(value.raw, script.variables)
    set_text(script.variables, name, text, certain)
    text = script.variables.texts[name]
    if text is None:
        script.unknown[name] = value.raw
    reason = command.comment if command else script.exports[name].reason
    script.exports[name] = EnvVar(name, text, reason)
    script.lines[name] = value.line


# --- Slurm


def _sbatch(text: str, first: int) -> dict[str, tuple[str, int]]:
    """Long name -> (value, line) of the directives. Slurm looks no further than the first command."""
    found: dict[str, tuple[str, int]] = {}
    for number, row in enumerate(text.splitlines()[: first - 1], 1):
        if not row.startswith("#SBATCH"):
            continue
        try:
            words = shlex.split(row.removeprefix("#SBATCH"), comments=True)
        except ValueError:
            continue
        waiting = deque(words)
        while waiting:
            word = waiting.popleft()
            key, equals, value = word.lstrip("-").partition("=")
            if not word.startswith("--"):
                key, value, equals = word[1:2], word[2:], word[2:3]
            if not equals and waiting and not waiting[0].startswith("-"):
                value = waiting.popleft()
            found[_SHORT.get(key, key)] = (value, number)
    return found


def _gpus(sbatch: Mapping[str, tuple[str, int]]) -> tuple[int, int] | None:
    """GPUs of a node, and the line that says so."""
    for key in ("gpus-per-node", "gres"):
        value, line = sbatch.get(key, ("", 0))
        count = _LAST_NUMBER.match(value) if key != "gres" or value.startswith("gpu") else None
        if count and int(count[1]):
            return int(count[1]), line
    return None


def _slurm_variables(script: _Script, sbatch: Mapping[str, tuple[str, int]]) -> None:
    nodes, gpus = sbatch.get("nodes", ("", 0))[0], _gpus(sbatch)
    if nodes.isdecimal():
        script.variables.texts |= {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes}
    if gpus:
        script.variables.texts |= {"SLURM_GPUS_PER_NODE": str(gpus[0]), "SLURM_GPUS_ON_NODE": str(gpus[0])}


def _put_directives(found: Collector, name: str, sbatch: Mapping[str, tuple[str, int]]) -> None:
    if not sbatch:
        return
    found.facts["sbatch"] = {key: value for key, (value, _) in sbatch.items()}
    found.document = Document(name, {}, {(key,): line for key, (_, line) in sbatch.items()})
    nodes = sbatch.get("nodes", ("", 0))[0]
    if nodes.isdecimal() and len(nodes) < 7 and int(nodes):  # no cluster is larger
        found.value("parallelism.nodes", int(nodes), ("nodes",))
    gpus = _gpus(sbatch)
    if gpus:
        found.value("parallelism.gpus_per_node", gpus[0], ("gpus-per-node" if "gpus-per-node" in sbatch else "gres",))


# --- what the reading says


def _put_environment(found: Collector, name: str, script: _Script) -> None:
    if not script.exports:
        return
    found.document = Document(name, {}, {(key,): line for key, line in script.lines.items()})
    found.facts["environment"] = {variable.name: variable.value for variable in script.exports.values()}
    threads = script.exports.get(THREADS)
    if threads and threads.value is not None:
        try:
            found.value("launch.omp_num_threads", whole(1)(threads.value), (THREADS,))
        except Refused as refused:
            found.problem((THREADS,), str(refused))
    own = [
        variable
        for variable in script.exports.values()
        if variable.value is not None
        and variable.name != THREADS
        and (variable.name, variable.value) != _OFFLINE
        and (variable.name, variable.value, variable.reason) not in _OWN
    ]
    if own:
        found.value("launch.environment", tuple(own), (own[0].name,))


def _put_launch(found: Collector, name: str, script: _Script) -> None:
    if not script.launches:
        return
    launch = max(script.launches, key=lambda one: one.strength)  # the first of the strongest
    found.facts["launcher"] = launch.launcher
    found.facts["launches"] = len(script.launches)
    found.facts |= {key: value for key, value in launch.facts.items() if key != launch_words.THREADS}
    script.unknown |= launch.unknown
    lines = {tuple(key.split(".")): line for key, line in launch.lines.items()}
    if launch_words.THREADS in launch.facts:  # accelerate exports it as OMP_NUM_THREADS, over what was set
        found.document = Document(name, launch.facts, lines)
        found.key(Key("", whole(1), "launch.omp_num_threads"), (launch_words.THREADS,))
    if launch.launcher == "accelerate":
        _replace(found, accelerate_read.interpret(Document(name, launch.options, lines)))
    else:
        for key in ("nnodes", "nproc_per_node"):
            raw = launch.options.get(key)
            if isinstance(raw, str) and _PER_MACHINE.fullmatch(raw):
                script.unknown[key] = launch.options.pop(key)
        _put_processes(found, Document(name, launch.options, lines))
    if launch.arguments and launch.facts.get("trainer") != "axolotl":
        _replace(found, arguments_read.interpret(Document(name, launch.arguments, lines)))
    if launch.environment:
        found.facts["environment"] = {**found.facts.get("environment", {}), **launch.environment}


def _replace(found: Collector, reading: Reading) -> None:
    """What the command says wins over Slurm's directives, from which the command is started."""
    for field_name in reading.values:
        found.values.pop(field_name, None)
    found.absorb(reading)


_PROCESSES = (
    Key("nnodes", whole(1), "parallelism.nodes", "num_machines"),
    Key("nproc_per_node", whole(1), "parallelism.gpus_per_node", "processes_per_node"),
    Key("node_rank", whole(0), fact="machine_rank"),
    Key("master_port", whole(0), "launch.main_process_port"),
)


def _put_processes(found: Collector, document: Document) -> None:
    inner = Collector(FORMAT, document)
    inner.keys(_PROCESSES)
    for key, fact in (("master_addr", "main_process_ip"), *((k, k) for k in launch_words.PLAIN)):
        if inner.has(key):
            inner.take(key)
            inner.facts[fact] = inner.raw(key)
    machines, each = inner.facts.get("num_machines", 1), inner.facts.get("processes_per_node")
    if each is not None:
        inner.facts["num_processes"] = machines * each
    _replace(found, inner.reading())
