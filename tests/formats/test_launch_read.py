"""Launch scripts, batch files and command lines: what they say is read, what only a shell could know stays unknown."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipegen.formats import launch_read, launcher
from recipegen.formats.reading import Reading, restrict
from recipegen.spec import Dtype, EnvVar, Launch, Recipe, Strategy
from tests.recipes_for_tests import recipe, recipes

RECIPES = list(recipes())


def read(text: str) -> Reading:
    return launch_read.read(text.encode(), "run.sh")


@pytest.mark.parametrize(("name", "r"), RECIPES, ids=[name for name, _ in RECIPES])
def test_what_was_written_is_read(name: str, r: Recipe) -> None:
    reading = read(launcher.write(r))
    assert reading.values == restrict(r, launch_read.CARRIES)
    assert reading.problems == ()
    assert set(reading.provenance) == set(reading.values)
    assert reading.facts["launcher"] == "accelerate"
    assert reading.facts["launches"] == 1
    assert reading.facts["config_file"] == "accelerate.yaml"
    assert reading.facts["module"] == "axolotl.cli.train"
    assert reading.facts["trainer"] == "axolotl"
    assert reading.facts["config_files"] == ("axolotl.yaml",)
    assert {"MASTER_ADDR", "MASTER_PORT", "NODE_RANK"} <= set(reading.facts["overridable"])


@pytest.mark.parametrize(("name", "r"), RECIPES, ids=[name for name, _ in RECIPES])
def test_the_batch_file_is_read(name: str, r: Recipe) -> None:
    reading = read(launcher.write_slurm(r))
    assert reading.values == restrict(r, launch_read.CARRIES_SLURM)
    assert reading.problems == ()
    assert reading.facts["sbatch"]["requeue"] == ""


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), min_size=1, max_size=15)
VARIABLES = st.builds(
    EnvVar,
    st.from_regex(r"\A[A-Z_][A-Z0-9_]{0,9}\Z"),
    TEXT,
    st.from_regex(r"\A[a-z:;'\"$`(){}|&<>#-]{1,9}( [a-z]{1,9})?\Z"),
)


@given(st.integers(1, 65535), st.integers(1, 512), st.lists(VARIABLES, max_size=4))
def test_any_environment_comes_back(port: int, threads: int, variables: list[EnvVar]) -> None:
    r = recipe(launch=Launch(port, threads, tuple(variables)))
    reading = read(launcher.write(r))
    wanted = restrict(r, launch_read.CARRIES)
    assert reading.values.items() >= wanted.items()
    assert reading.problems == ()


@pytest.mark.parametrize(
    ("command", "values", "facts"),
    [
        (
            "accelerate launch --num_processes 8 --num_machines=2 --mixed_precision bf16 train.py",
            {"parallelism.nodes": 2, "parallelism.gpus_per_node": 4, "precision.compute": Dtype.BF16},
            {"launcher": "accelerate", "script": "train.py", "num_processes": 8},
        ),
        (
            "accelerate launch --use-fsdp --fsdp_version 2 --fsdp_reshard_after_forward false --num-processes 4 "
            "-m axolotl.cli.train a.yaml",
            {
                "parallelism.strategy": Strategy.FSDP2_FULL, "fsdp.version": 2, "fsdp.reshard_after_forward": False,
                "parallelism.gpus_per_node": 4,
            },
            {"trainer": "axolotl", "config_files": ("a.yaml",)},
        ),
        (
            "accelerate launch --use_deepspeed --zero_stage 3 --offload_param_device cpu t.py",
            {"parallelism.strategy": Strategy.ZERO3_CPU, "deepspeed.stage": 3, "deepspeed.offload_param": "cpu"},
            {},
        ),
        (
            "torchrun --nproc_per_node=8 --nnodes 2 --node-rank 1 --master_port 29501 run.py",
            {"parallelism.nodes": 2, "parallelism.gpus_per_node": 8, "launch.main_process_port": 29501},
            {"num_processes": 16, "machine_rank": 1, "script": "run.py"},
        ),
        ("python -m torch.distributed.run --standalone --nproc-per-node gpu run.py", {}, {"standalone": True}),
        (
            "deepspeed --num_gpus 4 --master_port=29502 train.py --deepspeed ds.json --bf16",
            {"parallelism.gpus_per_node": 4, "launch.main_process_port": 29502, "precision.compute": Dtype.BF16},
            {"deepspeed_config_file": "ds.json", "config_files": ("ds.json",)},
        ),
        (
            "python -u run_clm.py --per_device_train_batch_size 2 --fsdp 'full_shard auto_wrap' --learning_rate=2e-5",
            {
                "micro_batch_size": 2, "schedule.learning_rate": 2e-5, "parallelism.strategy": Strategy.FSDP2_FULL,
                "fsdp.reshard_after_forward": True,
            },
            {"launcher": "python", "script": "run_clm.py"},
        ),
        (
            "CUDA_VISIBLE_DEVICES=0,1 axolotl train a.yaml --learning_rate 1e-5",
            {},
            {"environment": {"CUDA_VISIBLE_DEVICES": "0,1"}},
        ),
        ("python -m axolotl.cli.train a.yaml", {}, {"module": "axolotl.cli.train", "trainer": "axolotl"}),
        (
            "llamafactory-cli train a.yaml learning_rate=1e-5",
            {"schedule.learning_rate": 1e-5},
            {"launcher": "llamafactory"},
        ),
        ("srun --ntasks=2 bash -c 'exec torchrun --nproc_per_node 8 x.py'", {"parallelism.gpus_per_node": 8}, {}),
        ("nohup env A=1 accelerate launch t.py > log 2>&1 &", {}, {"script": "t.py", "environment": {"A": "1"}}),
        ("bash -c 'axolotl preprocess a.yaml'", {}, {}),
        (
            "trl sft --lora_target_modules q_proj v_proj --lora_r 8",
            {"adapter.r": 8, "adapter.target_modules": ("q_proj", "v_proj")},
            {},
        ),
    ],
)  # fmt: skip
def test_single_commands(command: str, values: dict[str, Any], facts: dict[str, Any]) -> None:
    reading = read(command)
    assert reading.values == values
    assert reading.facts.items() >= facts.items()
    assert reading.problems == ()


def test_a_script_by_hand() -> None:
    reading = read(
        """#!/bin/bash
