"""Random checkpoints whose sizes and settings no released model has, as the GPU tests run them: name -> (family, settings)."""

_LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 1024}  # fmt: skip
_YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 2048}
_COMMON = {"vocab_size": 1031, "max_position_embeddings": 8192, "storage": "bfloat16", "spread": 1.0}


def _cohere(**settings):
    layers = settings.get("num_hidden_layers", 3)
    kinds = {"layer_types": ["full_attention", "sliding_attention", "full_attention"][:layers],
             "mlp_layer_types": ["dense", "sparse", "sparse"][:layers], "num_hidden_layers": layers}  # fmt: skip
    return "cohere2_moe", _COMMON | kinds | settings


def _llama(**settings):
    return "llama", _COMMON | settings


def _qwen(family, **settings):
    return family, _COMMON | settings


CASES = {
    # RMSNorm, sigmoid router, dense prefix, a window within a split, tied
    "cohere-256": _cohere(hidden_size=256, num_attention_heads=8, num_key_value_heads=2, head_dim=64, intermediate_size=64,
                          prefix_dense_intermediate_size=768, sliding_window=100, num_experts=16, num_experts_per_tok=4),
    # LayerNorm, softmax router, shared experts averaged, biases, untied, one KV head with a full group, one MoE layer
    "cohere-576": _cohere(hidden_size=576, num_hidden_layers=1, mlp_layer_types=["sparse"], num_attention_heads=8,
                          num_key_value_heads=1, head_dim=48, intermediate_size=80, num_experts=8, num_experts_per_tok=2,
                          expert_selection_fn="softmax", rms_norm_eps=None, layer_norm_eps=1e-5, num_shared_experts=1,
                          shared_expert_combination_strategy="average", attention_bias=True, tie_word_embeddings=False),
    # sigmoid renormalised, shared experts summed, window of North Mini, 128-wide heads
    "cohere-2048": _cohere(hidden_size=2048, num_attention_heads=16, num_key_value_heads=2, head_dim=128, intermediate_size=128,
                           prefix_dense_intermediate_size=1024, sliding_window=4096, num_experts=8, num_experts_per_tok=2,
                           norm_topk_prob=True, num_shared_experts=2, shared_expert_combination_strategy="sum"),
    # LayerNorm, softmax, a window over three splits, one layer that slides, untied
    "cohere-2560": _cohere(hidden_size=2560, num_hidden_layers=1, layer_types=["sliding_attention"], mlp_layer_types=["sparse"],
                           num_attention_heads=20, num_key_value_heads=4, head_dim=64, intermediate_size=96, sliding_window=600,
                           num_experts=20, num_experts_per_tok=3, expert_selection_fn="softmax", rms_norm_eps=None,
                           layer_norm_eps=1e-3, tie_word_embeddings=False, logit_scale=0.25),
    "llama-256": _llama(hidden_size=256, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=1, head_dim=64,
                        intermediate_size=688, tie_word_embeddings=True),
    # the shape of SmolLM2
    "llama-576": _llama(hidden_size=576, num_hidden_layers=3, num_attention_heads=9, num_key_value_heads=3, head_dim=64,
                        intermediate_size=1536, tie_word_embeddings=True),
    "llama-2048": _llama(hidden_size=2048, num_hidden_layers=1, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
                         intermediate_size=1024, attention_bias=True, mlp_bias=True, rope_parameters=_LLAMA3),
    "llama-2560": _llama(hidden_size=2560, num_hidden_layers=3, num_attention_heads=32, num_key_value_heads=4, head_dim=80,
                         intermediate_size=1360, rope_parameters=_LLAMA3),
    # norms of q and k, softmax over all experts: renormalised, and raw with biases and a dense layer between
    "qwen3-1024": _qwen("qwen3", hidden_size=1024, num_hidden_layers=3, num_attention_heads=16, num_key_value_heads=8,
                        head_dim=128, intermediate_size=1536, tie_word_embeddings=True),
    "qwen3-576": _qwen("qwen3", hidden_size=576, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=1, head_dim=48,
                       intermediate_size=688, attention_bias=True, use_sliding_window=True, sliding_window=600,
                       max_window_layers=1),
    "qwen3moe-2048": _qwen("qwen3_moe", hidden_size=2048, num_hidden_layers=2, num_attention_heads=32, num_key_value_heads=4,
                           head_dim=128, moe_intermediate_size=128, num_experts=16, num_experts_per_tok=4, norm_topk_prob=True),
    "qwen3moe-256": _qwen("qwen3_moe", hidden_size=256, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                          head_dim=64, moe_intermediate_size=64, intermediate_size=768, num_experts=20, num_experts_per_tok=3,
                          norm_topk_prob=False, mlp_only_layers=[1], rope_parameters=_YARN),
}  # fmt: skip
MANY_EXPERTS = _cohere(hidden_size=256, num_hidden_layers=2, mlp_layer_types=["sparse", "sparse"], num_attention_heads=4,
                       num_key_value_heads=2, head_dim=64, intermediate_size=32, num_experts=200,
                       num_experts_per_tok=16)  # fmt: skip
