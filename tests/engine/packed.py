"""Small models packed as for a GPU, and their programs: what tests of packing and of programs share."""

import numpy as np
from checkpoints import make_checkpoint

from engine.builder import StepShape, build_graph
from engine.checkpoint import Weights
from engine.config import load_config
from engine.cuda.program import make_program
from engine.cuda.weights import PackedWeights
from engine.tiling import Tiling
from mkviz.policies import make_schedule

MODELS = {
    "cohere": ("cohere2_moe", {
        "hidden_size": 96, "intermediate_size": 48, "prefix_dense_intermediate_size": 80, "head_dim": 32,
        "num_attention_heads": 6, "num_key_value_heads": 3, "num_experts": 24, "num_shared_experts": 2, "vocab_size": 200,
        "sliding_window": 300, "max_position_embeddings": 2048, "storage": "bfloat16",
    }),
    "llama": ("llama", {
        "hidden_size": 144, "intermediate_size": 112, "head_dim": 48, "num_attention_heads": 3, "num_key_value_heads": 1,
        "num_hidden_layers": 2, "tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True, "vocab_size": 197,
        "max_position_embeddings": 2048, "storage": "bfloat16",
    }),
    "qwen3": ("qwen3", {
        "hidden_size": 80, "intermediate_size": 64, "head_dim": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 2, "vocab_size": 97, "use_sliding_window": True, "sliding_window": 300, "max_window_layers": 1,
        "max_position_embeddings": 2048, "storage": "bfloat16",
    }),
}  # fmt: skip
SMS = 7


def packed_model(name, directory):
    """(config, checkpoint, packed, step graph, schedule, program) of a model at 4 rows and 4 splits."""
    family, settings = MODELS[name]
    make_checkpoint(directory, family, **settings)
    config = load_config(directory)
    checkpoint = Weights.open(directory, config)
    packed = PackedWeights(config, checkpoint, np)
    built = build_graph(config, StepShape(4, 4), Tiling.for_tensor_cores(config, SMS))
    schedule = make_schedule(built.graph, SMS, "round_robin")
    return config, checkpoint, packed, built, schedule, make_program(config, built, schedule, packed)
