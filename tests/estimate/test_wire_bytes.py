"""Bytes on the wire per collective: the table against gloo processes, and DeepSpeed's choice of collective."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from recipegen.catalog.backends import wire_factors

COUNT = textwrap.dedent(
    """
    import json, os, sys, torch, torch.distributed as dist
    import torch.multiprocessing as mp

    def sent():
        line = next(l for l in open("/proc/net/dev") if l.strip().startswith("lo:"))
        return int(line.split(":")[1].split()[8])

    def work(rank, ranks, port, out):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE=str(ranks),
                          GLOO_SOCKET_IFNAME="lo")
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        whole, part = torch.zeros(4 * 2**20), torch.zeros(4 * 2**20 // ranks)
        operations = {
            "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
            "all_reduce": lambda: dist.all_reduce(whole),
        }
        found = {}
        for name, run in operations.items():
            run()
            least = None
            for _ in range(4):  # other programs use the loopback too: they only add
                dist.barrier()
                before = sent()
                dist.barrier()
                run()
                dist.barrier()
                moved = sent() - before
                least = moved if least is None else min(least, moved)
                dist.barrier()
            found[name] = least / ranks / (whole.numel() * 4)
        if rank == 0:
            json.dump(found, open(out, "w"))
        dist.destroy_process_group()

    if __name__ == "__main__":
        mp.spawn(work, (int(sys.argv[1]), sys.argv[2], sys.argv[3]), nprocs=int(sys.argv[1]))
    """
)


def free_port() -> str:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


@pytest.mark.run
@pytest.mark.skipif(sys.platform != "linux", reason="counts bytes in /proc/net/dev")
@pytest.mark.parametrize("ranks", [2, 4])
def test_gloo_moves_what_the_table_says(ranks: int, tmp_path: object) -> None:
    script, out = f"{tmp_path}/count.py", f"{tmp_path}/found.json"
    with open(script, "w", encoding="utf-8") as file:
        file.write(COUNT)
    subprocess.run([sys.executable, script, str(ranks), free_port(), out], check=True, timeout=120)
    with open(out, encoding="utf-8") as file:
        found = json.load(file)
    assert found == pytest.approx(
        {name: factor * (ranks - 1) / ranks for name, factor in wire_factors("gloo").items()}, rel=0.05
    )


def test_a_ring_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    ring = wire_factors("nccl")
    assert ring["all_reduce"] == ring["all_gather"] + ring["reduce_scatter"] == 2


@pytest.mark.stack
def test_deepspeed_still_all_reduces_the_buckets_of_zero_2() -> None:
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    assert DeepSpeedZeroConfig(stage=2).use_multi_rank_bucket_allreduce is True
