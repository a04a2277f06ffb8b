"""Whether loader workers can be started."""

from __future__ import annotations

import dataclasses
import multiprocessing
import pickle
import random
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from autotune.task import LoaderParts
from autotune.task.workers import (
    _is_plain_array,
    daemonic_refusal,
    main_refusal,
    sharing_warnings,
    start_method,
    worker_copy_bytes,
    workers_refused,
)


class Plain(Dataset[Any]):
    """Picklable if this very module can be imported by its name, as a user's is."""

    def __init__(self, extra: Any = None) -> None:
        self.extra = extra

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return index


def parts(dataset: Any, method: str | None = "spawn", **options: Any) -> LoaderParts:
    return dataclasses.replace(LoaderParts.of(dataset), multiprocessing_context=method, **options)


def data() -> TensorDataset:
    return TensorDataset(torch.arange(4))


def main(path: Path | None, name: str | None = None) -> ModuleType:
    module = ModuleType("__main__")
    module.__spec__ = None if name is None else SimpleNamespace(name=name)  # type: ignore[assignment]
    if path is not None:
        module.__file__ = str(path)
    return module


def test_fork_needs_no_pickling() -> None:
    """A lambda or a local class is fine there."""
    assert workers_refused(parts(data(), "fork", collate_fn=lambda samples: samples)) is None


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_can_be_sent_is_accepted(method: str) -> None:
    """Torch's own dataset and collate travel to any worker."""
    assert workers_refused(parts(data(), method, collate_fn=torch.utils.data.default_collate)) is None


@pytest.mark.parametrize("name", ["collate_fn", "worker_init_fn"])
def test_a_lambda_is_refused_by_its_argument(name: str) -> None:
    """The reason names what, the start method and the remedy.

    Report: HazyResearch/cartridges#20.
    """
    reason = str(workers_refused(parts(data(), "spawn", **{name: lambda value: value})))
    assert reason.startswith(name)
    assert "spawn" in reason
    assert "module level" in reason
    assert "__main__" in reason


def test_a_local_dataset_class_is_refused() -> None:
    """A class made inside a function cannot be found by a worker."""

    class Local(Plain):
        pass

    assert str(workers_refused(parts(Local()))).startswith("dataset")


def test_a_sampler_stays_here_and_need_not_pickle() -> None:
    """torch draws the indices in the training process."""

    class Local(list[int]):
        def __reduce__(self) -> Any:
            raise pickle.PicklingError("never sent")

    assert workers_refused(parts(data(), sampler=Local([1, 2]))) is None


def test_large_data_is_not_copied_and_locks_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors are not serialised to find out; locks pickle only while a process starts."""

    def forbidden(self: torch.Tensor, protocol: int) -> Any:
        raise AssertionError("serialised")

    monkeypatch.setattr(torch.Tensor, "__reduce_ex__", forbidden)
    dataset = data()
    dataset.lock = multiprocessing.get_context("spawn").Lock()  # type: ignore[attr-defined]
    assert workers_refused(parts(dataset)) is None


def test_tensors_on_a_device_cannot_come_from_workers() -> None:
    """Whatever the start method, the hint is to return CPU tensors.

    Report: pytorch/pytorch#77159.
    """
    batch = [torch.zeros(2, device="meta")]
    for method in ("fork", "spawn"):
        assert "CPU" in str(workers_refused(parts(data(), method), batch))
    assert workers_refused(parts(data(), "fork"), [torch.zeros(2)]) is None


def test_asking_for_the_start_method_does_not_fix_it() -> None:
    """The loader's own, else the process's, else the platform's default."""
    before = multiprocessing.get_start_method(allow_none=True)
    assert start_method(parts(data(), "forkserver")) == "forkserver"
    assert start_method(parts(data(), None)) in multiprocessing.get_all_start_methods()
    assert multiprocessing.get_start_method(allow_none=True) == before


def test_a_script_without_a_guard_would_run_again(tmp_path: Path) -> None:
    """The reason names the guard; with one, or inside a package's __main__, all is well.

    Reports: pytorch/pytorch#46648, pytorch/pytorch#5858.
    """
    bare, guarded = tmp_path / "bare.py", tmp_path / "guarded.py"
    bare.write_text("print('train')\n")
    guarded.write_text("import sys\nif __name__ == '__main__':\n    print('train')\n")
    assert '`if __name__ == "__main__":`' in str(main_refusal(main(bare), uses_main=False))
    assert "bare.py" in str(main_refusal(main(bare, "package.bare"), uses_main=False))
    assert main_refusal(main(guarded), uses_main=True) is None
    assert main_refusal(main(bare, "package.__main__"), uses_main=False) is None


