"""A server on a free port of this machine, as a process would run it."""

import contextlib
import threading
import time

from engine.serve.server import bind, make_server
from engine.serve.settings import Settings

KEY, OTHER_KEY = "sk-first", "sk-second"


@contextlib.contextmanager
def serving(engine, **settings):
    """(url, service) of a server on ``engine``; it has ended afterwards, the engine has not."""
    settings = Settings(port=0, **settings)
    listener = bind(settings)
    server = make_server(engine, settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        service = server.config.app.state.service
        service.end = lambda: setattr(server, "should_exit", True)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", service
    finally:
        server.should_exit = True
        thread.join(60)
        server.force_exit = True  # a test may have left a connection that never ends
        thread.join(5)  # and what it still waits for then must not keep the tests from ending
