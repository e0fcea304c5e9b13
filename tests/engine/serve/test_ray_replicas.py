"""Two replicas on the cpu backend behind Ray Serve.  Needs the extra ``ray``."""

import importlib.util
import os
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ray = pytest.importorskip("ray", reason='Ray is not installed: pip install "mkviz[ray]"')
serve = pytest.importorskip("ray.serve", reason='Ray Serve is not installed: pip install "mkviz[ray]"')

PROMPT = "def fibonacci(n):\n"


def until(condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def module():
    spec = importlib.util.spec_from_file_location("ray_serve", ROOT / "deploy" / "ray_serve.py")
    module = sys.modules["ray_serve"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cluster(module):
    """(address, folder of the replicas' sockets)"""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="mkv") as home:
        env = {"MKVIZ_HOME": home, "PYTHONPATH": f"{ROOT}:{ROOT / 'deploy'}"}
        os.environ["MKVIZ_HOME"] = home
        own = (
            {} if "RAY_ADDRESS" in os.environ else {"num_cpus": 4, "include_dashboard": False, "object_store_memory": 100 << 20}
        )
        ray.init(runtime_env={"env_vars": env}, **own)
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(module.app({"replicas": 2, "sms": 4, "workers": 1, "batch": 2, "queue": 2, "served_name": "ours"}))
        yield f"http://127.0.0.1:{port}", Path(home) / "servers"
        serve.shutdown()
        ray.shutdown()


def test_two_replicas_answer_as_one(cluster):
    from concurrent.futures import ThreadPoolExecutor

    import openai

    from mkviz.attach.client import AttachedSource
    from mkviz.attach.places import running

    address, _ = cluster
    sources = [AttachedSource(path) for path in running().values()]
    assert len(sources) == 2
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=8, timeout=300)

    def ask(_):
        return client.completions.create(model="ours", prompt=PROMPT, max_tokens=12, temperature=0).choices[0].text

    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(ask, range(12)))
    assert len(set(texts)) == 1 and texts[0]  # whichever replica, the same bits
    seen = [lambda s=s: any(r.state == "done" for r in s.snapshot().requests.values()) for s in sources]
    for done in seen:
        until(done)  # each of them has answered some
    assert sum(len(s.snapshot().requests) for s in sources) >= 12

    stream = client.completions.create(model="ours", prompt=PROMPT, max_tokens=12, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == texts[0]
    with pytest.raises(openai.NotFoundError, match="'other' is not served here"):
        client.completions.create(model="other", prompt=PROMPT)

    gone = client.completions.create(model="ours", prompt=PROMPT, max_tokens=400, temperature=0, stream=True,
                                     extra_body={"ignore_eos": True})  # fmt: skip
    next(iter(gone))
    gone.close()  # the replica hears of it through Ray
    until(lambda: any(r.state == "stopped" for s in sources for r in s.snapshot().requests.values()))
    for source in sources:
        source.close()


def test_a_replica_that_dies_is_replaced(cluster):
    import httpx

    from mkviz.attach.client import AttachedSource
    from mkviz.attach.places import running

    address, _ = cluster
    before = running()
    victim = next(iter(before.values()))
    source = AttachedSource(victim)
    until(lambda: source.run == 1)
    os.kill(_pid_of(victim), 9)
    until(lambda: "gone" in source.words)
    source.close()
    body = {"model": "ours", "prompt": PROMPT, "max_tokens": 4, "temperature": 0}

    def answers():
        try:
            return httpx.post(f"{address}/v1/completions", json=body, timeout=300).status_code == 200
        except httpx.HTTPError:
            return False

    until(lambda: all(answers() for _ in range(4)))
    until(lambda: len(running()) == 2 and victim not in running().values())


def _pid_of(path):
    """What the server of a socket says its process is."""
    from mkviz.attach import places, wire

    with places.connect(path) as sock:
        sock.sendall(wire.pack({"kind": "hello", "protocol": wire.PROTOCOL, "run": "", "next": 0}))
        return wire.receive(sock)[0]["pid"]


def test_arguments(module):
    from mkviz.errors import MkvizError

    for args, words in (
        ({"replicas": "0"}, "replicas: '0'; a whole number from 1"),
        ({"port": 1}, "port: no argument of a replica; serve start --http-host, --http-port"),
        ({"colour": "red"}, "colour: no argument of a replica; one of"),
        ({"batch": "many"}, "--batch: 'many'; a whole number"),
    ):
        with pytest.raises(MkvizError, match=words):
            module.app(args)
