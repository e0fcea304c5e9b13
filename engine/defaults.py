"""Defaults: how a model's makers would have it sampled."""

from __future__ import annotations

from pathlib import Path

from engine.config import read_json
from engine.sampling import SamplingParams
from mkviz.errors import MkvizError

NAMES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def sampling_defaults(directory: Path) -> dict[str, float]:
    """Those of NAMES that ``generation_config.json`` of a model directory has; {} where there is no such file.

    Raises :class:`MkvizError` naming the file and the field for a value that cannot be honoured.
    """
    path = Path(directory) / "generation_config.json"
    if not path.exists():
        return {}
    values = {name: value for name, value in read_json(path).items() if name in NAMES and value is not None}
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int if name == "top_k" else int | float):
            raise MkvizError(f"{path.name}: {name} {value!r}", "a whole number" if name == "top_k" else "a number")
    try:
        SamplingParams(**values)
    except MkvizError as error:
        raise MkvizError(f"{path.name}: {error.what}", error.remedy) from None
    return values
