"""Attach: a running process serves what it records over a local socket, and a viewer shows it.

:class:`AttachServer` is the sink in the one process, :class:`AttachedSource` the source in the other; where they meet is a
socket in a folder of the user's own (:mod:`mkviz.attach.places`), and what they say is told in :mod:`mkviz.attach.wire`.
"""

from mkviz.attach.client import AttachedSource
from mkviz.attach.places import running, socket_of
from mkviz.attach.server import AttachServer

__all__ = ["AttachServer", "AttachedSource", "running", "socket_of"]
