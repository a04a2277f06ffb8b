"""Settling the loss of a task."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from autotune.errors import TaskError
from autotune.task import ResolvedLoss, resolve_loss

ROWS, CLASSES = 6, 3


class Net(nn.Module):
    """A classifier whose output takes the form that ``shape`` gives it."""

    def __init__(self, shape: Any = None, out: int = CLASSES) -> None:
        super().__init__()
        self.layer = nn.Linear(4, out)
        self.shape = shape or (lambda output: output)

    def forward(self, x: torch.Tensor) -> Any:
        return self.shape(self.layer(x))


class SelfScoring(nn.Module):
    """Returns a loss of its own when it gets labels, as language models do."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, CLASSES)
        self.form = form

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.layer(x)
        loss = None if labels is None else functional.cross_entropy(logits, labels)
        return self.form(loss, logits)


def inputs() -> torch.Tensor:
    return torch.linspace(-1, 1, ROWS * 4).reshape(ROWS, 4)


def classes() -> torch.Tensor:
    return torch.arange(ROWS) % CLASSES


def test_class_indices_mean_cross_entropy_and_it_is_said_to_be_a_guess() -> None:
    """Integer targets of one dimension less than the output are classes."""
    model = Net()
    loss = resolve_loss(model=model, batch=[inputs(), classes()])
    assert loss.inferred
    assert "cross-entropy" in loss.description
    found = loss(model, [inputs(), classes()])
    assert found.loss.item() == pytest.approx(functional.cross_entropy(model(inputs()), classes()).item())
    assert found.loss.ndim == 0
    assert found.loss.requires_grad
    assert found.output.shape == (ROWS, CLASSES)
    assert found.weight is None


@pytest.mark.parametrize("target", [torch.rand(ROWS), torch.rand(ROWS, 1), torch.ones(ROWS, dtype=torch.int32)])
def test_values_mean_squared_error_even_where_a_dimension_is_missing(target: torch.Tensor) -> None:
    """A column of outputs against a vector of targets is not broadcast to a square."""
    model = Net(out=1)
    loss = resolve_loss(model=model, batch=(inputs(), target))
    assert loss.inferred
    expected = (model(inputs()).flatten() - target.flatten()).square().mean()
    assert loss(model, (inputs(), target)).loss.item() == pytest.approx(expected.item())


def test_token_classes_in_the_last_dimension_mean_cross_entropy() -> None:
    """(batch, tokens, vocabulary) against (batch, tokens)."""
    model = nn.Embedding(7, 7)
    tokens = torch.arange(12).reshape(3, 4) % 7
    loss = resolve_loss(model=model, batch=(tokens, tokens))
    expected = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    assert loss(model, (tokens, tokens)).loss.item() == pytest.approx(expected.item())


def test_pixel_classes_in_the_second_dimension_mean_cross_entropy() -> None:
    """(batch, classes, height, width) against (batch, height, width)."""
    model = nn.Conv2d(1, CLASSES, 1)
    images, mask = torch.rand(2, 1, 4, 5), torch.zeros(2, 4, 5, dtype=torch.uint8)
    assert "cross-entropy" in resolve_loss(model=model, batch=(images, mask)).description


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (lambda loss, logits: SimpleNamespace(loss=loss, logits=logits), ".loss"),
        (lambda loss, logits: {"loss": loss, "logits": logits}, '["loss"]'),
        (lambda loss, logits: (loss, logits), "scalar"),
        (lambda loss, logits: (logits, loss), "scalar"),
        (lambda loss, logits: loss, "output"),
        (lambda loss, logits: {"loss_a": loss, "loss_b": loss}, "sum"),
    ],
)
@pytest.mark.parametrize("as_dict", [True, False])
def test_a_loss_of_the_models_own_is_taken_and_is_no_guess(form: Any, said: str, as_dict: bool) -> None:
    """``.loss``, ``["loss"]``, a scalar output or one in a tuple, the labels handed over by name."""
    model = SelfScoring(form)
    batch = {"x": inputs(), "labels": classes()} if as_dict else (inputs(), classes())
    loss = resolve_loss(model=model, batch=batch)
    assert not loss.inferred
    assert said in loss.description
    assert loss(model, batch).loss.requires_grad


