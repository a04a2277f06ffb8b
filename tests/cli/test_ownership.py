"""Two distributions in one package folder."""

from __future__ import annotations

import pytest

from autotune.cli.ownership import check_ownership
from autotune.errors import AutotuneError


def test_a_second_owner_is_named_with_the_way_out():
    """The message names the other distribution and the commands that mend it."""
    with pytest.raises(AutotuneError, match="also by llm-autotune") as caught:
        check_ownership(lambda: {"autotune": ["torch_autotune", "LLM-Autotune", "torch-autotune"]})
    assert "pip uninstall llm-autotune" in caught.value.remedy


@pytest.mark.parametrize(
    "owners",
    [{}, {"autotune": ["torch-autotune"]}, {"autotune": ["torch_autotune", "torch-autotune"]}, {"autotune": ["x"]}],
)
def test_one_owner_or_a_checkout_is_fine(owners):
    """Ours alone, twice listed, not installed, or another's beside a checkout of ours."""
    check_ownership(lambda: owners)


def test_this_installation_is_fine():
    """The real metadata is read without complaint."""
    check_ownership()
