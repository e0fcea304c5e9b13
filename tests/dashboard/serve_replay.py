"""Serves the pages with the replay generator: ``python serve_replay.py PORT [SMS] [LAYERS] [PACE]``."""

import sys

import panel as pn
from replay_generator import ReplayGenerator, open_generator

from mkviz.dashboard.analyses_page import analyses_page
from mkviz.dashboard.hub import Hub
from mkviz.dashboard.page import page

if __name__ == "__main__":
    port, *size = sys.argv[1:]
    opener = open_generator
    if size:
        sms, layers, pace = int(size[0]), int(size[1]), float(size[2])
        opener = lambda model=None: ReplayGenerator(layers, sms, pace)  # noqa: E731
    shared = Hub({"replay": opener})
    pages = {"/": lambda: page(shared), "/analyses": lambda: analyses_page(shared)}
    pn.serve(pages, port=int(port), show=False, websocket_origin=f"localhost:{port}")
