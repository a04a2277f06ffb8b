"""What a task is after it crossed into another process: read back in this process, which shows the same."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from autotune.errors import TaskError
from autotune.sandbox import arrival, transport

_LARGE = transport.LARGE_BYTES // 4  # float32 elements
_GROWTH = """
import os, pathlib, sys, torch
from autotune.hardware import tree_memory_bytes
from autotune.sandbox import arrival, transport
folder = pathlib.Path(sys.argv[1])
data = torch.ones(2**26)
before = tree_memory_bytes(os.getpid())
transport.dump({"data": data}, folder, limit_bytes=2**30)
got = arrival.load(folder)["data"]
assert got[-1] == 1
print(tree_memory_bytes(os.getpid()) - before, data.nbytes)
"""


def _cross(task: Any, directory: Path, *, limit_bytes: int = 2**30, main: ModuleType | None = None) -> Any:
    transport.dump(task, directory, limit_bytes=limit_bytes, main=main)
    return arrival.load(directory)


def test_optimizer_holds_the_models_parameters(tmp_path: Path) -> None:
    """Parameters are the same objects in the model and in everything else that came along."""
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters())
    got = _cross(SimpleNamespace(model=model, optimizer=optimizer), tmp_path)
    held = [parameter for group in got.optimizer.param_groups for parameter in group["params"]]
    assert [id(parameter) for parameter in held] == [id(parameter) for parameter in got.model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), got.model.parameters(), strict=True))


@pytest.mark.parametrize("elements", [16, 2 * _LARGE])
def test_shared_storages_stay_shared(tmp_path: Path, elements: int) -> None:
    """Tied weights and views share their memory after the crossing, small or large."""
    whole = torch.arange(elements, dtype=torch.float32)
    got = _cross({"whole": whole, "half": whole[elements // 2 :], "odd": whole[1::2]}, tmp_path)
    assert torch.equal(got["odd"], whole[1::2])
    got["whole"].fill_(7)
    assert got["half"].eq(7).all()
    assert got["odd"].eq(7).all()


def test_large_tensors_are_mapped_copy_on_write(tmp_path: Path) -> None:
    """Large memory lies in a private file of its own, and writing to what came of it changes neither."""
    tensor = torch.arange(2 * _LARGE, dtype=torch.float32)
    written = transport.dump({"data": tensor}, tmp_path, limit_bytes=2**30)
    first, second = arrival.load(tmp_path)["data"], arrival.load(tmp_path)["data"]
    assert written < tensor.nbytes + 10_000
    assert (tmp_path / arrival.PICKLE).stat().st_size < 10_000
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    first.zero_()
    assert torch.equal(second, tensor)
    assert torch.equal(arrival.load(tmp_path)["data"], tensor)


@pytest.mark.skipif(sys.platform != "linux", reason="counts proportional set size")
def test_large_data_is_not_in_memory_twice(tmp_path: Path) -> None:
    """Neither writing a large dataset nor loading it takes memory of its size a second time."""
    # A process of its own: pages that this one shares with children of other tests count in full once those end.
    done = subprocess.run(
        [sys.executable, "-c", _GROWTH, str(tmp_path)], check=True, capture_output=True, text=True, timeout=300
    )
    growth_bytes, data_bytes = map(int, done.stdout.split())
    assert data_bytes == 2**28
    assert growth_bytes < data_bytes / 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn])
@pytest.mark.parametrize("elements", [0, 6, 4 * _LARGE])
def test_every_kind_of_tensor_keeps_its_bits(tmp_path: Path, dtype: torch.dtype, elements: int) -> None:
    """Type, shape, strides and bits arrive as they were."""
    raw = torch.randint(0, 2, (elements,), dtype=torch.uint8)
    tensor = raw.to(dtype).reshape(elements // 2, 2).t()
    got = _cross([tensor], tmp_path)[0]
    assert (got.dtype, got.shape, got.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert torch.equal(got.flatten().view(torch.uint8), tensor.flatten().view(torch.uint8))


def test_model_that_deepcopy_refuses_travels(tmp_path: Path) -> None:
    """A model holding a tensor with a history cannot be deep-copied, and travels all the same.

    Report: pytorch/pytorch#102981.
    """
    model = nn.Linear(4, 2)
    model.hidden = model(torch.ones(1, 4))  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(model)
    got = _cross(SimpleNamespace(model=model), tmp_path).model
    assert torch.equal(got.weight, model.weight)


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_weight_norm_travels(tmp_path: Path) -> None:
    """The old weight_norm, which deepcopy refuses after a forward, still trains after the crossing.

    Report: pytorch/pytorch#102981.
    """
    model = nn.utils.weight_norm(nn.Linear(8, 2))
    rows = torch.ones(3, 8)
    expected = model(rows)
    got = _cross(SimpleNamespace(model=model), tmp_path).model
    assert torch.equal(got(rows), expected)
    got(rows).sum().backward()
    assert got.weight_g.grad is not None


def test_large_arrays_travel_beside_the_pickle(tmp_path: Path) -> None:
    """Large numpy arrays are mapped too; a read-only one stays read-only, a writable one stays private."""
    np = pytest.importorskip("numpy")
    frozen, free = np.arange(_LARGE, dtype=np.int32), np.ones((2, _LARGE), np.float32)
    frozen.flags.writeable = False
    got = _cross({"frozen": frozen, "free": free}, tmp_path)
    assert (tmp_path / arrival.PICKLE).stat().st_size < 10_000
    assert np.array_equal(got["frozen"], frozen)
    assert not got["frozen"].flags.writeable
    got["free"][:] = 5
    assert np.array_equal(arrival.load(tmp_path)["free"], free)


def test_memory_mapped_arrays_are_mapped_again(tmp_path: Path) -> None:
    """An array over a file is not copied, however large; views of it arrive with their place and strides."""
    np = pytest.importorskip("numpy")
    file = tmp_path / "tokens.bin"
    np.arange(4 * _LARGE, dtype=np.uint16).tofile(file)
    mapped = np.memmap(file, dtype=np.uint16, mode="r+", offset=20)
    out = tmp_path / "out"
    out.mkdir()
    task = {"all": mapped, "some": np.asarray(mapped)[1000:2000:3][::-1]}
    written = transport.dump(task, out, limit_bytes=100_000)
    got = arrival.load(out)
    assert written < 10_000
    assert isinstance(got["all"], np.memmap)
    assert np.array_equal(got["all"], mapped)
    assert np.array_equal(got["some"], task["some"])
    got["all"][:] = 0
    assert mapped[0] == 10


def test_too_large_a_task_is_refused_before_it_is_written(tmp_path: Path) -> None:
    """What exceeds the limit is refused with the remedy, and its memory is not written first."""
    task = SimpleNamespace(data=[torch.ones(_LARGE) for _ in range(3)])
    with pytest.raises(TaskError, match="Pass a factory"):
        transport.dump(task, tmp_path, limit_bytes=5 * _LARGE)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 10_000


def test_large_python_objects_count_as_well(tmp_path: Path) -> None:
    """Lists, strings and bytes count towards the limit like tensors."""
    with pytest.raises(TaskError, match="too much to copy"):
        transport.dump({"text": ["a" * 100 + str(index) for index in range(5000)]}, tmp_path, limit_bytes=100_000)


def test_disk_without_room_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little room for the files is an error that names the folder and TMPDIR."""
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(TaskError, match="TMPDIR"):
        transport.dump({"data": torch.ones(_LARGE)}, tmp_path, limit_bytes=2**30)


