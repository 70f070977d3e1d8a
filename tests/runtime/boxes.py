"""Boxes that no machine of ours is: a root folder with /proc and /sys, and a small nvidia-smi that prints a file."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path
from typing import Any

from recipegen.runtime import Box, probe

CORPUS = Path(__file__).parents[1] / "corpus/probe"


def captured(name: str) -> str:
    """The text of the corpus, without the line that says where it is from."""
    return (CORPUS / name).read_text().split("\n", 1)[1]


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


RTX_5090 = {"query": "query-8x-rtx-5090.txt", "peers": "p2p-8x-rtx-5090.txt", "links": "topo-8x-rtx-5090.txt"}
PRO_6000 = {
    "query": "query-4x-rtx-pro-6000.txt",
    "peers": "p2p-4x-rtx-pro-6000.txt",
    "links": "topo-4x-rtx-pro-6000.txt",
}


def fake_smi(
    folder: Path,
    *,
    query: str,
    peers: str = "",
    links: str = "",
    head: str = "head-580.txt",
    change: tuple[str, str] = ("", ""),
) -> None:
    """`folder`/nvidia-smi answers with files of the corpus, `change`[0] replaced by [1]; a query of a column
    `compute_cap` is refused when `query` starts with `old:`."""
    folder.mkdir(parents=True, exist_ok=True)
    old = query.startswith("old:")
    names = {"query": query.removeprefix("old:"), "peers": peers, "links": links, "head": head}
    for name, file in names.items():
        (folder / f"{name}.out").write_text((captured(file) if file else "").replace(*change))
    refuse = (
        f"case \"$1\" in *compute_cap*) echo '{captured('query-refused.txt').strip()}'; exit 2;; esac" if old else ""
    )
    cut = "| cut -d, -f1-7,9-" if old else ""
    executable(
        folder / "nvidia-smi",
        "#!/bin/sh\n"
        f"here='{folder}'\n"
        'case "$1 $2" in\n'
        f'  --query-gpu*) {refuse or ":"}; cat "$here/query.out" {cut};;\n'
        '  "topo -p2p") cat "$here/peers.out";;\n'
        '  "topo -m") cat "$here/links.out";;\n'
        '  *) cat "$here/head.out";;\n'
        "esac\n",
    )


def write(root: Path, path: str, text: str) -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def epyc(root: Path, *, sockets: int = 2, cores: int = 32, threads: int = 2) -> None:
    """/proc and /sys of a server; the numbers are invented."""
    write(root, "proc/meminfo", captured("meminfo-768gib.txt"))
    write(root, "proc/cmdline", "BOOT_IMAGE=/vmlinuz root=UUID=secret iommu=pt amd_iommu=on quiet token=secret\n")
    write(root, "proc/self/cgroup", "0::/user.slice/session\n")
    cpu = 0
    for _ in range(threads):
        for socket in range(sockets):
            for core in range(cores):
                write(root, f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id", f"{socket}\n")
                write(root, f"sys/devices/system/cpu/cpu{cpu}/topology/core_id", f"{core}\n")
                cpu += 1
    for node in range(sockets):
        (root / f"sys/devices/system/node/node{node}").mkdir(parents=True)
    write(root, "sys/class/net/enp1s0f0/speed", "25000\n")
    write(root, "sys/class/net/enp1s0f0/operstate", "up\n")
    (root / "sys/class/net/enp1s0f0/device").mkdir()
    write(root, "sys/class/net/lo/speed", "0\n")
    write(root, "sys/class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)\n")
    write(root, "sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n")
    write(root, "sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand\n")
    (root / "dev/shm").mkdir(parents=True)


def fake_torch(path: Path, answer: str) -> None:
    """A Python that answers the child's question with one line."""
    executable(path, f"#!/bin/sh\necho 'recipegen-torch {answer}'\n")


def probed(
    folder: Path, monkeypatch: Any, *, python: str = "", seconds: float = 15.0, lspci: str = "", **smi: Any
) -> dict[str, Any]:
    """A probe of the server with these GPUs; only /bin and /usr/bin's commands beside the small nvidia-smi."""
    root, tools = folder / "root", folder / "bin"
    epyc(root)
    tools.mkdir()
    if smi:
        fake_smi(tools, **smi)
    if lspci:
        (folder / "lspci.out").write_text(captured(lspci))
        executable(tools / "lspci", f"#!/bin/sh\ncat '{folder / 'lspci.out'}'\n")
    for name in ("sh", "cat", "cut", "echo", "sleep"):
        found = shutil.which(name)
        if found:
            (tools / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    torch = tools / "python-without-torch"
    fake_torch(torch, '{"installed": false}')
    return probe(Box(root, python or str(torch), (str(folder),), seconds))
