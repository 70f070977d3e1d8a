"""recipegen: from a model, data and a PCIe box to a fine-tune that fits, learns and runs."""

__version__ = "0.1.0"
