"""docs/adding-a-family.md, done: its block is run, and the family that it makes is compared with transformers."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from rows import Rows, open_backend
from transformers.models.mistral import MistralConfig, MistralForCausalLM

from engine.config import ModelConfig, load_config
from engine.families import FAMILIES
from mkviz.errors import MkvizError

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding-a-family.md").read_text(encoding="utf-8")


@pytest.fixture
def family():
    """The page's family, there for one test."""
    before = dict(FAMILIES)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(block, "adding-a-family.md", "exec"), {})
    yield
    FAMILIES.clear()
    FAMILIES.update(before)


def mistral(directory, **settings) -> MistralForCausalLM:
    config = MistralConfig(
        **{"vocab_size": 97, "hidden_size": 52, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
           "num_key_value_heads": 2, "head_dim": 18, "max_position_embeddings": 512, "eos_token_id": 2} | settings
    )  # fmt: skip
    config._attn_implementation = "eager"
    torch.manual_seed(5)
    model = MistralForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(
                torch.randn_like(parameter) * (0.2 if "norm" in name else parameter.shape[-1] ** -0.5) + ("norm" in name)
            )
    model.save_pretrained(directory)
    return model


@pytest.mark.parametrize("window", [11, None])
def test_the_family_of_the_page(tmp_path, family, window):
    model = mistral(tmp_path, sliding_window=window)
    assert load_config(tmp_path).window == (window or 0)
    tokens = np.random.default_rng(0).integers(0, 97, 60).tolist()
    (ours,) = Rows(open_backend(tmp_path), [tokens]).run()
    with torch.no_grad():
        theirs = model(torch.tensor([tokens])).logits[0].numpy()
    assert np.abs(ours - theirs).max() <= 4e-6 * np.abs(theirs).max()


def test_without_the_entry_it_is_refused(tmp_path):
    mistral(tmp_path)
    with pytest.raises(MkvizError, match="model_type 'mistral'; one of cohere2_moe, llama"):
        load_config(tmp_path)


def test_the_table_names_fields_that_there_are():
    table = PAGE[PAGE.index("| of `ModelConfig`") :].split("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])} - {"LayerSpec"}
    assert len(named) == 15 and named <= set(ModelConfig.__dataclass_fields__)


def test_what_the_page_links_to_is_there():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
