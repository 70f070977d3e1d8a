"""Real recipes of the corpus and the gallery, and ways to break them. A mutation takes bytes and a random generator.

files = broken(Random(7), project(Random(7)))
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
Files = dict[str, bytes]
# Names that a mutated content is also tried under: every reader must bear every content.
NAMES = (
    "axolotl.yaml", "accelerate.yaml", "deepspeed.json", "train.json", "args.json", "args.yaml", "recipe.yaml",
    "recipe.lock", "launch.sh", "launch.slurm", "requirements.txt", "config", ".recipegen.yaml", "hw.yaml",
)  # fmt: skip
_GALLERY = (
    "8x-rtx-4090/llama-3.1-8b-instruct-full-4k-accelerate",
    "8x-rtx-4090/llama-3.1-8b-instruct-lora-4k-accelerate",
    "8x-rtx-5090-2-nodes/qwen3-30b-a3b-instruct-2507-full-4k",
    "4x-rtx-4090/qwen3-14b-qlora-4k",
)
_POLICY = b"""severities: {RG705: error, RG714: "off"}
strict: false
accept_tight: true
budgets: {max_peak_gib: 30, max_hours: 48, max_host_gb: 700, max_disk_gb: 2000}
review: {fail_on: [does_not_fit, new_error]}
"""
# What stands where a value was. As YAML, JSON and words of a command line.
VALUES = (
    "-1", "0", "1", "-0.0", "1e308", "1e999", "-1e999", ".inf", "-.inf", ".nan", "NaN", "Infinity", "nan", "inf",
    "true", "null", "~", "''", '""', "[]", "{}", "[[]]", "[1, a, null, {b: c}]", "{a: b}", "{a: {b: [c]}}", '"x"',
    '"NaN"', '"1e999"', '"-1"', '"true"', "auto", '"auto"', '["auto"]', "[null]", "[0]", "{0: 1}", "{null: 1}",
    "1" + "0" * 30, "-1" + "0" * 30, "9" * 400, "9" * 5000, "0.1e-400", "1" + "0" * 18, str(2**31), str(2**63),
    str(2**64), "0x7fffffffffffffffffffff", "0o17", "017", "1_000", "12:30:45", "1:2:3:4:5:6:7:8:9",
    "2001-01-01", "2001-01-01t00:00:00Z", "2020-99-99", "0001-01-01", "!!binary aGVsbG8=", "!!set {a, b}",
    "!!python/object/apply:os.system ['touch CANARY']", "!!int x", "!!float x", "!!timestamp x", "! x", "!x y",
    "*a", "&a [*a]", "&a {b: *a}", "<<", "{<<: {a: b}}", "{<<: [1]}", '"\\ud800"', '"\\x00"', '"\\0"', "'\u202e'",
    "\U0001f4a9", "é" * 300, "x" * 3000, '"' + "(a+)+" * 20 + '$"', '"(?P<a"', '"[a-z"', '"(?:" ', "'(x+x+)+y'",
    "$(touch CANARY)", "`touch CANARY`", "${X:-$(touch CANARY)}", "$((1<<63))", "$((1/0))", "$((9**99**99))",
    "${X", "$X", "${!X}", "<(touch CANARY)", "; touch CANARY", "| touch CANARY", "&& touch CANARY", "'", '"', "\\",
    "<<EOF", "../../../../etc/passwd", "/dev/zero", "/dev/stdin", "~root", "/proc/self/mem", "a" * 300 + "/b", "a/../b",
    ".", "..", "/", "//", "%s%n", "{x}", "{0}", "{}{", "%(x)s", "\t", "- a", ": b", "? a", "| \n  x", "> \n  x",
)  # fmt: skip
_YAML_LINE = re.compile(r"^(\s*(?:- )?[\w.\"'-]+\s*:)(.*)$")
_MOST_PARSED = 20_000  # bytes; beyond it PyYAML's own parser takes seconds
_MOST_PLACES = 5_000  # an alias bomb has no end of them
_TOKEN = re.compile(r"[\w.+-]+|\s+|[^\w\s]")


@cache
def projects() -> tuple[Mapping[str, bytes], ...]:
    """Files of every public bug report, of gallery recipes of every format, and of machines."""
    cases = yaml.safe_load((ROOT / "tests/corpus/bug-reports.yaml").read_text(encoding="utf-8"))["cases"]
    found = [{name: text.encode() for name, text in case["files"].items()} for case in cases if "files" in case]
    for name in _GALLERY:
        folder = ROOT / "recipes" / name
        found.append({path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix != ".md"})
    machine = (ROOT / "tests/corpus/hardware/cpu-2x.yaml").read_bytes()
    found.append({**found[-1], ".recipegen.yaml": _POLICY, "hw.yaml": machine})
    return tuple(found)


def project(random: Random) -> Files:
    return dict(random.choice(projects()))


def broken(random: Random, files: Files) -> Files:
    """The files with one or a few of them mutated, sometimes under the name of another format."""
    changed = dict(files)
    for name in random.sample(sorted(changed), min(len(changed), random.choice((1, 1, 1, 2, 3)))):
        content = changed[name]
        for _ in range(random.choice((1, 1, 2, 4))):
            content = random.choice(MUTATIONS)(content, random)
        if random.random() < 0.1:
            del changed[name]
            name = random.choice(NAMES)
        changed[name] = content
    return changed


# --- one file


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode(
        "utf-8", "surrogatepass" if re.search("[\ud800-\udc7f\udd00-\udfff]", text) else "surrogateescape"
    )


def value_of_line(content: bytes, random: Random) -> bytes:
    """Another value behind a key of a YAML file."""
    lines = _text(content).split("\n")
    keyed = [at for at, line in enumerate(lines) if _YAML_LINE.match(line)]
    for at in random.sample(keyed, min(len(keyed), random.choice((1, 1, 2, 5)))):
        lines[at] = _YAML_LINE.sub(lambda match: f"{match[1]} {random.choice(VALUES)}", lines[at])
    return _bytes("\n".join(lines))


def value_of_tree(content: bytes, random: Random) -> bytes:
    """Another value, or type of value, somewhere inside of a JSON or YAML document, written again."""
    write: Callable[[Any], str] = json.dumps
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError):
        if len(content) > _MOST_PARSED:
            return token(content, random)
        write = yaml.safe_dump
        try:
            tree = yaml.safe_load(content)
        except Exception:  # whatever PyYAML says of a file that is broken already
            return token(content, random)
    places: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting and len(places) < _MOST_PLACES:
        here = waiting.pop()
        inner = here.items() if isinstance(here, dict) else enumerate(here) if isinstance(here, list) else ()
        for key, item in inner:
            places.append((here, key))
            waiting.append(item)
    for here, key in random.sample(places, min(len(places), random.choice((1, 1, 2, 6)))):
        here[key] = random.choice(_TREE_VALUES) if random.random() < 0.8 else _near(here[key], random)
    try:
        return write(tree).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError, yaml.YAMLError):
        return content


_TREE_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63), 10**30, 10**400, 1e308, -1e308, 1e-320, float("inf"),
    float("nan"), 0.5, "", "auto", "none", "NaN", "1e999", "-1", "0", "x", "x" * 2000, "\u202e", "\x00", "\ud800",
    [], {}, [None], [[]], [[], {}], [0, "a"], ["a"] * 50, {"a": "b"}, {"": ""}, [{}], [{"path": None}], "(a+)+$", "[",
    "2001-01-01", "12:30", "[1, 2]", '{"a": 1}', "a,b", ["x", 1.5, None],
)  # fmt: skip


def _near(value: Any, random: Random) -> Any:
    """The same in another type or size."""
    ways: list[Any] = [[value], {"a": value}, str(value), [value, value]]
    if isinstance(value, (int, float)):
        ways += [-value, value * 10**9, value + 1, str(value)[:300]] if abs(value) < 10**300 else []
    return random.choice(ways)


def token(content: bytes, random: Random) -> bytes:
    """Tokens exchanged, removed, repeated, or replaced by a value."""
    tokens = _TOKEN.findall(_text(content)) or [""]
    for _ in range(random.choice((1, 1, 2, 5))):
        a, b = random.randrange(len(tokens)), random.randrange(len(tokens))
        way = random.randrange(4)
        if way == 0:
            tokens[a], tokens[b] = tokens[b], tokens[a]
        elif way == 1:
            tokens[a] = ""
        elif way == 2:
            tokens[a] *= random.choice((2, 3, 50))
        else:
            tokens[a] = random.choice(VALUES)
    return _bytes("".join(tokens))


def cut(content: bytes, random: Random) -> bytes:
    at = random.randrange(len(content) + 1)
    return content[:at] if random.random() < 0.7 else content[at:]


def double(content: bytes, random: Random) -> bytes:
    """A piece twice, or the whole file."""
    lines = content.split(b"\n")
    at, length = random.randrange(len(lines)), random.choice((1, 1, 3, len(lines)))
    where = random.randrange(len(lines) + 1)
    return b"\n".join([*lines[:where], *lines[at : at + length], *lines[where:]])


def noise(content: bytes, random: Random) -> bytes:
    """Bytes exchanged or put in."""
    data = bytearray(content)
    for _ in range(random.choice((1, 3, 20))):
        at = random.randrange(len(data) + 1)
        data[at : at + random.choice((0, 1))] = random.choice(
            (bytes([random.randrange(256)]), b"\0", b"\r", b"\n", b"\t", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\x1b[31m",
             b"'", b'"', b"\\", b"\xe2\x80\xa8", b"\x85", b"#", b"{", b"}", b"[", b"]", b":", b"&a ", b"*a", b"<<: ")
        )  # fmt: skip
    return bytes(data)


def encoding(content: bytes, random: Random) -> bytes:
    text = content.decode("utf-8", "replace")
    return random.choice(
        (
            lambda: text.encode("utf-16"),
            lambda: text.encode("utf-16-le"),
            lambda: text.encode("utf-32"),
            lambda: ("é" + text).encode("latin-1", "replace"),
            lambda: text.encode("cp037", "replace"),
            lambda: b"\xef\xbb\xbf" + content,
            lambda: b"\xef\xbb\xbf\xef\xbb\xbf" + content,
            lambda: content.replace(b"\n", b"\r\n"),
            lambda: content.replace(b"\n", b"\r"),
            lambda: content.replace(b"\n", b"\n\0"),
            lambda: content.replace(b" ", b"\t"),
            lambda: content.replace(b" ", b"\xc2\xa0"),
            lambda: b"\x1f\x8b\x08" + content,
        )
    )()


def bomb(content: bytes, random: Random) -> bytes:
    """Something that grows or never ends, before, behind or instead of the content."""
    piece = random.choice(BOMBS)()
    return random.choice((piece, content + b"\n" + piece, piece + b"\n" + content))


BOMBS: tuple[Callable[[], bytes], ...] = (
    lambda: b"[" * 10_000,
    lambda: b'{"a":' * 10_000,
    lambda: b"a: " + b"[" * 500 + b"]" * 500,
    lambda: b"- " * 5_000 + b"x",
    lambda: b"base_model: " + b"(" * 2_000,
    lambda: b"\n".join(b" " * depth + b"a:" for depth in range(300)),
    lambda: b"a0: &a0 [x, x]\n" + b"\n".join(b"a%d: &a%d [*a%d, *a%d]" % (n, n, n - 1, n - 1) for n in range(1, 40)),
    lambda: b"a: &a\n  <<: *a\n  b: c",
    lambda: b"a: &a {b: &b {<<: *a}, <<: *b}",
    lambda: b"a: &a {x: 1}\nb: {<<: [" + b"*a, " * 2_000 + b"*a]}",
    lambda: b"%YAML 9.9\n---\na: b",
    lambda: b"--- a\n" * 500,
    lambda: b"sequence_len: " + b"9" * 100_000,
    lambda: b'{"sequence_len": ' + b"9" * 100_000 + b"}",
    lambda: b"a: 1" + b":59" * 20_000,
    lambda: b"? " * 2_000,
    lambda: b"".join(b"k%d: v\n" % n for n in range(3_000)),
    lambda: b"torchrun " + b"$(" * 3_000 + b")" * 3_000,
    lambda: b"torchrun " + b'"$(' * 3_000,
    lambda: b"accelerate launch " + b"\\\n" * 3_000,
    lambda: b"".join(b"cat <<E%d\n" % n for n in range(500)),
    lambda: b"X=$X$X\n" * 200 + b"torchrun $X",
    lambda: b"X=aaaaaaaaaa\n" + b"X=$X$X$X$X\n" * 60 + b"torchrun train.py $X",
    lambda: b"accelerate launch train.py " + b"--a=b " * 5_000,
    lambda: b"if true; then " * 1_000,
    lambda: b"f() { " * 1_000 + b"torchrun x" + b"; }" * 1_000 + b"; f",
    lambda: b"f() { f; f; }; f; torchrun x",
    lambda: b"for i in $(seq 1 999999999); do torchrun train.py --seed $i; done",
    lambda: b"torchrun train.py {a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{1..99999}",
    lambda: b"#SBATCH --nodes=99999999999999999999\n#SBATCH --gres=gpu:-1\nsrun torchrun x.py\n" * 50,
)

MUTATIONS: tuple[Callable[[bytes, Random], bytes], ...] = (
    value_of_line, value_of_line, value_of_line, value_of_tree, value_of_tree, value_of_tree, token, token, cut, double,
    noise, encoding, bomb,
)  # fmt: skip
