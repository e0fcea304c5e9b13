"""What every benchmark writes beside its figures: where, when, of which commit, by which command."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path


def commit() -> str:
    out = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return out.stdout.strip() or os.environ.get("MKVIZ_COMMIT", "unknown")


def gpu() -> dict:
    import cupy

    p = cupy.cuda.runtime.getDeviceProperties(0)
    version = cupy.cuda.runtime.driverGetVersion()
    return {"name": p["name"].decode(), "sms": p["multiProcessorCount"], "cuda_driver": version, "cupy": cupy.__version__}


def _plain(value):
    """numpy's numbers as Python's."""
    return value.item()


def write(name: str, figures: dict, device: dict | None = None, notes: str = "") -> Path:
    """Write tests/evidence/NAME.json, or into $OUT where that is set."""
    record = {
        "name": name, "command": " ".join(["python", *sys.argv]), "commit": commit(),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M}Z",
        "device": device or {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "python": platform.python_version(), "notes": notes, "figures": figures,
    }  # fmt: skip
    folder = Path(os.environ.get("OUT") or Path(__file__).parents[1] / "tests" / "evidence")
    path = folder / f"{name}.json"
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False, default=_plain) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=1, ensure_ascii=False, default=_plain))
    return path
