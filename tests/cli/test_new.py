"""`recipegen new`: a whole folder or nothing, whatever is typed."""

import json
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recipegen.catalog import hardware_names, model_names
from recipegen.cli.main import run

Make = Callable[..., Path]
BOX = ["--hardware", "kentino-8x-rtx-5090"]
FILES = {
    "recipe.yaml", "axolotl.yaml", "accelerate.yaml", "launch.sh", "launch.slurm", "requirements.txt", "DECISION.md",
    "recipe.lock", "README.md",
}  # fmt: skip


def test_the_folder_is_complete(tmp_path: Path, data_file: Make, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(
        [
            "new",
            "tune",
            "--output",
            str(tmp_path),
            "--model",
            "Llama-3.1-8B-Instruct",
            "--dataset",
            str(data_file()),
            *BOX,
        ]
    )
    out = capsys.readouterr().out
    assert code == 0
    assert {p.name for p in (tmp_path / "tune").iterdir()} >= FILES
    assert (tmp_path / "tune/launch.sh").stat().st_mode & stat.S_IXUSR
    assert out.startswith("FITS")
    assert "validated" in out
    assert "launch.sh" in out


def test_json_says_what_was_written(tmp_path: Path, data_file: Make, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["new", "tune", "--output", str(tmp_path), "--model", "Llama-3.1-8B", "--dataset", str(data_file()), *BOX]
    assert run([*args, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["files"]) >= FILES
    assert document["command"] == "new"
    lock = json.loads((tmp_path / "tune/recipe.lock").read_text())
    assert lock["recipe"]["sequence_len"] == document["recipe"]["sequence_len"]


def test_what_does_not_fit_writes_nothing(tmp_path: Path, data_file: Make) -> None:
    args = ["new", "tune", "--output", str(tmp_path), "--model", "Llama-3.1-405B", "--method", "full"]
    assert run([*args, "--dataset", str(data_file()), *BOX]) == 1
    assert not (tmp_path / "tune").exists()


def test_an_existing_folder_is_left_alone_without_force(tmp_path: Path, data_file: Make) -> None:
    args = ["new", "tune", "--output", str(tmp_path), "--model", "Llama-3.1-8B", "--dataset", str(data_file()), *BOX]
    assert run(args) == 0
    (tmp_path / "tune/notes.txt").write_text("mine")
    edited = tmp_path / "tune/axolotl.yaml"
    edited.write_text(edited.read_text() + "# mine\n")
    assert run(args) == 2
    assert run([*args, "--force"]) == 0
    assert (tmp_path / "tune/notes.txt").read_text() == "mine"
    assert len(list((tmp_path / "tune").glob("axolotl.yaml.bak-*"))) == 1


def test_recipe_yaml_makes_the_same_project_again(tmp_path: Path, data_file: Make) -> None:
    args = ["--output", str(tmp_path), "--model", "Llama-3.1-8B", "--dataset", str(data_file()), *BOX]
    assert run(["new", "one", *args, "--method", "lora", "--set", "adapter.r=8", "--epochs", "1"]) == 0
    assert run(["new", "two", "--output", str(tmp_path), "--recipe", str(tmp_path / "one/recipe.yaml")]) == 0
    assert (tmp_path / "one/axolotl.yaml").read_text() == (tmp_path / "two/axolotl.yaml").read_text()


def test_a_recipe_yaml_finds_its_files_beside_itself(
    tmp_path: Path, data_file: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    data_file("here/data.jsonl")
    recipe = f"format_version: 1\nmodel: Llama-3.1-8B\nhardware: {BOX[1]}\ndataset: [{{path: ./data.jsonl}}]\n"
    (folder / "recipe.yaml").write_text(recipe)
    monkeypatch.chdir(tmp_path)
    assert run(["new", "tune", "--output", str(tmp_path), "--recipe", "here/recipe.yaml"]) == 0


def test_rows_that_are_all_too_long_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "long.jsonl"
    row = {"instruction": "word " * 400, "input": "", "output": "word " * 400}
    data.write_text("".join(json.dumps(row) + "\n" for _ in range(20)))
    args = ["new", "tune", "--output", str(tmp_path), "--model", "Llama-3.1-8B", "--dataset", str(data), *BOX]
    assert run([*args, "--sequence-len", "64"]) == 2
    assert "every row is longer" in capsys.readouterr().err
    assert not (tmp_path / "tune").exists()


def test_a_passed_on_key_that_the_trainer_drops_is_said(
    tmp_path: Path, data_file: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["new", "tune", "--output", str(tmp_path), "--model", "Llama-3.1-8B", "--dataset", str(data_file()), *BOX]
    assert run([*args, "--set", "axolotl.foo=1"]) == 0
    assert "foo" in capsys.readouterr().out.split("Warnings")[1]


HOSTILE = [
    "a b", "it's", 'say "x"', "$(touch CANARY)", "`touch CANARY`", "; touch CANARY #", "&& touch CANARY", "-rf",
    "--help", "a\nevil: true", "a\n- evil", "{{ 7 * 7 }}", "{% raw %}", "%s", "é漢", "!!python/object:os.system", "&a",
    "*a", "#x",
    "key: value", "$HOME", "\\", "\t", "a\\nb", "'; DROP", "\x1b[31m", "\u2028x",
]  # fmt: skip


def _run_launcher(project: Path, tmp_path: Path) -> list[list[str]]:
    """Execute launch.sh with recording stand-ins for python and accelerate."""
    stubs = tmp_path / "stubs"
    stubs.mkdir(exist_ok=True)
    log = tmp_path / "argv.log"
    for name in ("accelerate", "python", "python3", "axolotl", "nvidia-smi"):
        stub = stubs / name
        stub.write_text(f'#!/bin/bash\nprintf "%s\\0" "{name}" "$@" >> "{log}"\nprintf "\\n\\0" >> "{log}"\nexit 0\n')
        stub.chmod(0o755)
    env = {**os.environ, "PATH": f"{stubs}:/usr/bin:/bin", "HOME": str(tmp_path)}
    subprocess.run(["bash", "./launch.sh"], cwd=project, env=env, capture_output=True, timeout=60, check=False)
    entries = log.read_bytes().decode().split("\0") if log.exists() else []
    calls: list[list[str]] = [[]]
    for entry in entries:
        if entry == "\n":
            calls.append([])
        else:
            calls[-1].append(entry)
    return [c for c in calls if c and c != [""]]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_never_reaches_a_shell_or_a_yaml_unquoted(
    tmp_path: Path, model_folder: Make, data_file: Make, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    hardware = Path(__file__).parents[1] / "corpus/hardware/cpu-1x.yaml"
    safe = text.replace("/", "_")
    model, data = model_folder(f"m {safe}"), data_file(f"d {safe}.jsonl")
    args = [
        "new", "tune", "--output", str(tmp_path), "--model", str(model), "--dataset", str(data), "--hardware",
        str(hardware), "--model-revision", text, "--set", f"axolotl.wandb_project={json.dumps(text)}",
    ]  # fmt: skip
    project = tmp_path / "tune"
    if run(args) != 0:
        # Text that no Hub revision and no one-line value can be is refused whole; the paths alone must still work.
        assert not project.exists()
        capsys.readouterr()
        code = run(args[: args.index("--model-revision")])
        if code and (any(c in safe for c in "*?[]{}") or any(not c.isprintable() for c in safe)):
            # datasets reads such a path as a pattern, and no launcher line can hold a control character
            assert code == 2
            assert "\n" not in capsys.readouterr().err.strip()
            assert not project.exists()
            return
        assert code == 0
    written = yaml.safe_load((project / "axolotl.yaml").read_text())
    assert "evil" not in written
    assert written["base_model"] == str(model)
    assert written["datasets"][0]["path"] == str(data)
    if "wandb_project" in written:
        assert written["wandb_project"] == text
    calls = _run_launcher(project, tmp_path)
    assert any(c[0] == "accelerate" and "launch" in c for c in calls)
    assert not list(tmp_path.rglob("CANARY"))
    assert not Path("CANARY").exists()


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "/tmp/x", "a/b", "-x", "a b", "a\nb", "$(x)", "a" * 300, "é", ".hidden"]
)
def test_a_name_that_is_not_a_plain_folder_name_is_refused(tmp_path: Path, data_file: Make, name: str) -> None:
    before = sorted(p.name for p in tmp_path.iterdir())
    data = data_file()
    assert (
        run(["new", "--output", str(tmp_path), "--model", "Llama-3.1-8B", "--dataset", str(data), *BOX, "--", name])
        == 2
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*before, data.name])


words = st.text(max_size=30)
MODELS = st.sampled_from(model_names())
HARDWARE = st.sampled_from(hardware_names())
# What people type, mostly right; `words` is anything at all.
typed = {
    "--nodes": st.sampled_from(["1", "2", "4"]),
    "--network": st.sampled_from(["none", "roce-100", "ib-hdr", "tcp-25"]),
    "--method": st.sampled_from(["full", "lora", "qlora"]),
    "--sequence-len": st.integers(16, 200000).map(str),
    "--global-batch-size": st.integers(1, 300).map(str),
    "--epochs": st.floats(0.01, 10).map(str),
    "--learning-rate": st.floats(1e-7, 1e-2).map(str),
    "--trainer": st.sampled_from(["axolotl", "accelerate"]),
    "--hardware-override": st.sampled_from(["host_ram_gib=64", "nvme_gb=100", "gpu_memory_gib=200"]),
    "--set": st.sampled_from(
        [
            "strategy=ddp", "strategy=fsdp2_hybrid", "strategy=zero3_cpu", "micro_batch_size=3", "packing=false",
            "optimizer=nonsense", "optimizer=adamw_bnb_8bit", "axolotl.group_by_length=true", "axolotl.foo=1",
            "precision.parameters=fp32", "loss_kernel=cut", "attention=eager", "dp_shard=2",
            "fsdp.state_dict_type=FULL_STATE_DICT",
            "adapter.r=4096", "tp=2", "max_steps=7", "val_set_size=3", "logger=wandb", "nvme_path=/mnt/a b/$x",
        ]
    ),
}  # fmt: skip
sound = st.fixed_dictionaries({"--model": MODELS, "--hardware": HARDWARE, "--dataset": st.just("DATA")}, optional=typed)
anything = st.fixed_dictionaries(
    {},
    optional={
        "--model": st.one_of(MODELS, words),
        "--hardware": st.one_of(HARDWARE, words),
        "--dataset": st.one_of(st.just("DATA"), words),
        "--dataset-format": words,
        "--model-revision": words,
        **{option: st.one_of(value, words) for option, value in typed.items()},
    },
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(given_=st.one_of(sound, sound, anything), name=st.one_of(st.just("tune"), st.just("tune"), words))
def test_any_request_gives_a_project_or_one_clear_line(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str], given_: dict[str, str], name: str
) -> None:
    _hold(tmp_path_factory.mktemp("any"), capsys, given_, name)


@pytest.mark.long
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
@given(given_=st.one_of(sound, sound, anything), name=st.one_of(st.just("tune"), st.just("tune"), words))
def test_any_request_for_long(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str], given_: dict[str, str], name: str
) -> None:
    _hold(tmp_path_factory.mktemp("any"), capsys, given_, name)


def _hold(folder: Path, capsys: pytest.CaptureFixture[str], given_: dict[str, str], name: str) -> None:
    """Exit 0 and a whole project, or exit 1 or 2, one line and nothing written."""
    data = folder / "data.jsonl"
    data.write_text('{"text": "hello world"}\n' * 2000)
    args = ["new", "--output", str(folder)]
    for option, value in given_.items():
        args += [f"{option}={str(data) if value == 'DATA' else value}"]
    code = run([*args, "--", name])
    captured = capsys.readouterr()
    assert code in (0, 1, 2), captured.err
    left = {p.name for p in folder.iterdir()} - {"data.jsonl"}
    if code == 0:
        assert left == {name}
        trainers_own = {"train.json", "train.py"} if given_.get("--trainer") == "accelerate" else {"axolotl.yaml"}
        assert {p.name for p in (folder / name).iterdir()} >= FILES - {"axolotl.yaml"} | trainers_own
    else:
        assert not left
        assert captured.err.strip()
        assert len(captured.err.splitlines()) == 1