def test_an_auxiliary_scalar_of_a_model_that_saw_no_target_is_not_its_loss() -> None:
    """A balance term behind the logits must not be trained on alone."""
    model = Net(lambda output: (output, output.square().mean()))
    loss = resolve_loss(model=model, batch=(inputs(), classes()))
    assert loss.inferred
    assert "cross-entropy" in loss.description


def test_a_scalar_behind_a_reconstruction_is_the_loss_where_there_is_no_target() -> None:
    """An autoencoder has all it needs."""
    model = Net(lambda output: (output, output.square().mean()))
    assert not resolve_loss(model=model, batch=inputs()).inferred


def test_a_model_that_takes_any_keyword_is_asked_with_and_without_labels() -> None:
    """Only a call tells whether **kwargs lead to labels."""

    class Strict(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, **kwargs: Any) -> Any:
            return self.net(**kwargs)

    class Scoring(Strict):
        def __init__(self) -> None:
            super().__init__()
            self.net = SelfScoring(lambda loss, logits: {"loss": loss})

    batch = {"x": inputs(), "labels": classes()}
    strict, scoring = Strict(), Scoring()
    assert resolve_loss(model=strict, batch=batch).inferred
    assert not resolve_loss(model=scoring, batch=batch).inferred


@pytest.mark.parametrize(
    "shape",
    [
        lambda output: output,
        lambda output: (output, "aux"),
        lambda output: {"features": output.detach(), "logits": output},
        lambda output: {"output": output},
        lambda output: {"first": output, "second": None},
        lambda output: SimpleNamespace(logits=output, loss=None),
    ],
)
def test_the_loss_function_gets_the_prediction_out_of_any_output(shape: Any) -> None:
    """Tensor, tuple, dict and object outputs all lead to the logits."""
    model = Net(shape)
    seen = []

    def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        seen.append(output)
        return functional.cross_entropy(output, target)

    loss = resolve_loss(loss_fn=loss_fn, model=model, batch=(inputs(), classes()))
    assert not loss.inferred
    assert loss.description.endswith("loss_fn")
    assert loss(model, (inputs(), classes())).loss.ndim == 0
    assert torch.equal(seen[-1], model.layer(inputs()))


def test_a_batch_without_target_is_its_own_target() -> None:
    """Autoencoders get (output, input)."""
    model = nn.Linear(4, 4)
    for batch in (inputs(), [inputs()]):
        loss = resolve_loss(
            loss_fn=lambda output, x: (output - torch.as_tensor(_only(x))).abs().mean(), model=model, batch=batch
        )
        assert loss(model, batch).loss.requires_grad


def _only(batch: Any) -> Any:
    return batch[0] if isinstance(batch, list) else batch


def test_without_a_batch_nothing_is_run() -> None:
    """What was given is taken at its word; without it only the model's own loss will do."""
    model = SelfScoring(lambda loss, logits: {"loss": loss})
    calls: list[Any] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    own = resolve_loss(model=model)
    given = resolve_loss(loss_fn=nn.CrossEntropyLoss(), model=Net())
    assert calls == []
    assert own(model, (inputs(), classes())).loss.ndim == 0
    assert not given.inferred
    with pytest.raises(TaskError, match="training_step"):
        resolve_loss(model=Net())(Net(), (inputs(), classes()))


