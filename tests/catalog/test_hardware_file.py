"""A person's own hardware profile: it works wherever a name does, and nothing in it is a traceback."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recipegen.catalog.bounded_yaml import SMALL
from recipegen.catalog.cluster import load_cluster
from recipegen.spec import EnvVar, RecipegenError
from recipegen.spec.units import GB, GIB

CORPUS = Path(__file__).parents[1] / "corpus" / "hardware"

WHOLE = """\
format_version: 1
name: the box under the stairs
description: 2 x a card of my own
source: nvidia-smi, nccl-tests
gpu:
  name: My Card
  compute_capability: sm_120
  memory_gib: 47.4
  spec_tflops: 200
  training_tflops: 80
  memory_bandwidth_gb_s: 1000
  power_w: 400
  peer_to_peer: true
gpu_count: 2
host_ram_gib: 256
nvme_gb: 2000
nvme_read_gb_s: 7
nvme_write_gb_s: 5
sockets: 1
physical_cores: 24
bus_bandwidth_gb_s: 21
host_to_device_gb_s: 25
cpu_adam_params_per_s: 1.5e+9
environment:
  - {name: NCCL_P2P_LEVEL, value: PHB, reason: measured here}
  - {name: OMP_NUM_THREADS, value: 12}
  - {name: NCCL_SOCKET_IFNAME, value: null}