def test_a_notebook_has_no_file_to_find_classes_in() -> None:
    """It matters only where something of it is needed."""
    assert main_refusal(main(None), uses_main=False) is None
    assert "notebook" in str(main_refusal(main(None), uses_main=True))


def test_what_is_defined_in_a_notebook_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of a main program without a file pickles here and is unknown to a worker.

    Report: computational-cell-analytics/dl-for-micro#20.
    """
    notebook = main(None)
    cell = type("Cell", (Plain,), {"__module__": "__main__", "__qualname__": "Cell"})
    notebook.Cell = cell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    assert "notebook" in str(workers_refused(parts(cell())))


class Drawing(Plain):
    """Holds a random generator of its own."""

    def __init__(self) -> None:
        super().__init__(random.Random(0))


class Reading(Plain):
    """Holds an open file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.open("rb"))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_own_generators_refuse_workers_under_any_start_method(method: str) -> None:
    """A copy by fork and one by pickle draw the same numbers."""
    refusal = workers_refused(parts(Drawing(), method))
    assert refusal is not None
    assert "dataset.extra is a random.Random" in refusal
    assert "worker_init_fn" in refusal


def test_open_files_refuse_forked_workers(tmp_path: Path) -> None:
    """The reason names the attribute and says to open it later."""
    (tmp_path / "data").write_bytes(b"x")
    dataset = Reading(tmp_path / "data")
    with dataset.extra:
        refusal = workers_refused(parts(dataset, "fork"))
    assert refusal is not None
    assert "dataset.extra is an open io.BufferedReader" in refusal


def test_a_dataset_made_by_a_factory_is_searched_when_made() -> None:
    """Before anything is read, so that what opens its file when first read is not refused."""
    made = LoaderParts.of(Drawing).resolve()
    assert [state.where for state in made.shared_states] == ["dataset.extra"]
    made.dataset.other = random.Random(1)
    assert [state.where for state in made.shared_states] == ["dataset.extra"]


def test_the_users_own_workers_are_warned_about_only() -> None:
    """They are the baseline; a worker_init_fn may see to it."""
    own = LoaderParts.of(DataLoader(Drawing(), num_workers=1, multiprocessing_context="fork"))
    assert workers_refused(own) is None
    (warning,) = sharing_warnings(own)
    assert warning.startswith("Your DataLoader has workers, but dataset.extra is a random.Random")
    seeded = LoaderParts.of(DataLoader(Drawing(), worker_init_fn=print, multiprocessing_context=None))
    assert workers_refused(seeded) is None
    assert sharing_warnings(seeded) == ()
    assert sharing_warnings(parts(Drawing())) == ()


def test_daemonic_processes_may_not_have_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a pool."""
    assert daemonic_refusal() is None
    monkeypatch.setattr(multiprocessing, "current_process", lambda: SimpleNamespace(daemon=True))
    assert "daemon=False" in (daemonic_refusal() or "")
    assert workers_refused(parts(data(), "fork")) == daemonic_refusal()


def test_what_each_worker_would_hold_for_itself_is_counted() -> None:
    """Python objects and arrays are sent to every worker, tensors are shared; fork copies nothing at the start."""
    numbers, array = list(range(100_000)), numpy.zeros(1_000_000, dtype=numpy.uint8)
    assert 200_000 <= worker_copy_bytes(parts(Plain(numbers))) <= 600_000
    assert 1_000_000 <= worker_copy_bytes(parts(Plain(array))) <= 1_100_000
    assert worker_copy_bytes(parts(Plain(torch.zeros(1_000_000)))) < 10_000
    assert worker_copy_bytes(parts(Plain(numbers), "fork")) == 0
    assert worker_copy_bytes(parts(Plain(lambda: None))) == 0  # refused already


class Unreadable(numpy.memmap):
    """A file mapped into memory that must not be read as a whole."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise MemoryError("read as a whole")


def test_a_mapped_file_is_counted_without_reading_it(tmp_path: Path) -> None:
    """Each worker would get a copy of all of it; also of array classes of the user's own."""
    mapped = numpy.memmap(tmp_path / "data", dtype=numpy.uint8, mode="w+", shape=(2**20,))
    for array in (mapped, mapped.view(Unreadable)):
        assert 2**20 <= worker_copy_bytes(parts(Plain(array))) <= 2**20 + 10_000
    fields = numpy.zeros(3, dtype=[("name", object)])
    assert worker_copy_bytes(parts(Plain(fields))) < 10_000


def test_whether_a_mapped_file_can_be_sent_is_told_without_reading_it() -> None:
    """A class of the user's own is asked, though: it may refuse."""
    assert _is_plain_array(numpy.memmap(__file__, mode="r"), any_class=False)
    assert not _is_plain_array(numpy.zeros(3).view(Unreadable), any_class=False)
    assert not _is_plain_array(numpy.zeros(3, dtype=object), any_class=True)
