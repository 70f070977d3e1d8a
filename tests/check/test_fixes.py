"""`--fix`: which findings get an edit, that it mends what it says, and that everything else is left alone."""

from __future__ import annotations

import pytest

from recipegen.catalog.stack import load_stack
from recipegen.check.fix import attempt, fix
from recipegen.check.fixes import MAX_TRIALS, edits_for, with_edits
from recipegen.check.keys import accelerate_keys, axolotl_keys, deepspeed_keys
from recipegen.check.registry import finding
from recipegen.check.subject import Subject
from recipegen.formats import accelerate_read, arguments_read, axolotl_read, deepspeed_read, documents
from recipegen.formats.assembled import Assembled
from recipegen.spec import Edit, Finding, Severity

STACK = load_stack("axolotl-0.19.0")
_READ = {
    "axolotl.yaml": (axolotl_read.read, axolotl_keys),
    "accelerate.yaml": (accelerate_read.read, accelerate_keys),
    "deepspeed.json": (deepspeed_read.read, deepspeed_keys),
    "arguments.yaml": (arguments_read.read, None),
}
HEAD = "base_model: org/model  # ours\n"


def subject(name: str, text: str) -> Subject:
    content = text.encode()
    read, _ = _READ[name]
    document = documents.read(content, name)
    return Subject(
        "x", name, {name: content}, {name: document}, {name: read(content, name)}, Assembled(None, None), STACK
    )


def findings(of: Subject) -> list[Finding]:
    """What the key check and the reader say, as `recipegen check` does."""
    document, reading = of.documents[of.main], of.readings[of.main]
    check = _READ[of.main][1]
    found = list(check(document, STACK)) if check else []
    for old, new in reading.legacy.items():
        where = document.where(tuple(old.split(".")))
        found.append(finding("RG715", Severity.NOTE, f"{old} is old", fix=f"write {new}", where=where, field=old))
    return found


def fixed(text: str, name: str = "axolotl.yaml") -> str:
    of = subject(name, text)
    found = attempt(of.files, with_edits(findings(of), of))
    assert found.left == ()
    assert bool(found.diff) == bool(found.files)
    return found.files.get(name, of.files[name]).decode()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("learning_rte: 0.1  # mine\n", "learning_rate: 0.1  # mine\n"),
        ("laerning_ratee: 0.1\n", "learning_rate: 0.1\n"),
        ("learning_rte: 2e-4\n", "learning_rate: 2e-4\n"),
        ("datasets:\n  - pth: a.jsonl\n    type: alpaca\n", "datasets:\n  - path: a.jsonl\n    type: alpaca\n"),
        ("optim_args:\n  eps: 1e-8  # small\n", "optim_args:\n  eps: 1.0e-08  # small\n"),
        ("liger_rope: true\n", "liger_rope: true\nplugins:\n  - axolotl.integrations.liger.LigerPlugin\n"),
        (
            "liger_rope: true\nliger_rms_norm: true\ncut_cross_entropy: true\nplugins: []\n",
            "liger_rope: true\nliger_rms_norm: true\ncut_cross_entropy: true\nplugins: [axolotl.integrations.liger"
            ".LigerPlugin, axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\n",
        ),
        ("flash_attention: true  # fast\n", "attn_implementation: flash_attention_2  # fast\n"),
        ("flash_attention: true\nsdp_attention: false\n", "attn_implementation: flash_attention_2\n"),
        ("gradient_checkpointing: offload\n", "gradient_checkpointing: true\nactivation_offloading: true\n"),
        (
            # Axolotl refuses the second without the first.
            "gradient_checkpointing: offload\nfsdp_version: 2\nfsdp_config:\n  activation_checkpointing: true\n",
            "gradient_checkpointing: true\nfsdp_version: 2\nfsdp_config:\n  activation_checkpointing: true\n"
            "activation_offloading: true\n",
        ),
        ("evaluation_strategy: epoch\n", "eval_strategy: epoch\n"),
        ("bf16: full\n", "bf16: true\n"),
        (
            "fsdp_version: 2\nfsdp_config:\n  fsdp_offload_params: true\n  fsdp_state_dict_type: FULL_STATE_DICT\n",
            "fsdp_version: 2\nfsdp_config:\n  offload_params: true\n  state_dict_type: FULL_STATE_DICT\n",
        ),
        (
            "fsdp_version: 2\nfsdp_final_state_dict_type: FULL_STATE_DICT\nfsdp_config:\n  offload_params: true\n",
            "fsdp_version: 2\nfsdp_config:\n  offload_params: true\n  final_state_dict_type: FULL_STATE_DICT\n",
        ),
    ],
)
def test_safe_fixes(old: str, new: str) -> None:
    assert fixed(HEAD + old) == HEAD + new
    assert fixed(HEAD + new) == HEAD + new


