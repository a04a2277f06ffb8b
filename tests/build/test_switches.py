"""Process-wide switches, and exactly the former ones afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from autotune.build.switches import apply_switches, switches
from autotune.settings import Settings

TF32 = Settings(precision="tf32", num_threads=1, cudnn_benchmark=True)
ENTRIES = [(backend, op) for backend in ("generic", "cuda", "mkldnn") for op in ("all", "matmul", "conv", "rnn")]


def entry(backend: str, op: str) -> str:
    return "" if backend == "generic" and op != "all" else torch._C._get_fp32_precision_getter(backend, op)


def put(backend: str, op: str, value: str) -> None:
    torch._C._set_fp32_precision_setter(backend, op, value)


def older_interface() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "mixed"


def state() -> list[Any]:
    """All switches, and what shows only after a wider entry changes (which entries inherit it)."""
    seen: list[Any] = [torch.get_num_threads(), torch.backends.cudnn.benchmark, older_interface()]
    general = entry("generic", "all")
    put("generic", "all", "none")
    own = {"cuda": entry("cuda", "all"), "mkldnn": entry("mkldnn", "all")}
    for wider in ("none", "ieee"):
        for backend in own:
            put(backend, "all", wider)
        seen += [entry(*pair) for pair in ENTRIES]
    for backend, value in own.items():
        put(backend, "all", value)
    put("generic", "all", general)
    return seen + [entry(*pair) for pair in ENTRIES]


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Leave the process as it was found, whatever a test does to it."""
    threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = benchmark
    torch.set_float32_matmul_precision(precision)
    for backend in ("generic", "cuda", "mkldnn"):
        put(backend, "all", "none")
    for backend in ("cuda", "mkldnn"):
        put(backend, "matmul", "none")


def nothing() -> None:
    """A process as it starts."""


def older(value: str) -> Any:
    return lambda: torch.set_float32_matmul_precision(value)


def newer_matmul() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"


def newer_matmul_ieee_after_older() -> None:
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.matmul.fp32_precision = "ieee"


def newer_general() -> None:
    put("generic", "all", "tf32")


def newer_backend() -> None:
    put("mkldnn", "all", "bf16")


def newer_cpu() -> None:
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"


CALLERS = [
    nothing,
    older("high"),
    older("medium"),
    newer_matmul,
    newer_matmul_ieee_after_older,
    newer_general,
    newer_backend,
    newer_cpu,
]


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("settings", [TF32, Settings(), Settings(precision="bf16-mixed")], ids=lambda s: s.precision)
def test_switches_are_restored_exactly(caller: Any, settings: Settings) -> None:
    """Whichever interface the caller used, and however it was mixed, all reads as before."""
    caller()
    before = state()
    with switches(settings):
        pass
    assert state() == before


@pytest.mark.parametrize("caller", CALLERS)
def test_tf32_is_on_inside_and_readable_through_both_interfaces(caller: Any) -> None:
    """Inside the block neither interface of torch raises, as user code and the compiler read either."""
    caller()
    with switches(TF32):
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cuda.matmul.allow_tf32 is True
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"


def test_fp32_leaves_the_callers_precision_alone() -> None:
    """Only "tf32" touches float32 flags."""
    torch.set_float32_matmul_precision("medium")
    with switches(Settings(precision="fp32")):
        assert torch.get_float32_matmul_precision() == "medium"


def test_threads_and_benchmark_are_set_and_restored_after_an_error() -> None:
    """An exception inside the block restores as well."""
    torch.set_num_threads(2)
    before = state()

    def fail() -> None:
        with switches(TF32):
            assert torch.get_num_threads() == 1
            assert torch.backends.cudnn.benchmark is True
            raise KeyError("stop")

    with pytest.raises(KeyError):
        fail()
    assert state() == before


def test_changes_are_told_and_only_changes() -> None:
    """What was changed comes back in words; a second time there is nothing to tell."""
    torch.set_num_threads(2)
    told = apply_switches(TF32)
    assert [line.split("(")[0].split(" =")[0] for line in told] == [
        "torch.set_num_threads",
        "torch.backends.cudnn.benchmark",
        "torch.set_float32_matmul_precision",
    ]
    assert apply_switches(TF32) == []


def test_benchmark_can_be_switched_off_too() -> None:
    """Settings are complete: False is set, not skipped."""
    torch.backends.cudnn.benchmark = True
    with switches(Settings()):
        assert torch.backends.cudnn.benchmark is False
    assert torch.backends.cudnn.benchmark is True


def test_threads_none_leaves_them() -> None:
    """No wish about threads means no change."""
    torch.set_num_threads(2)
    with switches(Settings()) as told:
        assert torch.get_num_threads() == 2
        assert told == []