def test_part_that_cannot_travel_is_named(tmp_path: Path) -> None:
    """The error says which part holds something that belongs to this process alone."""
    task = SimpleNamespace(model=nn.Linear(2, 2), dataset=SimpleNamespace(lock=threading.Lock()))
    with pytest.raises(TaskError, match=r"^dataset cannot be copied.*lock") as caught:
        transport.dump(task, tmp_path, limit_bytes=2**30)
    assert "factory" in caught.value.remedy


def test_objects_of_an_importable_main_travel_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes of ``__main__`` are looked up there if it is given, lambdas still travel by value."""
    main = ModuleType("__main__")
    exec("class Data:\n    pass\nmake = lambda: Data", main.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", main)
    by_name = _cross({"data": main.Data(), "make": main.make}, tmp_path, main=main)
    assert type(by_name["data"]) is main.Data
    assert by_name["make"]() is main.Data
    other = tmp_path / "other"
    other.mkdir()
    by_value = transport.dump({"data": main.Data()}, other, limit_bytes=2**30)
    assert by_value > (tmp_path / arrival.PICKLE).stat().st_size / 2
    assert b"_make_skeleton_class" in (other / arrival.PICKLE).read_bytes()


def test_generators_and_shared_counters_keep_their_state(tmp_path: Path) -> None:
    """A seeded generator goes on where it was, and small shared memory is shared memory again."""
    generator = torch.Generator().manual_seed(5)
    torch.rand(3, generator=generator)
    counter = torch.zeros(1).share_memory_()
    got = _cross({"generator": generator, "counter": counter}, tmp_path)
    assert torch.equal(torch.rand(2, generator=got["generator"]), torch.rand(2, generator=generator))
    assert got["counter"].is_shared()


@pytest.mark.gpu
def test_accelerator_tensors_travel_through_host_memory(tmp_path: Path) -> None:
    """Tensors on a device arrive on that device, tied ones still tied."""
    device = torch.accelerator.current_accelerator()
    tensor = torch.arange(2 * _LARGE, dtype=torch.float32, device=device)
    got = _cross({"whole": tensor, "half": tensor[:_LARGE], "small": tensor[:4].clone()}, tmp_path)
    assert got["whole"].device == tensor.device
    assert torch.equal(got["whole"], tensor)
    assert torch.equal(got["small"], tensor[:4])
    got["whole"].zero_()
    assert got["half"].eq(0).all()


class _OwnLinear(nn.Linear):
    """A user's layer."""


