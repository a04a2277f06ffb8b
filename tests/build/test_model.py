"""A model made ready in place."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from autotune.build.model import prepare_model
from autotune.errors import SettingsError
from autotune.settings import Settings
from autotune.task.layers import has_channels_last_weights, repeated_blocks


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[nn.Module, Any]]:
    """Calls of ``Module.compile``, which here only counts the calls of the compiled module."""
    calls: list[tuple[nn.Module, Any]] = []

    def fake(module: nn.Module, *, mode: str) -> None:
        calls.append((module, mode))
        module._compiled_call_impl = module._call_impl

    monkeypatch.setattr(nn.Module, "compile", fake)
    return calls


def is_channels_last(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def test_preparing_is_in_place_and_keeps_every_parameter() -> None:
    """The same model and parameters come back, so that an optimizer over them stays valid."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    parameters = list(model.parameters())
    assert prepare_model(model, Settings(channels_last=True), "cpu") is model
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))


def test_channels_last_is_applied_to_image_convolutions() -> None:
    """The weights take the memory format that was asked for, and only then."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    prepare_model(model, Settings(), "cpu")
    assert not is_channels_last(model[0].weight)
    prepare_model(model, Settings(channels_last=True), "cpu")
    assert is_channels_last(model[0].weight)


@pytest.mark.parametrize(
    "model",
    [nn.Conv3d(3, 4, 3), nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv3d(3, 4, 3)), nn.Linear(3, 4)],
    ids=["volumes", "images and volumes", "no convolution"],
)
def test_channels_last_leaves_other_models_alone_and_says_so(model: nn.Module) -> None:
    """Weights over volumes would make torch raise, and without convolutions there is nothing to gain."""
    assert not has_channels_last_weights(model)
    strides = [parameter.stride() for parameter in model.parameters()]
    with pytest.warns(UserWarning, match="channels_last is left off"):
        prepare_model(model, Settings(channels_last=True), "cpu")
    assert [parameter.stride() for parameter in model.parameters()] == strides


@pytest.mark.parametrize("scope", ["model", "blocks"])
def test_compiling_keeps_the_names_in_the_state_dict(compiled: list[Any], scope: str) -> None:
    """A checkpoint of the compiled model loads into the plain one."""
    model = Net()
    names = list(model.state_dict())
    settings = Settings(compile_mode="default", compile_scope=scope)
    state = prepare_model(model, settings, "cpu").state_dict()
    assert list(state) == names
    Net().load_state_dict(state)
    expected = [model] if scope == "model" else list(model.blocks)
    assert compiled == [(module, "default") for module in expected]


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune-no-cudagraphs"])
def test_every_compile_mode_is_known_to_torch(mode: str) -> None:
    """Setting up compilation (which happens at the first call) succeeds for each mode."""
    model = prepare_model(Net(), Settings(compile_mode=mode), "cpu")
    assert model._compiled_call_impl is not None
    assert copy.deepcopy(model)._compiled_call_impl is None
    assert pickle.loads(pickle.dumps(model))._compiled_call_impl is None


def test_preparing_eagerly_takes_back_our_compilation_only(compiled: list[Any]) -> None:
    """A second trial runs eager again; a model that the user compiled in place stays compiled."""
    model = Net()
    model.head.compile(mode="default")
    for scope in ("model", "blocks"):
        prepare_model(model, Settings(compile_mode="default", compile_scope=scope), "cpu")
        prepare_model(model, Settings(), "cpu")
        ours = [model, *model.blocks]
        assert all(module._compiled_call_impl is None for module in ours)
    assert model.head._compiled_call_impl is not None


def test_changing_the_scope_compiles_nothing_twice(compiled: list[Any]) -> None:
    """Blocks are not left compiled inside a compiled model."""
    model = Net()
    prepare_model(model, Settings(compile_mode="default", compile_scope="blocks"), "cpu")
    prepare_model(model, Settings(compile_mode="default"), "cpu")
    assert model._compiled_call_impl is not None
    assert all(block._compiled_call_impl is None for block in model.blocks)


def test_a_model_without_repeated_blocks_refuses_that_scope() -> None:
    """Asking for blocks where there are none is an error, not a silent no-op."""
    with pytest.raises(SettingsError, match="repeated blocks"):
        prepare_model(nn.Linear(2, 2), Settings(compile_mode="default", compile_scope="blocks"), "cpu")


def test_the_result_of_torch_compile_is_not_compiled_again() -> None:
    """Compilation upon compilation is refused with the remedy."""
    wrapped = torch.compile(Net())
    with pytest.raises(SettingsError, match=r"torch\.compile"):
        prepare_model(wrapped, Settings(compile_mode="default"), "cpu")
    assert prepare_model(wrapped, Settings(), "cpu") is wrapped


def test_blocks_are_the_outermost_repeated_modules() -> None:
    """Layers of a transformer, blocks of a residual network; neither containers nor single layers."""
    net = Net()
    assert repeated_blocks(net) == list(net.blocks)
    nested = nn.Sequential(Stage(), Stage())
    assert repeated_blocks(nested) == list(nested)
    single = nn.Sequential(Stage())
    assert repeated_blocks(single) == list(single[0].blocks)
    assert repeated_blocks(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 3, enable_nested_tensor=False
    )
    assert repeated_blocks(encoder) == list(encoder.layers)


def test_a_block_used_twice_is_compiled_once() -> None:
    """A block shared by two parts of the model appears once."""
    block = Block()
    model = nn.ModuleList([nn.Sequential(block), nn.ModuleList([block, Block()])])
    assert repeated_blocks(model) == [block, model[1][1]]


def test_the_device_is_applied() -> None:
    """Parameters are where they were asked to be."""
    assert next(prepare_model(nn.Linear(2, 2), Settings(), "meta").parameters()).device.type == "meta"