@pytest.mark.parametrize(
    "text",
    [
        "learning_rate: 1.0e-5\nlearning_rte: 1.0e-4\n",  # which of the two is meant?
        "learning_rte: fast\n",  # the trainer would stop at it
        "global_batch_size: 32\n",  # another word, and another meaning
        "per_device_train_batch_size: 2\n",
        "frobnicate: true\n",
        "project_name: mine\n",  # comet_project_name is near, and something else
        "adam_beta3: 0.9\n",
        "learning_rate: 2e-4\n",  # the trainer converts it
        "flash_attention: true\nattn_implementation: sdpa\n",
        "flash_attention: true\nxformers_attention: true\n",
        "fsdp: [full_shard, auto_wrap]\n",  # FSDP1 to FSDP2 is a decision
        "fsdp_config:\n  offload_params: true\n",
        "plugins: axolotl.integrations.liger.LigerPlugin\nliger_rope: true\n",
        "micro_batch_size: 2\ngradient_accumulation_steps: 4\nbf16: true\nfp16: true\n",
    ],
)
def test_what_a_person_has_to_decide_stays(text: str) -> None:
    assert fixed(HEAD + text) == HEAD + text


def test_accelerate() -> None:
    text = "distributed_type: FSDP\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 2\n  fsdp_ofload_params: true\n"
    assert fixed(text, "accelerate.yaml") == text.replace("ofload", "offload")
    assert fixed("fp16: true\nnum_processes: 1\n", "accelerate.yaml").startswith("mixed_precision: fp16\n")


def test_deepspeed() -> None:
    old = '{\n  "zero_optimization": {\n    "stage": 2,\n    "cpu_offload": true\n  },\n  "gradient_cliping": 1.0\n}\n'
    assert fixed(old, "deepspeed.json") == (
        '{\n  "zero_optimization": {\n    "stage": 2,\n    "offload_optimizer": {\n      "device": "cpu"\n    }\n  },\n'
        '  "gradient_clipping": 1.0\n}\n'
    )


def test_arguments() -> None:
    assert fixed("torch_dtype: bfloat16\nevaluation_strategy: epoch\n", "arguments.yaml") == (
        "dtype: bfloat16\neval_strategy: epoch\n"
    )


def test_a_finding_about_a_key_that_is_not_there_or_another_file_gets_no_edit() -> None:
    of = subject("axolotl.yaml", HEAD + "learning_rte: 0.1\n")
    (found,) = findings(of)
    assert edits_for(found, of) == (Edit("axolotl.yaml", ("learning_rte",), "rename", key="learning_rate"),)
    for where in ("axolotl.yaml", "axolotl.yaml:1", "other.yaml:2", ""):
        moved = finding(found.rule, found.severity, found.reason, fix=found.fix, where=where, field=found.field)
        assert edits_for(moved, of) == ()


def test_only_so_many_fixes_are_tried() -> None:
    of = subject("axolotl.yaml", HEAD + "learning_rte: 0.1\n")
    assert len([one for one in with_edits(findings(of) * 150, of) if one.edits]) == MAX_TRIALS
    large = subject("axolotl.yaml", HEAD + "learning_rte: 0.1\n" + "#" * 900_000)
    assert len([one for one in with_edits(findings(large) * 5, large) if one.edits]) == 2


def said(*edits: Edit) -> Finding:
    return Finding("RG701", Severity.ERROR, "silent-key", "x", edits=edits)


def test_a_finding_is_mended_as_a_whole_or_not_at_all() -> None:
    files = {"a.yaml": b"a: 1\n", "b.json": b'{"b": 1}'}
    good = said(Edit("a.yaml", ("a",), "set", 2), Edit("b.json", ("b",), "set", 2))
    bad = said(Edit("a.yaml", ("a",), "set", 3), Edit("b.json", ("c",), "set", 3))
    elsewhere = said(Edit("c.yaml", ("a",), "set", 3))
    found = attempt(files, [good, bad, elsewhere, good])
    assert found.files == {"a.yaml": b"a: 2\n", "b.json": b'{"b": 2}'}
    assert found.made == (good, good)
    assert [one for one, _ in found.left] == [bad, elsewhere]
    assert all(reason.startswith(("b.json", "c.yaml")) for _, reason in found.left)


def test_what_is_inside_is_changed_before_its_mapping_is_renamed() -> None:
    files = {"a.yaml": b"a:\n  b: 1\n"}
    found = [said(Edit("a.yaml", ("a",), "rename", key="c")), said(Edit("a.yaml", ("a", "b"), "rename", key="d"))]
    changed, diff = fix(files, found)
    assert changed == {"a.yaml": b"c:\n  d: 1\n"}
    assert diff == "--- a/a.yaml\n+++ b/a.yaml\n@@ -1,2 +1,2 @@\n-a:\n-  b: 1\n+c:\n+  d: 1\n"
    assert fix(files, []) == ({}, "")