def _parametrized() -> nn.Module:
    torch.manual_seed(0)
    twice = parametrizations.spectral_norm(parametrizations.weight_norm(nn.Conv1d(6, 6, 1)))
    return nn.Sequential(
        parametrizations.weight_norm(nn.Linear(8, 6)),
        parametrizations.spectral_norm(nn.Linear(6, 6)),
        parametrizations.orthogonal(_OwnLinear(6, 6)),
        nn.Unflatten(1, (6, 1)),
        twice,
    )


def test_parametrized_modules_cross(tmp_path: Path) -> None:
    """Weight, spectral and orthogonal norms: same keys, outputs, gradients, and parameters of the optimizer."""
    model = _parametrized()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    got = _cross(SimpleNamespace(model=model, optimizer=optimizer), tmp_path)
    assert list(got.model.state_dict()) == list(model.state_dict())
    held = [id(parameter) for group in got.optimizer.param_groups for parameter in group["params"]]
    assert held == [id(parameter) for parameter in got.model.parameters()]
    data = torch.randn(4, 8)
    for one in (model, got.model):
        one.train()(data).square().sum().backward()
    assert torch.equal(got.model.eval()(data), model.eval()(data))
    for mine, yours in zip(got.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine.grad, yours.grad)


def test_parametrized_copies_stand_alone(tmp_path: Path) -> None:
    """They can be copied, changed and freed of their parametrization without the original noticing."""
    model = _parametrized()
    before = model[0].weight.detach().clone()
    got = copy.deepcopy(_cross(model, tmp_path))
    assert isinstance(got[2], _OwnLinear)
    got[0].weight = torch.ones(6, 8)
    assert torch.allclose(got[0].weight, torch.ones(6, 8))
    parametrize.remove_parametrizations(got[0], "weight")
    assert type(got[0]) is nn.Linear
    assert torch.equal(model[0].weight, before)
