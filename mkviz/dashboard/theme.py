"""Theme: the colours of the page's own parts, light and dark, and its style sheet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Theme:
    text: str
    faint: str
    page: str
    grid: str
    step: str
    wait: str
    busy: str
    accent: str


LIGHT = Theme(text="#1c2330", faint="#5b6472", page="#ffffff", grid="#e4e7ec", step="#eef1f5", wait="#9aa1ab", busy="#3b6ea8",
              accent="#0b5cad")  # fmt: skip
DARK = Theme(text="#e6e9ef", faint="#a2abba", page="#14181f", grid="#2a303b", step="#1d232d", wait="#737b88", busy="#6ea3da",
             accent="#7db7f5")  # fmt: skip

KIND_COLOURS = {  # of the label of a source: nobody may take a simulation for a measurement
    "measured": ("#0a6b4b", "#4fd1a1"),
    "recorded": ("#0b5cad", "#7db7f5"),
    "imported": ("#6b4aa0", "#b69cf0"),
    "simulated": ("#a04a00", "#f2a65a"),
}


def theme_of(dark: bool) -> Theme:
    return DARK if dark else LIGHT


def asset(name: str) -> str:
    """Text of a style sheet or script beside this file."""
    return (HERE / name).read_text(encoding="utf-8")
