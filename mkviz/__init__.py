"""mkviz: shows what happens inside a GPU megakernel while it runs."""

__version__ = "0.1.0"


def __getattr__(name: str):
    """The views for notebooks, which load the dashboard's libraries only when one is used."""
    if name == "timeline":
        from mkviz.dashboard.cell import timeline

        return timeline
    raise AttributeError(f"module 'mkviz' has no attribute {name!r}")
