"""Makes constraints/pyXY.txt for the Python that runs it: pip's own resolve of everything that `make` installs, as exact pins.

Used by `make constraints`.  Needs a pip that resolves from metadata alone (24 or newer).
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = "test,notebooks,cuda13,gguf,serve,dask,dev"

with tempfile.NamedTemporaryFile(suffix=".json") as report:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", report.name]
    subprocess.run([*pip, "-c", str(ROOT / "constraints" / "pins.txt"), f"{ROOT}[{EXTRAS}]"], check=True)
    found = [item["metadata"] for item in json.loads(Path(report.name).read_text())["install"]]

minor = f"{sys.version_info.major}.{sys.version_info.minor}"
lines = [f"# mkviz[{EXTRAS}] as pip resolves it on Linux x86-64 with Python {minor}; made by `make constraints`"]
for package in sorted(found, key=lambda p: p["name"].lower()):
    if package["name"] != "mkviz":
        lines.append(f"{package['name']}=={package['version'].partition('+')[0]}")
target = ROOT / "constraints" / f"py{minor.replace('.', '')}.txt"
target.write_text("\n".join(lines) + "\n")
print(f"{target.relative_to(ROOT)}: {len(lines) - 1} packages")
