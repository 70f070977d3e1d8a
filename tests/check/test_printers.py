"""What is printed holds its format's rules, whatever a file says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from referencing import Registry, Resource

from recipegen.check import printers
from recipegen.check.checking import Checked, Options, Outcome, check
from recipegen.check.gather import Target
from recipegen.check.printers.shared import failure
from recipegen.cli import show

SCHEMAS = Path(__file__).parents[2] / "docs/schemas"
AXOLOTL = "base_model: Qwen/Qwen3-8B\nmicro_batch_size: 1\nlearning_rte: 1\nlora_rank: 8  # recipegen: ignore[RG701]\n"
# The parts of the SARIF 2.1.0 schema that are used here: required properties, types and enums, nothing beside them.
_TEXT = {
    "type": "object",
    "required": ["text"],
    "properties": {"text": {"type": "string"}},
    "additionalProperties": False,
}
SARIF: dict[str, Any] = {
    "type": "object",
    "required": ["version", "runs"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"enum": ["2.1.0"]},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["tool"],
                "additionalProperties": False,
                "properties": {
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name"],
                                "additionalProperties": False,
                                "properties": {
                                    "name": {"type": "string"},
                                    "semanticVersion": {"type": "string"},
                                    "informationUri": {"type": "string"},
                                    "rules": {
                                        "type": "array",
                                        "uniqueItems": True,
                                        "items": {
                                            "type": "object",
                                            "required": ["id"],
                                            "additionalProperties": False,
                                            "properties": {
                                                "id": {"type": "string"},
                                                "name": {"type": "string"},
                                                "shortDescription": _TEXT,
                                                "fullDescription": _TEXT,
                                                "help": _TEXT,
                                                "properties": {"type": "object"},
                                                "defaultConfiguration": {
                                                    "type": "object",
                                                    "properties": {
                                                        "level": {"enum": ["none", "note", "warning", "error"]}
                                                    },
                                                },
                                            },
                                        },
                                    },
                                },
                            }
                        },
                    },
                    "results": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["message"],
                            "additionalProperties": False,
                            "properties": {
                                "ruleId": {"type": "string"},
                                "ruleIndex": {"type": "integer", "minimum": -1},
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "message": _TEXT,
                                "partialFingerprints": {"type": "object", "additionalProperties": {"type": "string"}},
                                "locations": {
                                    "type": "array",
                                    "items": {
                                        "type": "object",
                                        "required": ["physicalLocation"],
                                        "properties": {
                                            "physicalLocation": {
                                                "type": "object",
                                                "required": ["artifactLocation"],
                                                "additionalProperties": False,
                                                "properties": {
                                                    "artifactLocation": {
                                                        "type": "object",
                                                        "properties": {
                                                            "uri": {"type": "string", "pattern": r"^[!-~]+$"},
                                                            "uriBaseId": {"type": "string"},
                                                        },
                                                        "additionalProperties": False,
                                                    },
                                                    "region": {
                                                        "type": "object",
                                                        "properties": {"startLine": {"type": "integer", "minimum": 1}},
                                                        "additionalProperties": False,
                                                    },
                                                },
                                            }
                                        },
                                    },
                                },
                                "suppressions": {
                                    "type": "array",
                                    "items": {
                                        "type": "object",
                                        "required": ["kind"],
                                        "properties": {"kind": {"enum": ["inSource", "external"]}},
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}


@pytest.fixture(params=["axolotl.yaml", "a folder/50%,x:y.yaml", "übung/axolotl.yaml"])
def outcome(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """One estimated project beside a broken and a foreign file."""
    monkeypatch.chdir(tmp_path)
    path = Path(request.param)
    path.parent.mkdir(exist_ok=True)
    path.write_text(AXOLOTL)
    Path("binary.yaml").write_bytes(b"\0")
    Path("ci.yaml").write_text("jobs: {}\n")
    Path("lone.json").write_text('{"zero_optimization": {"stage": 3}, "a%\\n::b,c": 1}')
    return check(["."], Options(Target(hardware="kentino-8x-rtx-5090")))


def as_json(outcome: Outcome) -> dict[str, Any]:
    return printers.as_json(outcome, recipe=show.recipe_json, estimate=show.estimate_json)


def test_json_is_as_its_schema_says(outcome: Outcome) -> None:
    schemas = [json.loads((SCHEMAS / name).read_text()) for name in ("check.schema.json", "plan.schema.json")]
    registry = Registry().with_resources([(s["$id"], Resource.from_contents(s)) for s in schemas])
    document = json.loads(json.dumps(as_json(outcome), allow_nan=False))
    jsonschema.Draft202012Validator(schemas[0], registry=registry).validate(document)
    assert document["exit_code"] == 1
    assert document["counts"]["ignored"] == 1
    assert [s["path"] for s in document["skipped"]] == ["ci.yaml"]
    assert [f["path"] for f in document["findings"]] == ["binary.yaml"]


def test_no_answer_repeats_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "hf_0123456789abcdefghij"
    (tmp_path / "axolotl.yaml").write_text(
        f"base_model: Qwen/Qwen3-8B\nhub_token: {secret}\nlearning_rate: 1.0e-4\nmicro_batch_size: 1\n"
        "gradient_accumulation_steps: 1\nnum_epochs: 1\nsequence_len: 1024\nadapter: lora\nlora_r: 8\nlora_alpha: 8\n"
        "lora_target_linear: true\noptimizer: adamw_torch_fused\ndatasets:\n  - {path: a, type: alpaca}\n"
    )
    (tmp_path / "run.sh").write_text(
        f"export WANDB_API_KEY={secret}\nexport HF_TOKEN={secret}\nexport NCCL_DEBUG=INFO\naxolotl train axolotl.yaml\n"
    )
    monkeypatch.chdir(tmp_path)
    found = check([Path(".")], Options(Target("kentino-8x-rtx-5090"), trainers=False))
    document = as_json(found)
    (project,) = document["projects"]
    environment = {one["name"]: one["value"] for one in project["recipe"]["launch"]["environment"]}
    assert environment["NCCL_DEBUG"] == "INFO"
    assert environment["WANDB_API_KEY"] == environment["HF_TOKEN"] == "(not shown)"
    sarif = json.dumps(printers.sarif(found))
    lines = "\n".join((*text(found, verbose=True), *printers.github(found)))
    assert secret not in json.dumps(document) + sarif + lines


def test_sarif_is_sarif(outcome: Outcome) -> None:
    document = json.loads(json.dumps(printers.sarif(outcome)))
    jsonschema.Draft202012Validator(SARIF).validate(document)
    (run,) = document["runs"]
    ids = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert all(ids[result["ruleIndex"]] == result["ruleId"] for result in run["results"])
    assert sum("suppressions" in result for result in run["results"]) == 1
    assert len(run["results"]) == len(outcome.all_findings()) + 1


def test_github_commands_are_one_line_each_and_escaped(outcome: Outcome) -> None:
    lines = list(printers.github(outcome))
    for line in lines:
        found = re.fullmatch(r"::(error|warning|notice)( [^:]*)?::(.*)", line)
        assert found, line
        properties = (found[2] or " ").strip()
        assert all(re.fullmatch(r"(file|line|title)=[^,:]+", part) for part in properties.split(",")), line
    levels = [line.split()[0].removeprefix("::") for line in lines[len(outcome.checked) :]]
    assert levels == sorted(levels, key=["error", "warning", "notice"].index)
    assert any("line=3" in line and "learning_rate" in line for line in lines)


def test_github_escapes_as_its_toolkit_does() -> None:
    from recipegen.check.printers.github import command

    assert command("error", "100% a\r\nb: c, d", file="a,b:c%.yaml", line="") == (
        "::error file=a%2Cb%3Ac%25.yaml::100%25 a%0D%0Ab: c, d"
    )


def text(outcome: Outcome, *, verbose: bool = False) -> list[str]:
    return list(printers.text(outcome, costs=lambda _one: iter(["COSTS"]), wrap=show.wrap, verbose=verbose))


def test_text_begins_with_the_verdict(outcome: Outcome) -> None:
    lines = text(outcome)
    assert re.match(r"(FITS|TIGHT|DOES NOT FIT|NOT ESTIMATED)  [12] recipes?: ", lines[0])
    assert all(line.isprintable() for line in lines)
    single = Outcome(outcome.checked[:1])
    assert re.match(r"(FITS|TIGHT|DOES NOT FIT|NOT ESTIMATED), \d (error|warning)", text(single)[0])


def test_the_line_for_stderr_says_why(outcome: Outcome) -> None:
    assert failure(outcome).startswith("binary.yaml: a binary file (and ")


def test_a_line_for_stderr_without_any_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("z.json").write_text('{"zero_optimization": {"stage": 3}}')
    outcome = check(["z.json"], Options(strict=True))
    (one,) = outcome.checked
    quiet = Outcome((Checked(one.project, one.subject, one.verdict, (), (), (), strict=True),))
    assert quiet.exit_code == 1
    assert failure(quiet) == "z.json: no estimate, and --strict asks for one"
