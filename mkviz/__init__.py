"""mkviz: shows what happens inside a GPU megakernel while it runs."""

from importlib import import_module

__version__ = "0.1.0"

_LAZY = {
    "export": "mkviz.exports",
    "live": "mkviz.dashboard.cell_live",
    "requests": "mkviz.request_times",
    **dict.fromkeys(("timeline", "occupancy", "waits", "tails", "bandwidth"), "mkviz.dashboard.cell_views"),
}


def __getattr__(name: str):
    """Functions whose modules load much, and only when one is used."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'mkviz' has no attribute {name!r}")
