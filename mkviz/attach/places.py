"""Places: where the sockets of running servers lie, under which names, and which of them are left over from dead ones."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import tempfile
from pathlib import Path

from mkviz.errors import MkvizError

SUFFIX = ".sock"
LONGEST = 100  # bytes of a socket's path, of the 108 (104 on macOS) that the kernel takes
PATIENCE = 0.2  # seconds for a server to be there


def folder() -> Path:
    """``servers`` in $MKVIZ_HOME, else ``mkviz`` in $XDG_RUNTIME_DIR, else ``mkviz-UID`` in the folder for temporary files."""
    if home := os.environ.get("MKVIZ_HOME"):
        return Path(home) / "servers"
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "mkviz"
    return Path(tempfile.gettempdir()) / f"mkviz-{os.getuid()}"


def _check(path: Path) -> None:
    """Raise MkvizError unless the folder is this user's and nobody else can write to it."""
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise MkvizError(f"{path}: others could put a socket there", "a folder only you can write to, or another MKVIZ_HOME")


def bind(name: str, where: Path | None = None) -> tuple[socket.socket, Path]:
    """A listening socket of mode 0600 and its path: ``NAME.sock``, or ``NAME-2.sock`` where a running server has that name.

    What a dead server left under the name is removed.  Raises MkvizError when there is no place for a socket.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise MkvizError("attach: this Python has no local sockets", "a system that has them")
    where = where or folder()
    name = re.sub(r"[^\w.-]+", "-", name).strip(".-") or "server"
    longest = LONGEST - len(os.fsencode(where)) - len(SUFFIX) - 10  # room for -2 and the name before it is whole
    if longest < 8:
        raise MkvizError(f"{where}: too long for the path of a socket", "a shorter MKVIZ_HOME")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    part = where / f".{os.getpid()}.{id(listener) % 9973}"
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check(where)
        part.unlink(missing_ok=True)
        listener.bind(str(part))
        part.chmod(0o600)
        listener.listen(16)
        listener.setblocking(False)
        return listener, _publish(part, where, name.encode()[:longest].decode(errors="ignore").rstrip(".-"))
    except OSError as error:
        listener.close()
        raise MkvizError(f"{where}: {error.strerror or error}", "a folder that can be written, as MKVIZ_HOME") from None
    except MkvizError:
        listener.close()
        raise
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _publish(part: Path, where: Path, name: str) -> Path:
    """Give a socket that listens its name.  A link, because that fails where a name is taken, and the socket under it is never
    half made."""
    for number in range(1, 1000):
        path = where / f"{name}{f'-{number}' if number > 1 else ''}{SUFFIX}"
        for _ in range(2):
            try:
                os.link(part, path)
                return path
            except FileExistsError:
                if is_alive(path):
                    break
                path.unlink(missing_ok=True)
    raise MkvizError(f"{where}: too many servers are named {name}", "another port, or another MKVIZ_HOME")


def connect(path: Path, patience: float = PATIENCE) -> socket.socket:
    """A blocking connection.  Raises OSError when nobody listens there."""
    out = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        out.settimeout(patience)
        out.connect(str(path))
        out.settimeout(None)
        return out
    except OSError:
        out.close()
        raise


def is_alive(path: Path) -> bool:
    """Whether somebody listens there; one who is too busy to answer does."""
    try:
        connect(path).close()
    except (BlockingIOError, TimeoutError):
        return True
    except OSError:
        return False
    return True


def running() -> dict[str, Path]:
    """{name: socket} of the servers that run for this user.  What dead ones left is removed."""
    found = {}
    where = folder()
    try:
        _check(where)
        paths = sorted(where.glob("*" + SUFFIX), key=lambda path: path.stem)
    except (OSError, MkvizError):
        return {}
    for path in paths:
        if is_alive(path):
            found[path.name.removesuffix(SUFFIX)] = path
        else:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
    return found


def socket_of(text: str = "") -> Path:
    """The socket that a user means: a path, the name of a running server, or "" for the only one.

    Raises MkvizError naming what runs.
    """
    if text and (os.sep in text or text.endswith(SUFFIX)):
        path = Path(text)
        if not path.exists():
            raise MkvizError(f"attach: there is no {path}", "the socket of a running server, or its name")
        return path
    known = running()
    names = ", ".join(known)
    if text:
        if text not in known:
            raise MkvizError(f"attach: no server is named {text!r}", f"one of {names}" if known else "start one: mkviz serve")
        return known[text]
    if len(known) != 1:
        right = f"one of {names}" if known else "start one: mkviz serve"
        raise MkvizError(f"attach: {len(known) or 'no'} servers run here", right)
    return next(iter(known.values()))
