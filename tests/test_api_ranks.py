"""Tuning in one of several ranks is refused before anything is started."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune import autotune, largest_batch
from autotune.api.ranks import refuse_ranks
from autotune.errors import TaskError


@pytest.mark.parametrize("environ", [{}, {"WORLD_SIZE": "1"}, {"WORLD_SIZE": ""}, {"WORLD_SIZE": "many"}])
def test_one_process_may_tune(environ: dict[str, str]) -> None:
    """Launchers leave a world of one as well."""
    refuse_ranks(environ)


@pytest.mark.parametrize("call", [autotune, largest_batch])
def test_ranks_of_a_launcher_are_refused_with_the_way_out(call: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started: no probe, no file, and no deadlock where only one rank runs out of memory.

    See Lightning-AI/pytorch-lightning#4424, Lightning-AI/pytorch-lightning#10560, Lightning-AI/pytorch-lightning#20994
    and mosaicml/composer#2117.
    """
    monkeypatch.setenv("WORLD_SIZE", "2")
    data = TensorDataset(torch.zeros(8, 2), torch.zeros(8, dtype=torch.long))
    with pytest.raises(TaskError, match="one of 2 ranks") as caught:
        call(nn.Linear(2, 2), data, loss_fn=nn.CrossEntropyLoss())  # type: ignore[operator]
    assert "TunedConfig.load" in caught.value.remedy


def test_a_process_group_counts_more_than_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ranks are four ranks, whoever started them."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    with pytest.raises(TaskError, match="one of 4 ranks"):
        refuse_ranks({})
