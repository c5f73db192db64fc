"""Configs of which nothing may be withheld: words that look like secrets."""

from __future__ import annotations

from typing import Any

INNOCENT: tuple[Any, ...] = (
    *({"max_tokens": 4096}, {"tokenizer": "gpt2"}, {"tokens_per_batch": 524288}, {"tokens": 300}, {"tokens": "300B"}),
    *({"pad_token": "<pad>"}, {"eos_token_id": 50256}, {"special_tokens": ["<s>", "</s>"]}, {"token_type_ids": [0, 1]}),
    *({"tokenizer_name": "bert-base-uncased"}, {"maxTokens": 512}, {"train_tokens": "1.5T"}, {"num_tokens_seen": 12}),
    *(
        {"use_cls_token": True},
        {"token_dropout": 0.1},
        {"loss_per_token": 2.5},
        {"token": None},
        {"use_auth_token": False},
    ),
    *({"sort_key": "length"}, {"primary_key": "id"}, {"num_key_value_heads": 8}, {"key_padding_mask": "causal"}),
    *(
        {"keys": ["loss", "accuracy"]},
        {"keyboard": "us"},
        {"monkey": "patch"},
        {"key_dim": 64},
        {"metric_key": "eval/loss"},
    ),
    *({"norm_key": "layer"}, {"loss_on_tokens": "all"}, {"tokens_per_second": 1e5}, {"api_version": "v1"}),
    *({"author": "bob"}, {"compass": "north"}, {"bypass": "layer1"}, {"forward_pass": "eager"}, {"pin_memory": True}),
    *(
        {"password_min_length": 8},
        {"cookiecutter": "ml-template"},
        {"secretary": "alice"},
        {"path": "/data/tokens/train.bin"},
    ),
    *(
        {"repo": "https://github.com/org/repo"},
        {"repo": "git@github.com:org/repo.git"},
        {"base_url": "http://localhost:8000/v1"},
    ),
    *({"data": "s3://bucket/prefix@v2/x.tar?versionId=3"}, {"db": "postgresql://postgres@localhost/runs"}),
    *({"image": "pytorch/pytorch:2.4@sha256:" + "0a" * 32}, {"commit": "9fceb02d0ae598e95dc970b74767f19372d61af8"}),
    *(
        {"id": "0b1f58ef-0f5c-4d0c-8f0e-5a1ea1ea43d5"},
        {"argv": ["train.py", "--max-tokens", "512", "--tokenizer", "gpt2"]},
    ),
    *({"model": "sk-learn-pipeline"}, {"model": "hf_transformers"}, {"said": "Expected key: found 3 at step 5"}),
    *(
        {"said": "RuntimeError: token indices are longer (1024 > 512)"},
        {"said": "a basic training run, bearer of news"},
    ),
    *({"said": "the token is invalid"}, {"time": "12:30:05"}, {"said": '{"max_tokens": 3, "tokenizer": "gpt2"}'}),
    *(
        {"schedule": "lr=3e-4,wd=0.1;warmup=100"},
        {"mail": "bob@example.com"},
        {"ratio": "16:9"},
        {"line": "train.py:12"},
    ),
    *(
        {"place": "C:\\Users\\bob\\data"},
        {"layer": "encoder.layers.0.self_attn.key.weight"},
        {"passes": 3},
        {"pass_rate": 0.5},
    ),
)
"""Configs of which nothing may be withheld."""