"""


@pytest.fixture
def profile(tmp_path: Path):
    def write(text: str | bytes, name: str = "box.yaml") -> str:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def refused(path: str, message: str, line: int | None = None) -> None:
    with pytest.raises(RecipegenError, match=re.escape(message)) as caught:
        load_cluster(path)
    text = str(caught.value)
    assert text.isprintable()
    assert text.startswith(f"{path}:{line}: " if line else path)


# ---------------------------------------------------------------------------------------------------- sound profiles


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_cpu_test_boxes_are_ordinary_profiles(count: int) -> None:
    cluster = load_cluster(CORPUS / f"cpu-{count}x.yaml")
    assert cluster.world_size == count
    gpu = cluster.gpu
    assert gpu.compute_capability == "cpu"
    assert gpu.memory_bytes == 8 * GIB
    assert gpu.bf16
    absent = ("triton", "flash_attention", "pinned_memory", "fp8", "tf32", "fused_linear_loss", "peer_to_peer")
    assert not any(getattr(gpu, capability) for capability in absent)
    assert cluster.node.physical_cores == 2
    assert cluster.node.host_ram_bytes == 24 * GIB
    assert cluster.node.environment == ()


def test_a_cpu_cluster_speaks_no_nccl() -> None:
    cluster = load_cluster(CORPUS / "cpu-2x.yaml", nodes=2, network="tcp-25")
    assert cluster.world_size == 4
    assert [variable.name for variable in cluster.network.environment] == ["GLOO_SOCKET_IFNAME"]


def test_a_whole_profile(profile) -> None:
    path = profile(WHOLE)
    cluster = load_cluster(path)
    assert cluster.name == path
    assert cluster.description == "2 x a card of my own"
    assert cluster.gpu.name == "My Card"
    assert cluster.gpu.memory_bytes == round(47.4 * GIB)
    assert cluster.gpu.peer_to_peer
    assert not cluster.gpu.flash_attention
    assert cluster.node.host_ram_bytes == 256 * GIB
    assert cluster.node.nvme_bytes == 2000 * GB
    assert cluster.node.cpu_adam_params_per_s == 1.5e9
    assert cluster.node.environment == (
        EnvVar("NCCL_P2P_LEVEL", "PHB", "measured here"),
        EnvVar("OMP_NUM_THREADS", "12", f"stated in {path}"),
        EnvVar("NCCL_SOCKET_IFNAME", None, f"stated in {path}"),
    )


def test_nodes_network_and_overrides_work_on_it(profile) -> None:
    cluster = load_cluster(
        profile(WHOLE), nodes=3, network="ib-hdr", overrides={"host_ram_gib": 512, "gpu_power_w": 300}
    )
    assert cluster.world_size == 6
    assert cluster.node.host_ram_bytes == 512 * GIB
    assert cluster.gpu.power_w == 300


def test_a_gpu_of_ones_own_needs_a_matrix_product_or_a_training_rate(profile) -> None:
    measured = load_cluster(profile(WHOLE.replace("training_tflops: 80", "matmul_tflops: 150"))).gpu
    assert (measured.matmul_tflops, measured.training_tflops) == (150, None)
    with pytest.raises(RecipegenError, match=r"needs gpu\.matmul_tflops"):
        load_cluster(profile(WHOLE.replace("  training_tflops: 80\n", "")))


def test_a_known_gpu_needs_no_more_than_a_count(profile) -> None:
    own, known = load_cluster(profile("gpu: rtx-5090\ngpu_count: 4\n")), load_cluster("4x-rtx-5090")
    assert own.node == known.node
    changed = load_cluster(profile("gpu: rtx-5090\ngpu_count: 4\nhost_ram_gib: 100\n"))
    assert changed.node.host_ram_bytes == 100 * GIB
    assert changed.node.sockets == known.node.sockets


def test_a_card_like_a_known_one(profile) -> None:
    cluster = load_cluster(profile("gpu: {like: rtx-4090, name: RTX 4090 48GB, memory_gib: 47.4}\ngpu_count: 8\n"))
    assert cluster.gpu.name == "RTX 4090 48GB"
    assert cluster.gpu.memory_bytes == round(47.4 * GIB)
    assert cluster.gpu.matmul_tflops == load_cluster("8x-rtx-4090").gpu.matmul_tflops


def test_a_stated_rate_replaces_the_measured_ones_of_all_collectives(profile) -> None:
    node = load_cluster(profile("gpu: rtx-pro-6000\ngpu_count: 8\nbus_bandwidth_gb_s: 41\n")).node
    assert (node.bus_bandwidth_gb_s, node.all_gather_gb_s, node.reduce_scatter_gb_s) == (41, None, None)


def test_decisions_look_at_capabilities_not_at_the_name(profile) -> None:
    """The same facts under another name give the same variables."""
    known = load_cluster("8x-rtx-pro-6000", nodes=2, network="roce-100")
    renamed = load_cluster(profile("gpu: {like: rtx-pro-6000, name: X}\ngpu_count: 8\n"), nodes=2, network="roce-100")
    assert renamed.node.environment == known.node.environment
    assert renamed.network == known.network


def test_numbers_as_people_write_them(profile) -> None:
    text = WHOLE.replace("1.5e+9", "1.5e9").replace("host_ram_gib: 256", "host_ram_gib: 0256.0")
    node = load_cluster(profile(text)).node
    assert node.cpu_adam_params_per_s == 1.5e9
    assert node.host_ram_bytes == 256 * GIB
    quoted = load_cluster(profile(WHOLE.replace("value: 12}", "value: '012'}"))).node
    assert quoted.environment[1].value == "012"
    one = load_cluster(profile("gpu: l4\ngpu_count: 1\nbus_bandwidth_gb_s: 0\nnvme_gb: 0\n")).node
    assert (one.bus_bandwidth_gb_s, one.nvme_bytes) == (0, 0)


def test_any_suffix_will_do_for_an_existing_file(profile) -> None:
    assert load_cluster(profile("gpu: l4\ngpu_count: 1\n", "box.txt")).gpu.name == "L4"


# ---------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("old", "new", "message", "line"),
    [
        ("host_ram_gib", "host_ram", "unknown key 'host_ram'", 15),
        ("  memory_gib", "  memory_gb", "Did you mean memory_gib", 8),
        ("host_ram_gib: 256", "host_ram_gib: lots", "it must be a number", 15),
        ("host_ram_gib: 256", "host_ram_gib: 274877906944", "between", 15),
        ("host_ram_gib: 256", "host_ram_gib: .nan", "between", 15),
        ("host_ram_gib: 256", "host_ram_gib: 2026-99-99", "cannot be read", None),
        ("sockets: 1", "sockets: 1.5", "whole number", 19),
        ("peer_to_peer: true", "peer_to_peer: 1", "true or false", 13),
        ("sm_120", "12.0", "compute_capability is 12.0", 7),
        ("sm_120", "sm_120; rm", "compute_capability is", 7),
        ("gpu_count: 2", "gpu_count: 0", "between 1 and 64", 14),
        ("gpu_count: 2", "gpu_count: two", "it must be a number", 14),
        ("format_version: 1", "format_version: 2", "format_version is 2", 1),
        ("format_version: 1", "format_version: true", "format_version is True", 1),
        ("name: My Card", 'name: "a\\nb"', "line break", 6),
        ("name: My Card", "name: [a]", "it is text", 6),
        ("name: My Card", 'name: ""', "empty", 6),
        ("sockets: 1", "sockets: 1\nsockets: 2", "stands twice", 20),
        ("nvme_gb: 2000", "7: 2000", "a key is not plain text", 16),
        ("nvme_gb: 2000", "? [a, b]\n: 2000", "a key is not plain text", 16),
        ("nvme_gb: 2000", "<<: {nvme_gb: 2000}", "a key is not plain text", 16),
        ("nvme_gb: 2000", "nvme_gb: !!python/object:os.system 1", "tags are not allowed", 16),
        ("nvme_gb: 2000", "nvme_gb: *anchor", "aliases", 16),
        ("nvme_gb: 2000", "nvme_gb: {", "not valid YAML", None),
        ("value: PHB", "value: true", "put it in quotes", 25),
        ("value: PHB", 'value: "a\\nexport B=1"', "line break", 25),
        ("name: NCCL_P2P_LEVEL", "name: nccl-p2p", "no variable name", 25),
        ("name: NCCL_P2P_LEVEL", 'name: "A=1;B"', "no variable name", 25),
        ("name: NCCL_P2P_LEVEL", "name: LD_PRELOAD", "which code the launcher runs", 25),
        ("name: NCCL_P2P_LEVEL", "name: PATH", "which code the launcher runs", 25),
        ("name: NCCL_P2P_LEVEL", "name: NODE_RANK", "cannot set NODE_RANK: whoever starts the nodes", 25),
        ("name: NCCL_P2P_LEVEL", "name: MASTER_ADDR", "whoever starts the nodes", 25),
        ("name: NCCL_P2P_LEVEL", "name: MASTER_PORT", "whoever starts the nodes", 25),
        ("name: NCCL_P2P_LEVEL", "name: WORLD_SIZE", "gives every process its own", 25),
        ("name: NCCL_P2P_LEVEL", "name: RANK", "gives every process its own", 25),
        ("name: NCCL_P2P_LEVEL", "name: LOCAL_RANK", "gives every process its own", 25),
        ("name: NCCL_P2P_LEVEL", "name: CUDA_VISIBLE_DEVICES", "the recipe fixes how many GPUs", 25),
        ("name: NCCL_P2P_LEVEL", "name: ACCELERATE_MIXED_PRECISION", "accelerate.yaml", 25),
        ("name: NCCL_P2P_LEVEL", "name: FSDP_VERSION", "accelerate.yaml", 25),
        ("name: NCCL_P2P_LEVEL", "name: PARALLELISM_CONFIG_TP_SIZE", "accelerate.yaml", 25),
        ("gpu_count: 2", "gpu_count: 010", "010 starts with 0, which YAML reads as an octal number. Write 10", 14),
        ("gpu_count: 2", "gpu_count: +0_2", "starts with 0, which YAML reads as an octal number. Write 2", 14),
        ("value: 12}", "value: 012}", "Write 12, or put it in quotes", 26),
        ("bus_bandwidth_gb_s: 21", "bus_bandwidth_gb_s: 0", "with 2 GPUs it must be at least 0.001", 21),
        ("nvme_read_gb_s: 7", "nvme_read_gb_s: 0", "with nvme_gb above 0 it must be at least 0.001", 17),
        ("training_tflops: 80", "training_tflops: 201", "training_tflops is 201.0, more than spec_tflops 200.0", 10),
        ("name: NCCL_P2P_LEVEL", "name: OMP_NUM_THREADS", "stands twice", 26),
        ("reason: measured here", "because: measured here", "unknown key 'because'", 25),
        ("  - {name: OMP_NUM_THREADS, value: 12}", "  - OMP_NUM_THREADS", "no mapping", 26),
        ("  - {name: OMP_NUM_THREADS, value: 12}", "  - {name: OMP_NUM_THREADS}", "needs environment.value", 26),
    ],
)
def test_a_mistake_is_named_with_its_line(profile, old: str, new: str, message: str, line: int | None) -> None:
    assert WHOLE.count(old) >= 1
    refused(profile(WHOLE.replace(old, new, 1)), message, line)


@pytest.mark.parametrize(
    "key", ["gpu_count", "host_ram_gib", "physical_cores", "bus_bandwidth_gb_s", "  power_w", "gpu"]
)
def test_what_is_missing_is_named(profile, key: str) -> None:
    document = yaml.safe_load(WHOLE)
    name = key.strip()
    (document["gpu"] if key.startswith(" ") else document).pop(name)
    refused(profile(yaml.safe_dump(document)), name)


@pytest.mark.parametrize(
    ("gpu", "message"),
    [
        ("rtx-5900", "Did you mean rtx-5090"),
        ("../../gpus/l4", "no GPU of the catalogue"),
        ("3", "mapping of its facts"),
        ("{like: [l4]}", "no GPU of the catalogue"),
        ("{like: l4, memory: 3}", "Did you mean memory_gib"),
        ("[]", "mapping of its facts"),
        ("null", "mapping of its facts"),
    ],
)
def test_a_gpu_that_is_none(profile, gpu: str, message: str) -> None:
    refused(profile(f"gpu_count: 1\ngpu: {gpu}\n"), message, 2)


LETTERS = "abcdefghijklmnopqrstu"
BOMB = "a: &a [x, x]\n" + "".join(f"{new}: &{new} [*{old}, *{old}]\n" for old, new in itertools.pairwise(LETTERS))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "aliases"),
        ("[" * 30000, "nest"),
        ("{a: " * 15000, "nest"),
        ("- " * 3000 + "x", "nest"),
        ("[" + "x," * 20000 + "]", "more than"),
        ("x" * (SMALL.size_bytes + 1), "larger than"),
        (b"\xff\xfe\x00g", "not UTF-8"),
        (b"a: \x00", "not valid YAML"),
        ("", "is a mapping"),
        ("null", "is a mapping"),
        ("- gpu", "is a mapping"),
        ("gpu: l4\n---\ngpu: l4\n", "more than one YAML document"),
        ("gpu: l4\ngpu_count: " + "9" * 5000, "gpu_count"),
        ("gpu: l4\ngpu_count: 0x_", "cannot be read"),
        ("environment: x\ngpu: l4\ngpu_count: 1", "environment is a list"),
    ],
)
def test_a_hostile_file_is_one_clear_line(profile, text: str | bytes, message: str) -> None:
    path = profile(text)
    if "9999" in str(text):
        with pytest.raises(RecipegenError):
            load_cluster(path)
    else:
        refused(path, message)


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    refused(str(tmp_path / "missing.yaml"), "No such file")
    (tmp_path / "folder.yaml").mkdir()
    refused(str(tmp_path / "folder.yaml"), "regular file")
    os.mkfifo(tmp_path / "pipe.yaml")  # must not wait for a writer
    refused(str(tmp_path / "pipe.yaml"), "regular file")


def check_is_cluster_or_one_line(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        cluster = load_cluster(path, nodes=2, network="roce-25")
    except RecipegenError as error:
        line = str(error)
    else:
        line = cluster.name
        for variable in cluster.node.environment:
            assert re.fullmatch("[A-Z][A-Z0-9_]*", variable.name)
            assert variable.value is None or variable.value.isprintable()
    assert line.isprintable()


FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@FUZZ
@given(
    st.one_of(st.binary(max_size=400), st.text(max_size=400).map(lambda text: text.encode("utf-8", "surrogatepass")))
)
def test_any_bytes(tmp_path: Path, content: bytes) -> None:
    check_is_cluster_or_one_line(tmp_path / "any.yaml", content)


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=30), st.dates(), st.binary(max_size=8)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(st.text(max_size=8), st.integers()), inner, max_size=3)
    ),
    max_leaves=8,
)


@FUZZ
@given(st.data())
def test_a_sound_profile_with_any_value_anywhere(tmp_path: Path, data: st.DataObject) -> None:
    document: dict[str, Any] = yaml.safe_load(WHOLE)
    holders: list[Any] = [document, document["gpu"], document["environment"][0], document["environment"]]
    holder = data.draw(st.sampled_from(holders))
    if isinstance(holder, list):
        holder[data.draw(st.integers(0, 2))] = data.draw(VALUES)
    else:
        key = data.draw(st.one_of(st.sampled_from(sorted(holder)), st.text(max_size=10)))
        holder[key] = data.draw(VALUES)
    check_is_cluster_or_one_line(
        tmp_path / "any.yaml", yaml.safe_dump(document, allow_unicode=True).encode("utf-8", "replace")
    )


@FUZZ
@given(st.integers(0, len(WHOLE)), st.integers(0, 40), st.text("{}[]&*!|>%@`'\"#?:-,<=\n\t abc09._", max_size=20))
def test_a_sound_profile_with_a_piece_replaced(tmp_path: Path, start: int, length: int, piece: str) -> None:
    check_is_cluster_or_one_line(tmp_path / "any.yaml", (WHOLE[:start] + piece + WHOLE[start + length :]).encode())
