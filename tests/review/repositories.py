"""Real git repositories for the tests of a review, with nothing of the machine's own configuration."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

AXOLOTL = """\
base_model: Qwen/Qwen3-8B
datasets: [{path: data.jsonl, type: alpaca}]
sequence_len: 2048
adapter: lora
lora_r: 16
lora_alpha: 32
lora_target_linear: true
micro_batch_size: 1
gradient_accumulation_steps: 1
num_epochs: 1
optimizer: adamw_torch_fused
learning_rate: 2.0e-4
lr_scheduler: cosine
bf16: true
gradient_checkpointing: true
output_dir: ./outputs
"""
ZERO = '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}\n'
BOX = "gpu: rtx-4090\ngpu_count: 2\nhost_ram_gib: 128\n"
INTENT = "format_version: 1\nmodel: Qwen/Qwen3-8B\ndataset: [data.jsonl]\nhardware: {}\n"


def environment() -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
        "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
    }


def git(folder: Path, *arguments: str, stdin: bytes = b"") -> str:
    """What git prints. It must succeed."""
    settings = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "init.defaultBranch=main"]
    settings += ["-c", "protocol.file.allow=always", "-c", "commit.gpgSign=false"]
    done = subprocess.run(
        ["git", *settings, *arguments], cwd=folder, input=stdin, capture_output=True, env=environment()
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode("utf-8", "replace").strip()


def write(folder: Path, files: dict[str, str | bytes | None]) -> None:
    """Files by path; None removes one."""
    for name, content in files.items():
        path = folder / name
        if content is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def commit(folder: Path, files: dict[str, str | bytes | None]) -> str:
    """A commit of the folder with these files; its name. The first one makes the repository."""
    if not (folder / ".git").exists():
        git(folder, "init", "-q")
    write(folder, files)
    git(folder, "add", "-A", "-f", ".")
    git(folder, "commit", "-q", "--allow-empty", "-m", "x")
    return git(folder, "rev-parse", "HEAD")


def faster(text: str = AXOLOTL) -> str:
    """Another learning rate."""
    return text.replace("2.0e-4", "1.0e-4")
