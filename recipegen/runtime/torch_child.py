"""Run as text by a child process, with the Python of the training environment: what torch sees. Prints one line.

It stands alone (that Python need not have recipegen), and it may hang with the driver: the parent's time is bounded.
"""

import json
import sys
from typing import Any

sys.path[:] = [entry for entry in sys.path if entry]  # a torch.py of the current folder is not torch


def look() -> "dict[str, object]":
    try:
        import torch
    except ImportError:
        return {"installed": False}
    except Exception as error:  # a broken install raises anything (OSError of a library, RuntimeError)
        return {"installed": True, "problem": f"{type(error).__name__}: {error}"[:300]}
    found: dict[str, object] = {
        "installed": True,
        "version": str(torch.__version__),
        "cuda_version": torch.version.cuda,
    }
    try:
        count = torch.cuda.device_count()
        found["cuda_available"] = bool(torch.cuda.is_available())
        devices: list[dict[str, Any]] = []
        for index in range(count):
            facts = torch.cuda.get_device_properties(index)
            devices.append(
                {
                    "name": str(facts.name),
                    "memory_total_bytes": int(facts.total_memory),
                    "compute_capability": f"sm_{facts.major}{facts.minor}",
                }
            )
        found["devices"] = devices
        found["bf16"] = bool(torch.cuda.is_bf16_supported(False)) if devices else None  # False: not by emulation
        found["peers"] = [
            {"from": a, "to": b, "status": "OK" if torch.cuda.can_device_access_peer(a, b) else "NS"}
            for a in range(count)
            for b in range(count)
            if a != b
        ]
    except Exception as error:
        found["problem"] = f"{type(error).__name__}: {error}"[:300]
    return found


print("recipegen-torch " + json.dumps(look()), flush=True)
