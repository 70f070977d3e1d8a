"""Bytes over time: what lives at a peak, whatever is said about it later."""

from recipegen.simulate.ledger import Ledger


def test_the_peak_of_a_phase_is_what_lived_then() -> None:
    ledger = Ledger()
    kept = ledger.open(1000, "parameters", "weight")
    ledger.enter("forward")
    passing = ledger.open(512, "saved_activations", "add")
    ledger.close(passing)
    ledger.open(100, "saved_activations", "mul")
    assert kept.bytes == 1024
    (phase,) = ledger.phases()
    assert (phase.name, phase.bytes) == ("forward", 1024 + 512)
    assert {t.name: t.bytes for t in phase.terms} == {"parameters": 1024, "saved_activations": 512}


def test_a_label_corrected_after_the_peak_counts() -> None:
    ledger = Ledger()
    ledger.enter("loss_backward")
    entry = ledger.open(4096, "layer_working_set", "mm (8, 256) bf16")
    entry.label = "gradients"
    (phase,) = ledger.phases()
    assert [t.name for t in phase.terms] == ["gradients"]
    assert "mm (8, 256) bf16" in phase.terms[0].basis


def test_what_is_alive_when_a_phase_begins_counts_for_it() -> None:
    ledger = Ledger()
    big = ledger.open(8192, "gradients")
    ledger.enter("optimizer_step")
    ledger.close(big)
    ledger.open(512, "optimizer_temporaries")
    (phase,) = ledger.phases()
    assert phase.bytes == 8192


def test_a_measured_step_starts_from_nothing_but_what_lives() -> None:
    ledger = Ledger()
    ledger.enter("forward")
    ledger.close(ledger.open(1 << 20, "warm up"))
    ledger.start()
    ledger.open(512, "saved_activations")
    assert ledger.phases()[0].bytes == 512
