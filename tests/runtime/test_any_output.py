"""Whatever the tools of a box print, the probe answers with a document that holds to its schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recipegen.catalog import load_cluster
from recipegen.runtime import Box, collect, nvidia_smi, probe, profile_yaml, system, table
from recipegen.runtime.commands import Answer
from recipegen.spec import RecipegenError
from tests.runtime.boxes import write

SCHEMA = jsonschema.Draft202012Validator(
    json.loads((Path(__file__).parents[2] / "docs/schemas/hardware-probe.schema.json").read_text())
)
TEXTS = st.text(max_size=200) | st.text(st.sampled_from("GPU0123 XOK\t\n,[]%NVAé\x1b[4m²:"), max_size=300)
CELLS = st.sampled_from(
    ["0", "1", "7", "٣", "²", "99999999999999999999", "-1", "", "[N/A]", "N/A", "Enabled", "NVIDIA GeForce RTX 5090",
     "NVIDIA RTX PRO 6000", "580.82.09", "12.0", "32607", "5", "575.00", "00000000:11:00.0", "../../..", "\x1b[2J"]
) | st.text(max_size=6)  # fmt: skip
GPU = st.tuples(
    st.sampled_from(["0", "1", "2", "x"]), st.sampled_from(["NVIDIA GeForce RTX 5090", "NVIDIA L4", "\x1b]0;"]),
    CELLS, st.sampled_from(["32607", "24564", "0", "1"]), *[CELLS] * (len(nvidia_smi.FIELDS) - 4),
).map(", ".join)  # fmt: skip
ROWS = st.lists(GPU | st.lists(CELLS, min_size=14, max_size=18).map(", ".join), max_size=4).map("\n".join)
WORDS = st.sampled_from(["GPU0", "GPU1", "GPU7", "X", "OK", "CNS", "NV18", "SYS", "PHB", "NIC0", "\x1b[4m", "Legend:"])
MATRIX = st.lists(st.lists(WORDS, max_size=6).map("\t".join), max_size=4).map(
    lambda rows: "\n".join(["\tGPU0\tGPU1\tGPU2", "GPU0\tX\tOK\tNV4", *rows])
)
LINES = st.sampled_from(["MemTotal:  5 kB", "MemAvailable: 99999999999999999999 kB", "0::/a/../b", "4:memory:/x", "²"])


@given(TEXTS)
def test_no_text_breaks_a_parser(text: str) -> None:
    nvidia_smi.refused_field(text)
    nvidia_smi.gpus(text)
    nvidia_smi.gpus(",".join([text] * len(nvidia_smi.FIELDS)))
    nvidia_smi.peers("GPU0 GPU1\n" + text)
    nvidia_smi.links("GPU0 GPU1\n" + text)
    nvidia_smi.cuda_version(text)
    system.memory(text)
    system.limit(text)
    system.reclaimable(text)
    system.cgroup_paths(text)
    system.processor([(text, text)])
    system.kernel_words(text)
    system.acs_redirects(text)
    system.link_gbit_s(text)
    system.port_gbit_s(text)
    system.port_state(text)
    system.whole_disk([text, "sda"], text)
    system.torch_answer("recipegen-torch " + text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
DEVICES = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["NVIDIA L4", "NVIDIA GeForce RTX 5090"]),
            "memory_total_bytes": st.integers(0, 2**36) | st.integers(),
            "compute_capability": st.just("sm_89") | st.text(),
        }
    )
    | JSON,
    min_size=1,
    max_size=3,
)
TORCH = st.fixed_dictionaries(
    {"installed": st.sampled_from([True, True, False]), "devices": DEVICES | JSON},
    optional={
        "version": st.text() | JSON,
        "cuda_version": st.sampled_from(["13.0", "²", "x.y", ""]) | JSON,
        "cuda_available": st.booleans() | JSON,
        "peers": JSON,
        "problem": st.text() | JSON,
        "more": JSON,
    },
).map(lambda found: "recipegen-torch " + json.dumps(found))


@given(
    st.fixed_dictionaries(
        {"query": ROWS | TEXTS, "-p2p": MATRIX | TEXTS, "-m": MATRIX | TEXTS, "-vvv": TEXTS, "-c": TORCH | TEXTS}
    ),
    st.text(max_size=9),
    st.lists(LINES, max_size=4).map("\n".join) | TEXTS,
)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_output_is_a_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outputs: dict[str, str], problem: str, files: str
) -> None:
    class Printing:
        """A command of the box that prints this."""

        def __init__(self, words: list[str], seconds: float) -> None:
            kind = next((word for word in words if word in outputs), "")
            self.text = outputs["query"] if words[1:2] and words[1].startswith("--query") else outputs.get(kind, "")

        def answer(self) -> Answer:
            return Answer(self.text, problem)

    for name in ("proc/meminfo", "proc/self/cgroup", "proc/cmdline", "sys/class/net/eth0/speed",
                 "sys/class/infiniband/mlx5_0/ports/1/rate", "sys/fs/cgroup/memory.max",
                 "sys/devices/system/cpu/cpu0/topology/core_id", "sys/block/sda/queue/rotational"):  # fmt: skip
        write(tmp_path, name, files)
    monkeypatch.setattr(collect, "Command", Printing)
    document: dict[str, Any] = probe(Box(tmp_path, paths=(str(tmp_path),)))
    SCHEMA.validate(json.loads(json.dumps(document)))
    assert all(line.isprintable() for line in table(document))
    try:
        text = profile_yaml(document)
    except RecipegenError as error:
        assert "\n" not in str(error)
        return
    (tmp_path / "box.yaml").write_text(text, encoding="utf-8")
    cluster = load_cluster(tmp_path / "box.yaml")
    assert 1 <= cluster.node.gpu_count <= len(document["gpus"])
