"""`recipegen check --fix`: the diff first, then the files, then what is left."""

from __future__ import annotations

import json
import os
import pty
import stat
import sys
from pathlib import Path

import jsonschema
import pytest
from referencing import Registry, Resource

from recipegen.check.checking import Options, check
from recipegen.cli.main import run
from recipegen.project import fixing
from recipegen.spec import RecipegenError

AXOLOTL = """\
# mine
base_model: Qwen/Qwen3-8B  # a model
datasets: [{path: data.jsonl, type: alpaca}]
adapter: lora
lora_r: 16
lora_alpha: 32
lora_target_linear: true
sequence_len: 2048
micro_batch_size: 1
gradient_accumulation_steps: 1
learning_rte: 2.0e-4  # the rate
num_epochs: 1
optimizer: adamw_torch_fused
lr_scheduler: cosine
bf16: true
sdp_attention: true   # fast
gradient_checkpointing: true
"""
FIXED = AXOLOTL.replace("learning_rte", "learning_rate").replace("sdp_attention: true", "attn_implementation: sdpa")
BOX = ("--hardware", "kentino-8x-rtx-pro-6000")
SCHEMAS = Path(__file__).parents[2] / "docs/schemas"
Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("axolotl.yaml").write_text(AXOLOTL)


def test_the_diff_comes_first_then_the_new_outcome(capsys: Output) -> None:
    assert run(["check", ".", *BOX]) == 1
    capsys.readouterr()
    assert run(["check", ".", *BOX, "--fix"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("--- a/axolotl.yaml\n+++ b/axolotl.yaml\n")
    assert "-learning_rte: 2.0e-4  # the rate\n+learning_rate: 2.0e-4  # the rate\n" in out
    assert "\nfixed 2 findings in axolotl.yaml\n\nFITS, " in out
    assert "RG701" not in out
    assert err == ""
    assert Path("axolotl.yaml").read_text() == FIXED
    assert os.listdir() == ["axolotl.yaml"]


def test_diff_shows_and_writes_nothing(capsys: Output) -> None:
    for flags in (["--diff"], ["--fix", "--diff"]):
        assert run(["check", ".", *BOX, *flags]) == 1
        out = capsys.readouterr().out
        assert "+learning_rate: 2.0e-4  # the rate\n" in out
        assert "RG701" in out
        assert "fixed" not in out
    assert Path("axolotl.yaml").read_text() == AXOLOTL


def test_nothing_to_fix_is_said(capsys: Output) -> None:
    Path("axolotl.yaml").write_text(FIXED)
    before = os.stat("axolotl.yaml")
    assert run(["check", ".", *BOX, "--fix"]) == 0
    assert capsys.readouterr().out.startswith("nothing to fix: ")
    assert os.stat("axolotl.yaml") == before


def test_a_second_run_finds_nothing(capsys: Output) -> None:
    run(["check", ".", *BOX, "--fix"])
    capsys.readouterr()
    run(["check", ".", *BOX, "--fix"])
    assert capsys.readouterr().out.startswith("nothing to fix: ")


def schema_errors(document: object) -> list[str]:
    schemas = [json.loads((SCHEMAS / name).read_text()) for name in ("check.schema.json", "plan.schema.json")]
    registry: Registry[object] = Registry().with_resources((s["$id"], Resource.from_contents(s)) for s in schemas)
    return [e.message for e in jsonschema.Draft202012Validator(schemas[0], registry=registry).iter_errors(document)]


@pytest.mark.parametrize(("flag", "state"), [("--diff", "shown"), ("--fix", "written")])
def test_json_lists_the_fixes_and_the_diff(flag: str, state: str, capsys: Output) -> None:
    run(["check", ".", *BOX, flag, "--format", "json"])
    out, _ = capsys.readouterr()
    document = json.loads(out)
    assert schema_errors(document) == []
    assert {(one["rule"], one["where"], one["state"]) for one in document["fixes"]} == {
        ("RG701", "axolotl.yaml:11", state),
        ("RG715", "axolotl.yaml:16", state),
    }
    assert document["diff"].startswith("--- a/axolotl.yaml\n")
    left = {one["rule"] for one in document["projects"][0]["findings"]}
    assert ("RG701" in left) == (flag == "--diff")


@pytest.mark.parametrize("form", ["github", "sarif"])
def test_other_formats_keep_stdout_for_the_answer(form: str, capsys: Output) -> None:
    assert run(["check", ".", *BOX, "--fix", "--format", form]) == 0
    out, err = capsys.readouterr()
    assert "+++" not in out
    assert err.startswith("--- a/axolotl.yaml\n")
    assert Path("axolotl.yaml").read_text() == FIXED


def test_a_link_is_refused(capsys: Output) -> None:
    os.rename("axolotl.yaml", "real.txt")
    Path("axolotl.yaml").symlink_to("real.txt")
    assert run(["check", "axolotl.yaml", *BOX, "--fix"]) == 2
    assert "axolotl.yaml: this is a link" in capsys.readouterr().err
    assert Path("real.txt").read_text() == AXOLOTL
    assert Path("axolotl.yaml").is_symlink()


def test_a_file_that_changed_meanwhile_is_left_and_so_are_the_others() -> None:
    for name in ("one", "two"):
        Path(name).mkdir()
        Path(name, "axolotl.yaml").write_text(AXOLOTL)
    fixes = fixing.collect(check(["one", "two"], Options(fix=True)))
    assert [one.shown for one in fixes.changes] == ["one/axolotl.yaml", "two/axolotl.yaml"]
    Path("two/axolotl.yaml").write_text(AXOLOTL + "# more\n")
    with pytest.raises(RecipegenError, match=r"two/axolotl\.yaml: this changed"):
        fixing.write(fixes)
    assert Path("one/axolotl.yaml").read_text() == AXOLOTL
    Path("two/axolotl.yaml").unlink()
    with pytest.raises(RecipegenError, match=r"two/axolotl\.yaml: cannot write the fixes: No such file"):
        fixing.write(fixes)


def test_an_interrupted_write_leaves_the_old_files_or_is_finished_later(monkeypatch: pytest.MonkeyPatch) -> None:
    fixes = fixing.collect(check(["axolotl.yaml"], Options(fix=True)))
    real, calls = os.replace, []

    def stop(*args: object) -> None:
        calls.append(args)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        fixing.write(fixes)
    assert calls
    assert Path("axolotl.yaml").read_text() == AXOLOTL
    monkeypatch.setattr(os, "replace", real)
    with pytest.raises(RecipegenError, match="changed"):  # what was committed is finished first
        fixing.write(fixes)
    assert Path("axolotl.yaml").read_text() == FIXED


def test_a_read_only_folder_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "mkdir", refuse)
    assert run(["check", ".", *BOX, "--fix"]) == 2
    assert "cannot write the fixes: Permission denied" in capsys.readouterr().err
    assert Path("axolotl.yaml").read_text() == AXOLOTL


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o444])
def test_permissions_stay(mode: int) -> None:
    os.chmod("axolotl.yaml", mode)
    run(["check", ".", *BOX, "--fix"])
    assert Path("axolotl.yaml").read_text() == FIXED
    assert stat.S_IMODE(os.stat("axolotl.yaml").st_mode) == mode


