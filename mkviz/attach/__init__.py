"""Attach: a running process serves what it records over a local socket, and a viewer shows it.

:class:`mkviz.attach.server.AttachServer` is the sink in the one process, :class:`mkviz.attach.client.AttachedSource` the source
in the other; where they meet is a socket in a folder of the user's own (:mod:`mkviz.attach.places`), and what they say is told
in :mod:`mkviz.attach.wire`.
"""