#SBATCH -N 2
#SBATCH --gres=gpu:a100:8   # a comment
#SBATCH --ntasks-per-node 1
source ~/venv/bin/activate
# the driver hangs otherwise
export NCCL_P2P_DISABLE=1
export OMP_NUM_THREADS=16 WANDB_API_KEY=$(cat key)
GPUS=8
CONFIG="configs/my file.yaml"
srun torchrun --nnodes $SLURM_NNODES --nproc_per_node "${GPUS}" \\
  --rdzv_endpoint $(hostname):29500 --rdzv_backend=c10d \\
  train.py "$CONFIG" --seed $SEED
"""
    )
    assert reading.problems == ()
    assert reading.values == {
        "parallelism.nodes": 2,
        "parallelism.gpus_per_node": 8,
        "launch.omp_num_threads": 16,
        "launch.environment": (EnvVar("NCCL_P2P_DISABLE", "1", "the driver hangs otherwise"),),
    }
    assert reading.provenance["parallelism.nodes"] == "run.sh:11"
    assert reading.provenance["launch.omp_num_threads"] == "run.sh:8"
    assert reading.facts["num_processes"] == 16
    assert reading.facts["sbatch"] == {"nodes": "2", "gres": "gpu:a100:8", "ntasks-per-node": "1"}
    assert reading.facts["sourced"] == ("~/venv/bin/activate",)
    assert reading.facts["config_files"] == ("configs/my file.yaml",)
    assert reading.facts["unknown"] == {
        "WANDB_API_KEY": "$(cat key)", "rdzv_endpoint": "$(hostname):29500", "seed": "$SEED",
    }  # fmt: skip


def test_processes_of_all_nodes() -> None:
    reading = read(
        "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\n"
        "accelerate launch --num_processes $((SLURM_NNODES * 8)) --num_machines $SLURM_NNODES t.py"
    )
    assert (reading.values["parallelism.nodes"], reading.values["parallelism.gpus_per_node"]) == (4, 8)


@pytest.mark.parametrize(
    ("script", "known"),
    [
        ("N=4\nN=8\n", "8"),
        ('N=8\nif [ -n "$X" ]; then N=4; fi\n', None),
        ("N=8\n[[ -n $X ]] && N=4\n", None),
        ("N=$1\n", None),
        ("N=${1:-8}\n", None),
        ("N=${GPUS:-8}\n", "8"),
        ("N='$GPUS'\n", None),  # a literal dollar: no number
        ("cat <<EOF\nN=4\nEOF\nN=8\n", "8"),
        ("# N=4\nN=8\n", "8"),
        ("N=8 # N=4\n", "8"),
        ("", None),
    ],
)
def test_variables(script: str, known: str | None) -> None:
    reading = read(f"{script}torchrun --nproc_per_node $N train.py")
    assert reading.values.get("parallelism.gpus_per_node") == (None if known is None else int(known))
    assert reading.facts["script"] == "train.py"


def test_nothing_behind_the_first_command_is_a_directive() -> None:
    assert "sbatch" not in read("hostname\n#SBATCH --nodes=2\n").facts


def test_the_launch_of_a_training_counts() -> None:
    reading = read("python prepare.py\naxolotl preprocess a.yaml\naccelerate launch -m axolotl.cli.train a.yaml\n")
    assert reading.facts["launcher"] == "accelerate"
    assert reading.facts["launches"] == 2


def test_a_variable_that_doubles_is_given_up() -> None:
    reading = read("A=xx\n" + "A=$A$A\n" * 200 + "torchrun --nproc_per_node $A t.py")
    assert reading.facts["unknown"] == {"nproc_per_node": "$A"}


def test_threads_of_accelerate_win_over_the_variable() -> None:
    reading = read("export OMP_NUM_THREADS=4\naccelerate launch --num_cpu_threads_per_process 8 t.py")
    assert reading.values == {"launch.omp_num_threads": 8}
    assert reading.provenance == {"launch.omp_num_threads": "run.sh:2"}
    assert reading.passthrough == {}


def test_redirections_are_no_arguments() -> None:
    assert read("torchrun t.py a.yaml > out.log 2> err.log 2>&1 < in").facts["arguments"] == ("a.yaml",)


def test_arrays_are_spelt_out() -> None:
    reading = read('ARGS=(--num_processes 8\n  --mixed_precision "bf16")\naccelerate launch "${ARGS[@]}" t.py')
    assert reading.values == {"parallelism.gpus_per_node": 8, "precision.compute": Dtype.BF16}


def test_a_text_of_options_is_split() -> None:
    assert read('A="--nproc_per_node 8 --nnodes 1"\ntorchrun $A t.py').values["parallelism.gpus_per_node"] == 8


@pytest.mark.parametrize(
    ("script", "line"), [("export A='1\n", 1), ('a\nb "$(c\n', 2), ("x $(" + "$(" * 40 + ")" * 41, 1)]
)
def test_what_is_never_closed_is_a_problem(script: str, line: int) -> None:
    (problem,) = read(script).problems
    assert problem.where == f"run.sh:{line}"


def test_bad_numbers_are_problems() -> None:
    reading = read("export OMP_NUM_THREADS=many\ntorchrun --nproc_per_node 0 t.py")
    assert {problem.where for problem in reading.problems} == {"run.sh:1", "run.sh:2"}
    assert reading.values == {}


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x" * (2**20 + 1)])
def test_what_is_no_script_is_a_problem(content: bytes) -> None:
    assert len(launch_read.read(content, "run.sh").problems) == 1


def test_nothing_is_run(tmp_path: Any) -> None:
    witness = tmp_path / "witness"
    touch = f"touch {witness}"
    read(f"export A=$({touch}) B=`{touch}`\ntorchrun --nnodes $({touch}) t.py; {touch}\n")
    assert not witness.exists()


def test_what_is_exported_on_a_condition_is_not_known() -> None:
    reading = read('if [ -n "$X" ]; then\n  export A=1\nfi\nmain() {\n  export B=2\n}\nmain\n')
    assert reading.values["launch.environment"] == (EnvVar("B", "2", ""),)
    assert reading.facts["environment"] == {"A": None, "B": "2"}


SIGNS = "\"'`$(){}[]<>|&;#\\\n =-"
FRAGMENTS = ("export ", "accelerate launch ", "torchrun ", "--nproc_per_node ", "8", "${A:-", "$((", "A=(", "<<EOF\n")
MORE = ("EOF\n", "#SBATCH -N ", "bash -c ", "--fsdp_config ", '{"a": 1}', "train.py ", "if ", "; fi", "--fsdp ")
PIECES = st.sampled_from([*SIGNS, *FRAGMENTS, *MORE])


@given(st.lists(PIECES, max_size=40).map("".join))
def test_any_script_is_read(text: str) -> None:
    reading = read(text)
    assert set(reading.provenance) == set(reading.values)


@given(st.integers(0, 4000), st.integers(1, 50), PIECES)
def test_any_mutation_of_a_script_is_read(position: int, length: int, piece: str) -> None:
    text = SCRIPT[: position % len(SCRIPT)] + piece + SCRIPT[position % len(SCRIPT) + length :]
    assert read(text).format == "launch"


@given(st.binary(max_size=200))
def test_any_bytes_are_read(content: bytes) -> None:
    assert launch_read.read(content, "run.sh").format == "launch"


SCRIPT = launcher.write(dataclasses.replace(RECIPES[0][1]))