def test_what_a_comment_ignores_is_not_fixed() -> None:
    text = AXOLOTL.replace("# the rate", "# recipegen: ignore[RG701]")
    Path("axolotl.yaml").write_text(text)
    run(["check", ".", *BOX, "--fix"])
    assert "learning_rte" in Path("axolotl.yaml").read_text()


def test_a_common_file_of_two_recipes_is_fixed_once(capsys: Output) -> None:
    zero = '{\n  "zero_optimization": {"stage": 2},\n  "gradient_cliping": 1.0\n}\n'
    Path("ds.json").write_text(zero)
    Path("axolotl.yaml").unlink()
    for name in ("one.yaml", "two.yaml"):
        Path(name).write_text(FIXED + "deepspeed: ds.json\n")
    run(["check", ".", *BOX, "--fix"])
    assert Path("ds.json").read_text() == zero.replace("cliping", "clipping")
    out = capsys.readouterr().out
    assert out.count("+++ b/ds.json") == 1
    assert "fixed 1 finding in ds.json\n" in out


@pytest.mark.parametrize(("answer", "flags", "changed"), [("n", [], False), ("y", [], True), ("", ["--yes"], True)])
def test_a_terminal_is_asked(answer: str, flags: list[str], changed: bool) -> None:
    program = f"from recipegen.cli.main import main; main({['check', '.', *BOX, '--fix', *flags]!r})"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", program])
    said, answered = b"", False
    try:
        while chunk := os.read(terminal, 65536):
            said += chunk
            if b"Write these changes?" in said and not answered:
                os.write(terminal, answer.encode() + b"\n")
                answered = True
    except OSError:  # the other side is closed
        pass
    os.close(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert (b"Write these changes?" in said) == (not flags)
    assert said.index(b"+++ b/axolotl.yaml") < said.index(b"RG" if not changed else b"FITS")
    assert (Path("axolotl.yaml").read_text() == FIXED) == changed
    assert code == (0 if changed else 1)
