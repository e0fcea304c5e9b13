"""mkviz: shows what happens inside a GPU megakernel while it runs."""

__version__ = "0.1.0"
