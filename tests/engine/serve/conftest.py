"""One server on the demo model, for the whole run."""

import httpx
import openai
import pytest
from served import KEY, OTHER_KEY, serving

from engine.engine import Engine


@pytest.fixture(scope="session")
def demo():
    engine = Engine(batch=4, queue=4, sms=4)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def server(demo):
    with serving(demo, batch=4, queue=4, api_key=(KEY, OTHER_KEY), served_name=("gpt-of-ours",), body_limit=200_000) as running:
        yield running


@pytest.fixture(scope="session")
def service(server):
    return server[1]


@pytest.fixture(scope="session")
def http(server):
    """Plain HTTP, for what the official client would not send."""
    with httpx.Client(base_url=server[0], headers={"authorization": f"Bearer {KEY}"}, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def client(server):
    with openai.OpenAI(base_url=f"{server[0]}/v1", api_key=KEY, max_retries=0, timeout=60) as client:
        yield client
