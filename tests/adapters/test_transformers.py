"""Hugging Face transformers and datasets, from tiny configs and rows made here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import datasets
import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader

from autotune.task import Task

_CLASSES = 3
_TOKENS = 50
_OWN_LOSS = 'the model\'s own ["loss"]'  # what a ModelOutput holds as .loss too


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=_TOKENS,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        num_labels=_CLASSES,
    )
    return transformers.BertForSequenceClassification(config)


def gpt2() -> nn.Module:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=_TOKENS, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
        )
    )


def ragged_rows(count: int = 64) -> list[dict[str, Any]]:
    """Tokenized sentences of 3 to 12 tokens, as a tokenizer without padding gives them."""
    return [
        {"input_ids": [1 + (row + at) % (_TOKENS - 1) for at in range(3 + row % 10)], "labels": row % _CLASSES}
        for row in range(count)
    ]


def padded(samples: list[dict[str, Any]]) -> transformers.BatchEncoding:
    """What ``DataCollatorWithPadding`` returns: a ``BatchEncoding`` with an attention mask."""
    longest = max(len(sample["input_ids"]) for sample in samples)
    short = [longest - len(sample["input_ids"]) for sample in samples]
    fields = {
        "input_ids": [sample["input_ids"] + [0] * lack for sample, lack in zip(samples, short, strict=True)],
        "attention_mask": [[1] * (longest - lack) + [0] * lack for lack in short],
        "labels": [sample["labels"] for sample in samples],
    }
    return transformers.BatchEncoding(fields, tensor_type="pt")


def hub_dataset(count: int = 64) -> datasets.Dataset:
    rows = [[1 + (row + at) % (_TOKENS - 1) for at in range(8)] for row in range(count)]
    made = datasets.Dataset.from_dict(
        {
            "text": [f"sentence {row}" for row in range(count)],
            "input_ids": rows,
            "attention_mask": [[1] * 8] * count,
            "labels": [row % _CLASSES for row in range(count)],
        }
    )
    return made.with_format("torch", columns=["input_ids", "attention_mask", "labels"])


def test_a_padding_collator_feeds_the_models_own_loss(desk: Any) -> None:
    """Ragged rows, an attention mask and labels reach BERT, whose ``.loss`` is trained on: a mean, not a guess."""
    model = bert()
    put = desk(model, DataLoader(ragged_rows(), batch_size=4, shuffle=True, collate_fn=padded))
    assert put.facts.loss == _OWN_LOSS
    assert not put.facts.loss_inferred
    assert put.facts.reduction == "mean"
    assert put.facts.warnings == ()
    assert put.measure(batch_size=6).largest_batch_rows == 6
    assert put.measure("compute", batch_size=16).samples_per_s > 0


def test_the_attention_mask_is_not_lost_on_the_way(desk: Any) -> None:
    """Every forward pass of a trial sees a mask of the shape of its tokens."""
    model, seen = bert(), []

    def look(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        seen.append((arguments, set(named), named["attention_mask"].shape == named["input_ids"].shape))

    model.register_forward_pre_hook(look, with_kwargs=True)
    desk(model, DataLoader(ragged_rows(), batch_size=4, collate_fn=padded)).measure(batch_size=8)
    assert len(seen) > 4
    assert all(one == ((), {"input_ids", "attention_mask", "labels"}, True) for one in seen)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_hub_dataset_is_read_by_row(desk: Any, workers: int) -> None:
    """``datasets.Dataset`` in torch format is map-style, its rows are counted, and workers can read it."""
    put = desk(bert(), hub_dataset(256))
    assert put.facts.samples == 256
    assert not put.facts.iterable
    assert put.facts.workers_refused is None
    assert put.measure(batch_size=8, num_workers=workers).largest_batch_rows == 8


def test_a_hub_dataset_with_a_collator_of_the_library(desk: Any) -> None:
    """Without a torch format, ``default_data_collator`` makes tensors of the rows' lists and leaves the text out."""
    dataset = hub_dataset().with_format(None)
    put = desk(bert(), dataset, collate_fn=transformers.default_data_collator)
    assert "input_ids=int64[*,8]" in put.facts.batch_signature
    assert put.measure(batch_size=8).largest_batch_rows == 8


def test_a_streamed_hub_dataset_is_a_stream(desk: Any) -> None:
    """``datasets.IterableDataset`` is torch's kind of iterable dataset."""
    stream = hub_dataset().with_format(None).to_iterable_dataset().select_columns(["input_ids", "labels"])
    put = desk(bert(), stream.with_format("torch"))
    assert put.facts.iterable
    assert put.measure(batch_size=8).largest_batch_rows == 8


def test_a_language_model_counts_its_own_labels(desk: Any) -> None:
    """GPT-2 gets the labels, with -100 where they are padding, and shifts them itself."""
    rows = [
        {"input_ids": row["input_ids"][:3], "labels": [*row["input_ids"][:2], -100], "attention_mask": [1, 1, 0]}
        for row in ragged_rows()
    ]
    put = desk(gpt2(), rows, collate_fn=transformers.default_data_collator)
    assert put.facts.loss == _OWN_LOSS
    assert put.measure(batch_size=8).largest_batch_rows == 8


def test_dict_outputs_without_labels_take_a_loss_function(desk: Any) -> None:
    """With ``loss_fn`` the model does not see the labels, and its logits are what the function gets."""
    put = desk(bert(), hub_dataset(), loss_fn=nn.CrossEntropyLoss())
    assert put.facts.loss.startswith("loss_fn")
    assert put.measure(batch_size=8).first_loss is not None


def test_gradient_accumulation_and_checkpointing_work_on_transformer_layers(desk: Any) -> None:
    """The layers of BERT are recomputed as they are, and a group of two micro-batches is one step."""
    put = desk(bert(), hub_dataset())
    assert put.measure(batch_size=4, gradient_accumulation_steps=2, activation_checkpointing=True).steps > 0


def test_model_and_data_cross_into_another_process(desk: Any, crossed: Callable[[Task], Task]) -> None:
    """The tied weights of GPT-2 stay tied, the dataset keeps its format, and the optimizer the model's parameters."""
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    task = crossed(Task(model, hub_dataset(), optimizer=optimizer, device="cpu"))
    arrived = task.build_model()
    assert arrived.lm_head.weight is arrived.transformer.wte.weight
    assert set(task.data.dataset[0]) == {"input_ids", "attention_mask", "labels"}
    assert arrived.config.n_embd == 16
