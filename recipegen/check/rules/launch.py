"""Will the processes start and meet: counts, addresses, ports, threads, and the path between the GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from recipegen.check.rules.registry import Said, rule
from recipegen.check.rules.view import View
from recipegen.formats.shell_words import scan
from recipegen.spec import Severity

_ACCELERATE = "accelerate 1.13.0, commands/launch.py and utils/launch.py"
_TORCHRUN = "torch 2.13, distributed/run.py"
_NCCL_ENVIRONMENT = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_SLURM_RANKS = re.compile(r"(?<!\\)\$\{?SLURM_(?:PROCID|NODEID)\b")
_RANK_OPTION = re.compile(r"machine[_-]rank|node[_-]rank|NODE_RANK=|RANK=")
_P2P_TEST = "all_reduce_perf -b 8 -e 256M -f 2 -g 2 (nccl-tests), with a time limit"


@rule("RG301", "launch", Severity.ERROR, source="https://github.com/OptimalScale/LMFlow/issues/855")
def every_process_has_a_gpu(view: View) -> Iterator[Said]:
    """Each process takes the GPU of its local rank. With more processes on a machine than visible GPUs, the ranks above
    stop with "invalid device ordinal"."""
    count, visible = view.per_machine, view.visible
    if not count or view.fact("use_cpu") is True:
        return
    place = view.where("num_processes", "processes_per_node", "parallelism.gpus_per_node")
    if visible is not None and count > visible:
        yield Said(
            f"{count} processes on a machine, but {visible} visible GPUs", f"start {visible}", place, "num_processes"
        )
        return
    # A count in Accelerate's own file is compared with the profile by RG722.
    stated = view.fact("num_processes", "launch")
    cluster = view.subject.cluster
    if visible is None and stated is not None and cluster is not None and count > cluster.node.gpu_count:
        reason = f"{count} processes on a machine that has {cluster.node.gpu_count} GPUs ({cluster.gpu.name})"
        yield Said(reason, f"start {cluster.node.gpu_count} on each machine", place, "num_processes")


@rule("RG302", "launch", Severity.ERROR, source="https://github.com/huggingface/accelerate/issues/3658")
def several_machines_have_an_address(view: View) -> Iterator[Said]:
    """With several machines every one must be told where machine 0 listens. Without main_process_ip each waits at its
    own address until the socket times out. Without a script among the files it may still be given by
    hand: a warning."""
    machines = view.machines or 1
    if machines < 2 or view.fact("use_ray"):
        return
    named = {"main_process_ip", "rdzv_endpoint", "hostfile"}
    if any(view.fact(name) or view.passes(name) for name in named) or named & view.unknown:
        return
    if "MASTER_ADDR" in view.environment:
        return
    launcher = view.fact("launcher", "launch")
    if launcher == "deepspeed":
        return  # reads /job/hostfile unless told otherwise
    option = "--rdzv_endpoint HOST:PORT --rdzv_backend c10d" if launcher == "torchrun" else "--main_process_ip HOST"
    yield Said(
        f"{machines} machines and no address of machine 0: each would wait for the others at its own",
        f"pass {option}, the same on every machine",
        view.where("num_machines", "parallelism.nodes"),
        "main_process_ip",
        None if view.has_script or view.fact("sbatch", "launch") else Severity.WARNING,
    )


@rule("RG303", "launch", Severity.ERROR, source="https://github.com/huggingface/accelerate/issues/1645")
def the_rank_of_a_machine_is_read_on_that_machine(view: View) -> Iterator[Said]:
    """Slurm runs a batch file on the first node only. $SLURM_PROCID or $SLURM_NODEID in it is expanded there, once, so
    every node gets rank 0 and they never meet. Inside `srun bash -c '...'` each node expands its own."""
    for reading in view.of("launch"):
        if "sbatch" not in reading.facts or reading.facts["sbatch"].get("nodes", "") == "1":
            continue
        text = view.subject.files.get(reading.name, b"").decode("utf-8", "replace")
        for command in scan(text).commands:
            words = [word.raw for word in command.words]
            for word in command.words:
                if word.raw.startswith("'") or not _SLURM_RANKS.search(word.raw):
                    continue
                if any(_RANK_OPTION.search(item) for item in words):
                    yield Said(
                        "the rank of the machine is expanded in the batch file, on the first node, for all of them",
                        "srun bash -c 'accelerate launch --machine_rank $SLURM_NODEID ...'",
                        f"{reading.name}:{word.line}",
                        "machine_rank",
                    )
                    break


@rule("RG304", "launch", Severity.WARNING, source=_ACCELERATE)
def every_machine_has_its_own_rank(view: View) -> Iterator[Said]:
    """With static rendezvous (Accelerate's default, and what a file's rdzv_backend cannot change) machine_rank must be
    0 on the first machine, 1 on the second. One number in a file that all share starts several machines 0."""
    machines = view.machines or 1
    own = "machine_rank" in view.unknown or any("RANK" in name or "NODEID" in name for name in view.overridable)
    launcher = view.fact("launcher", "launch")
    if machines < 2 or own or launcher not in ("accelerate", "torchrun"):
        return
    endpoint = view.fact("rdzv_endpoint") or "rdzv_endpoint" in view.unknown or view.passes("rdzv_endpoint")
    if launcher == "torchrun" and endpoint:
        return  # c10d numbers the machines itself
    if view.fact("rdzv_backend", "launch") not in (None, "static") or view.passes("machine_rank", "node_rank"):
        return
    yield Said(
        f"the script gives all {machines} machines the same rank ({view.fact('machine_rank') or 0})",
        "--machine_rank $NODE_RANK, set on each machine" if launcher == "accelerate" else "--node_rank $NODE_RANK",
        view.where("machine_rank", "num_machines", "parallelism.nodes"),
        "machine_rank",
    )


@rule("RG305", "launch", Severity.WARNING, source="https://github.com/huggingface/accelerate/issues/1649")
def jobs_on_one_machine_have_their_own_ports(view: View) -> Iterator[Said]:
    """The default port is 29500 for every job. Where a job takes only some of a machine's GPUs a second one is likely:
    it cannot bind the port (torchrun), or is moved to another without a word (Accelerate 1.13, one machine). Port 0
    picks a different port in every launcher, so several machines never meet."""
    stated, machines = view.states("launch.main_process_port"), view.machines or 1
    port = view.value("launch.main_process_port") if stated else None
    if port == 0 and machines > 1:
        place = view.where("launch.main_process_port", "main_process_port")
        reason = f"port 0 lets each of the {machines} machines choose another one"
        yield Said(reason, "write one free port for all", place, "main_process_port", Severity.ERROR)
        return
    launcher = view.fact("launcher", "launch")
    if port is not None or launcher not in ("accelerate", "torchrun", None) or view.fact("standalone"):
        return
    cluster, visible = view.subject.cluster, view.visible
    whole = cluster is not None and visible is not None and visible >= cluster.node.gpu_count
    if visible is None or whole or machines > 1 or (view.world or 1) < 2:
        return
    yield Said(
        f"{visible} GPUs are chosen and no port: a second job on this machine meets the first at 29500",
        "a port of its own for each job (main_process_port, --master_port), or torchrun --standalone",
        view.where("gpu_ids", "environment"),
        "main_process_port",
        Severity.WARNING if launcher == "torchrun" else Severity.NOTE,
    )


@rule("RG306", "launch", Severity.ERROR, source="https://github.com/deepspeedai/DeepSpeed/issues/6914")
def a_sharding_engine_has_a_launcher(view: View) -> Iterator[Said]:
    """Plain `python` starts one process. DeepSpeed then sees one rank, so that the batch equation of its JSON fails or
    nothing is shared out, and the Transformers trainer refuses FSDP ("only works in distributed training")."""
    cluster = view.subject.cluster
    several = (cluster is not None and cluster.world_size > 1) or (view.visible or 0) > 1
    if not view.is_plain_python or view.engine == "none":
        return
    total, micro, steps = (
        view.fact(name, "deepspeed")
        for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    )
    stated = all(isinstance(number, int) for number in (total, micro, steps))
    name = "DeepSpeed" if view.engine == "deepspeed" else "FSDP"
    if stated and total != micro * steps:
        reason = f"started by python: train_batch_size {total} is not {micro} x {steps} x 1 process"
    elif view.engine == "fsdp" or several:
        reason = f"{name} started by python is one process, so it has nothing to share out"
    else:
        return
    fix = "accelerate launch, torchrun --nproc_per_node N or deepspeed --num_gpus N"
    yield Said(reason, fix, view.where("launcher", "script"), "launcher")


@rule("RG307", "launch", Severity.WARNING, source="transformers 5.16.1, trainer.py (torch.nn.DataParallel)")
def python_alone_uses_one_process(view: View) -> Iterator[Said]:
    """With several visible GPUs and one process the Transformers trainer falls back to DataParallel: one process drives
    all cards, the batch is multiplied by their number, and it is slower than DDP."""
    cluster, visible = view.subject.cluster, view.visible
    count = visible if visible is not None else cluster.node.gpu_count if cluster else 1
    if view.is_plain_python and view.engine == "none" and count > 1:
        reason = f"started by python, one process for {count} GPUs"
        yield Said(reason, "accelerate launch, or torchrun --nproc_per_node N", view.where("launcher"), "launcher")


@rule("RG308", "network", Severity.WARNING, source="https://github.com/deepspeedai/DeepSpeed/issues/4433")
def peer_to_peer_is_off_where_the_card_has_none(view: View) -> Iterator[Said]:
    """GeForce cards have no peer-to-peer under the vendor's driver. Where the driver claims it all the same, or the
    IOMMU translates, the first collective hangs. Axolotl turns it off itself when it sees none, Accelerate on the RTX
    40 series; other launchers leave it to you. If it still hangs: IOMMU and ACS in the BIOS."""
    gpu, cluster = view.gpu, view.subject.cluster
    if gpu is None or cluster is None or gpu.peer_to_peer or gpu.nvlink or gpu.compute_capability == "cpu":
        return
    count = view.per_machine or cluster.node.gpu_count
    if count < 2 or "NCCL_P2P_DISABLE" in view.environment or view.fact("sourced"):
        return
    handled = view.trainer == "axolotl" or (
        view.fact("launcher", "launch") == "accelerate" and gpu.compute_capability == "sm_89"
    )
    yield Said(
        f"{count} x {gpu.name} without peer-to-peer, and nothing sets NCCL_P2P_DISABLE",
        "export NCCL_P2P_DISABLE=1; if the first collective still hangs, turn IOMMU translation and ACS off",
        view.where("environment", "launcher") if view.has_script else "",
        "launch.environment",
        Severity.NOTE if handled or not view.has_script else None,
    )


@rule("RG309", "network", Severity.NOTE, source="https://github.com/NVIDIA/nccl/issues/1999")
def peer_to_peer_over_pcie_was_tried(view: View) -> Iterator[Said]:
    """Cards without NVLink talk through the PCIe root. On some hosts (IOMMU, ACS) that path hangs with busy GPUs or
    returns wrong numbers, which no file shows: try it before a run is left alone."""
    gpu, cluster = view.gpu, view.subject.cluster
    if gpu is None or cluster is None or not gpu.peer_to_peer or gpu.nvlink:
        return
    if (view.per_machine or cluster.node.gpu_count) < 2 or view.environment.get("NCCL_P2P_DISABLE") == "1":
        return
    yield Said(
        f"needs verification: peer-to-peer between the {gpu.name} of this host",
        f"{_P2P_TEST}; if it hangs: NCCL_P2P_DISABLE=1",
    )


@rule("RG317", "network", Severity.WARNING, source=_NCCL_ENVIRONMENT)
def transfers_take_the_links_that_there_are(view: View) -> Iterator[Said]:
    """NCCL_P2P_DISABLE=1 is for cards without peer-to-peer. Where the GPUs have NVLink it sends every transfer through
    host memory instead, several times slower; over PCIe it costs less, and is right where peer-to-peer hangs.
    NCCL_IB_DISABLE=1 leaves TCP between machines that have InfiniBand or RoCE."""
    gpu, cluster = view.gpu, view.subject.cluster
    if gpu is None or cluster is None:
        return
    several = (view.per_machine or cluster.node.gpu_count) > 1
    if view.environment.get("NCCL_P2P_DISABLE") == "1" and several and (gpu.nvlink or gpu.peer_to_peer):
        link = "NVLink" if gpu.nvlink else "peer-to-peer over PCIe"
        reason = f"NCCL_P2P_DISABLE=1 turns {link} between the {gpu.name} off: transfers go through host memory"
        fix = "remove it" if gpu.nvlink else "remove it, unless peer-to-peer hangs on this host"
        severity = None if gpu.nvlink else Severity.NOTE
        yield Said(reason, fix, view.line_of("NCCL_P2P_DISABLE"), "launch.environment", severity)
    network = cluster.network
    if view.environment.get("NCCL_IB_DISABLE") == "1" and network is not None and network.rdma:
        reason = f"NCCL_IB_DISABLE=1 leaves TCP between {cluster.nodes} machines on {network.name}"
        yield Said(reason, "remove it", view.line_of("NCCL_IB_DISABLE"), "launch.environment")


@rule("RG310", "launch", Severity.WARNING, source=f"{_ACCELERATE}; {_TORCHRUN}")
def the_cpu_optimizer_has_threads(view: View) -> Iterator[Said]:
    """Accelerate and torchrun export OMP_NUM_THREADS=1 unless it is set. An optimizer that is offloaded to the CPU then
    steps on one core per process."""
    launcher = view.fact("launcher", "launch")
    if view.offload("optimizer") not in ("cpu", "nvme") or launcher not in ("accelerate", "torchrun"):
        return
    if (view.processes or 2) > 1 and not view.states("launch.omp_num_threads") and not view.fact("sourced"):
        cluster = view.subject.cluster
        cores = cluster.node.physical_cores // cluster.node.gpu_count if cluster else 0
        yield Said(
            f"the optimizer steps on the CPU, and {launcher} exports OMP_NUM_THREADS=1",
            f"export OMP_NUM_THREADS={max(cores, 1) if cores else 'CORES_PER_GPU'}",
            view.where("launcher"),
            "launch.omp_num_threads",
        )


@rule("RG311", "launch", Severity.WARNING, source="https://pytorch.org/docs/stable/elastic/run.html")
def threads_fit_the_cores(view: View) -> Iterator[Said]:
    """OMP_NUM_THREADS counts per process: with one process a GPU, more threads than cores fight for them."""
    threads, cluster = view.value("launch.omp_num_threads"), view.subject.cluster
    if not isinstance(threads, int) or cluster is None or not view.states("launch.omp_num_threads"):
        return
    count = view.per_machine or cluster.node.gpu_count
    hardware_threads = 2 * cluster.node.physical_cores
    if threads * count > hardware_threads and threads > 1:
        reason = f"{count} processes x {threads} threads on {cluster.node.physical_cores} cores"
        fix = f"OMP_NUM_THREADS={max(cluster.node.physical_cores // count, 1)}"
        yield Said(reason, fix, view.where("launch.omp_num_threads"), "launch.omp_num_threads")


@rule("RG312", "launch", Severity.ERROR, source="https://github.com/huggingface/transformers/issues/31557")
def one_copy_is_not_spread_over_all_cards(view: View) -> Iterator[Said]:
    """`device_map: auto` puts the layers of one copy on all visible cards. With several processes each would do so, and
    Transformers refuses. Axolotl overwrites it with the local rank when several processes run."""
    device_map = view.fact("device_map") or view.raw("device_map")
    if not isinstance(device_map, str) or device_map not in ("auto", "balanced", "balanced_low_0", "sequential"):
        return
    if view.processes is None or view.processes < 2:
        return
    reason = f"device_map {device_map} with {view.processes} processes"
    if view.trainer == "axolotl":
        yield Said(f"{reason}: Axolotl overwrites it", "remove it", view.where("device_map"), "", Severity.WARNING)
    else:
        yield Said(f"{reason} is refused", "remove device_map", view.where("device_map"), "device_map")


@rule("RG313", "launch", Severity.NOTE, source="https://github.com/deepspeedai/DeepSpeed/issues/2503")
def nvme_offload_was_tried_on_the_host(view: View) -> Iterator[Said]:
    """Swapping to NVMe needs DeepSpeed's async_io built against libaio, and a folder that exists, can be written and is
    on an NVMe drive: no file shows any of it."""
    if "nvme" not in (view.offload("optimizer"), view.offload("param")):
        return
    path = view.value("deepspeed.nvme_path") or "the nvme_path"
    yield Said(
        f"needs verification: async_io and {path} on every machine",
        f"ds_report | grep async_io; findmnt -T {path}; touch {path}/x",
        view.where("deepspeed.nvme_path", "deepspeed.offload_optimizer", "deepspeed.offload_param"),
        "deepspeed.nvme_path",
    )


@rule(
    "RG315", "launch", Severity.WARNING, source="accelerate 1.13.0, commands/launch.py (deepspeed_multinode_launcher)"
)
def deepspeed_on_several_machines_has_a_launcher(view: View) -> Iterator[Said]:
    """Unless deepspeed_multinode_launcher is `standard`, Accelerate builds a `deepspeed --hostfile` command, which logs
    in to the other machines by ssh (pdsh). `standard` is one launcher on each machine, as for FSDP."""
    if view.fact("distributed_type") != "DEEPSPEED" or (view.machines or 1) < 2:
        return
    chosen = view.fact("deepspeed_multinode_launcher")
    if chosen != "standard":
        yield Said(
            f"deepspeed_multinode_launcher is {chosen or 'not set (pdsh)'}: it needs a hostfile and ssh",
            "deepspeed_config: {deepspeed_multinode_launcher: standard}",
            view.where("deepspeed_multinode_launcher", "distributed_type"),
            "deepspeed_config.deepspeed_multinode_launcher",
        )


@rule("RG316", "launch", Severity.ERROR, source="axolotl 0.19.0, cli/utils/train.py (rdzv_id)")
def axolotl_on_several_machines_names_the_rendezvous(view: View) -> Iterator[Said]:
    """`axolotl train --launcher torchrun` invents a random rdzv_id when none is given: another on every machine, so
    they never meet."""
    words = view.fact("arguments", "launch") or ()
    if view.fact("launcher", "launch") != "axolotl" or "torchrun" not in words:
        return
    options = " ".join(words).replace("-", "_")
    if re.search(r"__nnodes[ =](?!1\b)", options) and "rdzv_id" not in options:
        reason = "no --rdzv_id: every machine invents one of its own"
        yield Said(reason, "add --rdzv_id NAME, the same on every machine", view.where("launcher"), "rdzv_id")
