"""A checkpoint of North Mini Code's names and shapes that takes no disk: the shards' tensors are holes, which read as zeros.

Names come from transformers: it saves a model with the same layers and experts, all widths small and all different, and
each small width stands for a large one.
"""

import json
import shutil
import struct
import tempfile
from functools import cache
from pathlib import Path

import torch
from rows import demo_directory
from safetensors import safe_open
from transformers import GenerationConfig
from transformers.models.cohere2_moe import Cohere2MoeConfig, Cohere2MoeForCausalLM

SHARD = 5_000_000_000  # bytes of a shard at most, as the Hub's tools split
#         small: large
WIDTHS = {97: 262_144, 20: 2048, 64: 4096, 8: 512, 6: 768, 24: 3072, 128: 128}  # vocab, hidden, q, kv, expert, dense; experts
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|bot|>{% endif %}"


def config(**sizes) -> Cohere2MoeConfig:
    """The facts of the model (49 layers, full attention at 0, 4, …, 48, layer 0 dense) with these widths."""
    return Cohere2MoeConfig(
        **sizes, num_hidden_layers=49, num_attention_heads=32, num_key_value_heads=4, num_experts=128, num_experts_per_tok=8,
        layer_types=["full_attention" if i % 4 == 0 else "sliding_attention" for i in range(49)],
        mlp_layer_types=["dense"] + ["sparse"] * 48, sliding_window=4096, max_position_embeddings=500_000, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 50_000.0}, logit_scale=1.0, tie_word_embeddings=True,
        expert_selection_fn="sigmoid", norm_topk_prob=False, prefix_dense_sliding_window_pattern=1, pad_token_id=0,
        bos_token_id=2, eos_token_id=255_001 if sizes["vocab_size"] > 255_001 else 1, dtype="bfloat16",
        architectures=["Cohere2MoeForCausalLM"],
    )  # fmt: skip


@cache
def small_shapes() -> dict[str, tuple[int, ...]]:
    """Stored name -> shape of what transformers writes for the small twin."""
    small = config(vocab_size=97, hidden_size=20, head_dim=2, intermediate_size=6, prefix_dense_intermediate_size=24)
    with torch.device("meta"):
        model = Cohere2MoeForCausalLM(small)
    model.to_empty(device="cpu").to(torch.bfloat16).tie_weights()
    with tempfile.TemporaryDirectory() as work:
        model.save_pretrained(work)
        with safe_open(Path(work, "model.safetensors"), "pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def write_north_mini(directory: Path, widths: dict[int, int] = WIDTHS) -> dict[str, list[int]]:
    """Write the whole layout of the release into ``directory``, or one with other ``widths``; returns names and shapes."""
    shapes = {name: [widths[n] for n in shape] for name, shape in small_shapes().items()}
    full = config(
        vocab_size=widths[97], hidden_size=widths[20], head_dim=widths[64] // 32, intermediate_size=widths[6],
        prefix_dense_intermediate_size=widths[24],
    )  # fmt: skip
    full.save_pretrained(directory)
    GenerationConfig(bos_token_id=2, eos_token_id=[full.eos_token_id], pad_token_id=0, temperature=1.0).save_pretrained(
        directory
    )
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo_directory() / name, directory)
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    shards: list[dict] = [{}]
    end = 0
    for name, shape in shapes.items():
        size = 2 * torch.Size(shape).numel()
        if end + size > SHARD:
            shards.append({})
            end = 0
        shards[-1][name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    weight_map, total = {}, 0
    for i, header in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        text = json.dumps({"__metadata__": {"format": "pt"}} | header).encode()
        text += b" " * (-len(text) % 8)
        end = max(entry["data_offsets"][1] for entry in header.values())
        with open(directory / file, "wb") as stream:
            stream.write(struct.pack("<Q", len(text)) + text)
            stream.truncate(8 + len(text) + end)
        weight_map |= dict.fromkeys(header, file)
        total += end
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return shapes