def test_settling_leaves_modes_gradients_and_random_generators_alone() -> None:
    """Dropout draws, modes switch and graphs are built, but nothing of it remains."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, CLASSES))
    model.eval()
    model[1].train()
    states = torch.get_rng_state(), random.getstate()

    def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        assert model.training
        random.random()
        return functional.cross_entropy(output, target)

    with torch.no_grad():
        resolve_loss(loss_fn=loss_fn, model=model, batch=(inputs(), classes()))

    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert [module.training for module in model.modules()] == [False, False, True, False]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_parts_that_are_meant_to_stay_in_eval_mode_do() -> None:
    """A frozen part of a model in training mode is not switched."""
    model = nn.Sequential(nn.Linear(4, CLASSES), nn.Dropout())
    model[1].eval()
    seen = []
    model[1].register_forward_hook(lambda module, *_: seen.append(module.training))
    resolve_loss(model=model, batch=(inputs(), classes()))
    assert seen == [False]


def test_a_model_that_differentiates_in_its_forward_can_be_settled() -> None:
    """Forces as gradients of an energy need a graph."""

    class Forces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.layer(x).tanh().sum(), x, create_graph=True)[0]

    assert resolve_loss(model=Forces(), batch=(inputs(), inputs())).inferred


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"model": Net(), "batch": inputs()}, "no target"),
        ({"model": Net(), "batch": (inputs(), ["a"] * ROWS)}, "target is list"),
        ({"model": Net(), "batch": (inputs(), torch.rand(ROWS, 7))}, r"float32\[6, 7\]"),
        ({"model": Net(), "batch": (inputs(), torch.full((ROWS,), 9))}, "from 9 to 9"),
        ({"model": Net(lambda output: "text"), "batch": (inputs(), classes())}, "returned str"),
        ({"model": Net(), "batch": (inputs(), inputs(), classes())}, "the model failed"),
        ({"model": Net(), "batch": (inputs(), classes()), "loss_fn": lambda output, target: output}, "one number"),
        ({"model": Net(), "batch": (inputs(), classes()), "loss_fn": lambda output, target: 1.0}, "float"),
        ({"model": Net(), "batch": (inputs(), classes()), "loss_fn": lambda output: output}, "loss_fn .* failed"),
        ({"model": Net(), "batch": (inputs(), classes()), "loss_fn": nn.MSELoss()}, "loss_fn .* failed"),
        ({"model": Net(), "batch": (inputs(), classes()), "training_step": lambda model, batch: None}, "NoneType"),
        ({"model": Net(), "batch": (inputs(), classes()), "training_step": lambda batch: None}, "failed"),
        (
            {"model": Net(), "batch": (inputs(), classes()), "training_step": lambda model, batch: (1, 2, 3)},
            "tuple of 3",
        ),
        (
            {
                "model": Net(),
                "batch": (inputs(), classes()),
                "training_step": lambda model, batch: (model(batch[0]).sum(), "a"),
            },
            "weight",
        ),
        (
            {
                "model": Net(),
                "batch": (inputs(), classes()),
                "loss_fn": lambda output, target: functional.cross_entropy(output.detach(), target),
            },
            "does not depend",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_what_leads_to_no_loss_says_what_to_pass(arguments: dict[str, Any], named: str) -> None:
    """Every error names loss_fn or training_step, and what was seen."""
    with pytest.raises(TaskError, match=named) as caught:
        resolve_loss(**arguments)
    assert "loss_fn" in str(caught.value) or "training_step" in str(caught.value)


def test_a_failure_keeps_the_users_exception_as_its_cause() -> None:
    """Memory failures are told apart by the cause."""

    def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("full")

    with pytest.raises(TaskError) as caught:
        resolve_loss(loss_fn=loss_fn, model=Net(), batch=(inputs(), classes()))
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)


def test_keys_that_were_left_out_are_said() -> None:
    """The description tells which parts of the batch the model does not get."""

    class Two(Net):
        def forward(self, x: torch.Tensor, scale: float = 1.0) -> Any:
            return super().forward(x * scale)

    loss = resolve_loss(model=Two(), batch={"x": inputs(), "label": classes(), "path": ["a"] * ROWS})
    assert "path" in loss.description
    assert isinstance(loss, ResolvedLoss)
