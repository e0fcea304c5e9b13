"""A tiny random model with the demo model's tokenizer, and what the tests of the engine share."""

import shutil
import threading

import numpy as np
from checkpoints import make_checkpoint
from rows import demo_directory

from engine.sampling import SamplingParams

VOCAB = 8192


def make_model(directory, **settings):
    """A checkpoint of two layers, full and sliding, dense and sparse; returns (directory, transformers' model)."""
    settings = {
        "sliding_window": 20, "layer_types": ["full_attention", "sliding_attention"], "mlp_layer_types": ["dense", "sparse"]
    } | settings  # fmt: skip
    model = make_checkpoint(
        directory, "cohere2_moe", vocab_size=VOCAB, num_hidden_layers=2, tie_word_embeddings=False, **settings
    )
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo_directory() / name, directory)
    return str(directory), model


def prompt(seed, length=None):
    rng = np.random.default_rng(seed)
    return rng.integers(10, VOCAB, length or rng.integers(1, 40)).tolist()


def params(**settings):
    return SamplingParams(**{"max_tokens": 12, "ignore_eos": True} | settings)


def generate(engine, tokens, **settings):
    return list(engine.stream(engine.submit(tokens, params(**settings))))


def tokens_of(pieces):
    return [p.token for p in pieces if p.token >= 0]


def text_of(pieces):
    return "".join(p.text for p in pieces)


class Watch:
    """Sits before ``engine.backend.step``: keeps plans and every logits row by (request, position), and can hold steps up."""

    def __init__(self, engine, held=False):
        self.engine, self.step, self.plans, self.logits = engine, engine.backend.step, [], {}
        self.go, self.waiting = threading.Event(), False
        if not held:
            self.go.set()
        engine.backend.step = self

    def __call__(self, plan):
        requests = [s.request for s, _ in self.engine._running_step.rows]
        self.waiting = True
        assert self.go.wait(60)
        self.waiting = False
        result = self.step(plan)
        where = zip(plan.sequence.tolist(), plan.position.tolist(), strict=True)
        self.plans.append([(requests[owner], position) for owner, position in where])
        for row in np.flatnonzero(plan.wants_logits):
            self.logits[self.plans[-1][row]] = result.logits[row].tobytes()
        return result

    def of(self, request):
        return {position: row for (r, position), row in self.logits.items() if r == request}
