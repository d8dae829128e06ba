"""A tiny random target whose greedy answers are periodic enough to learn, and a run's settings on them."""

import json
import random
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from adaptivespec.demo.settings import Settings

VOCAB = 96


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random four-layer Llama and a tokenizer of words w0, w1, ..."""
    folder = tmp_path_factory.mktemp("target")
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.15,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", eos_token="w1").save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def generations(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target's own greedy answers to 120 random prompts."""
    model = LlamaForCausalLM.from_pretrained(target).eval()
    chance = random.Random(0)
    prompts = torch.tensor([[chance.randrange(2, VOCAB) for _ in range(6)] for _ in range(120)])
    answers = model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=False, max_new_tokens=40)
    path = tmp_path_factory.mktemp("data") / "generations.jsonl"
    rows = [{"kind": "random", "prompt_ids": row[:6], "output_ids": row[6:]} for row in answers.tolist()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def settings(target: Path, generations: Path, tmp_path: Path) -> Settings:
    return Settings(
        generations=str(generations),
        target=str(target),
        out=str(tmp_path / "run"),
        draft_vocab=64,
        depths=3,
        lr=3e-3,
        shard_tokens=400,
        batch_tokens=120,
        replay=2,
        held_out_every=8,
        evaluate_every=100,
    )
