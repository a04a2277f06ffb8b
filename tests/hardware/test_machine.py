from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import ConfigError
from autotune.hardware import Accelerator, Hardware

Machine = Callable[[Mapping[str, object]], Path]
GIB = 2**30


@pytest.fixture
def detect(fakes: SimpleNamespace, machine: Machine) -> Callable[..., Hardware]:
    """Detect a fake machine of 24 cores, 64 GiB and one card; keywords replace what they name."""

    def run(*, files: Mapping[str, object] | None = None, **changes: Any) -> Hardware:
        meminfo = f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {60 * GIB // 1024} kB"
        cpuinfo = "processor\t: 0\nmodel name\t: Fast CPU\nflags\t: fpu amx_bf16\n"
        facts: dict[str, Any] = {
            "root": machine({"proc/meminfo": meminfo, "proc/cpuinfo": cpuinfo, **(files or {})}),
            "env": {},
            "nvml": fakes.Nvml(fakes.card()),
            "torch": fakes.Torch(),
            "allowed": lambda: None,
            "host_cores": lambda: 24,
            "which": lambda name: f"/usr/bin/{name}",
        }
        return Hardware.detect(**{**facts, **changes})

    return run


def test_one_record_holds_all_facts(detect: Callable[..., Hardware]) -> None:
    """Every fact of the machine lands in its field, and nothing went wrong."""
    found = detect()
    assert (found.cores, found.cpu_model, found.cpu_bf16_native) == (24, "Fast CPU", True)
    assert (found.ram_bytes, found.ram_available_bytes, found.shm_bytes) == (64 * GIB, 60 * GIB, None)
    assert (found.torch, found.cuda, found.cudnn) == ("2.14.1+cu130", "13.0", 92400)
    assert found.accelerator is not None
    assert found.accelerator.name == "NVIDIA A10"
    assert found.notes == ()


def test_bounds_and_failures_are_noted(detect: Callable[..., Hardware], fakes: SimpleNamespace) -> None:
    """A quota, a memory limit and a failing NVML each leave their line."""
    files = {"sys/fs/cgroup/cpu.max": "200000 100000", "sys/fs/cgroup/memory.max": GIB}
    found = detect(files=files, nvml=fakes.Nvml(init_code=9))
    assert (found.cores, found.ram_bytes, found.accelerator) == (2, GIB, None)
    assert len(found.notes) == 3


def test_the_compiler_is_the_one_inductor_would_call(detect: Callable[..., Hardware]) -> None:
    """``$CXX`` comes first; without the program there is no compiler."""
    asked: list[str] = []
    assert not detect(env={"CXX": "mycxx"}, which=asked.append).has_compiler
    assert asked == ["mycxx"]
    assert detect().has_compiler


def test_a_cudnn_that_cannot_be_read_is_null(detect: Callable[..., Hardware], fakes: SimpleNamespace) -> None:
    """Torch without the private version call costs that fact only."""
    torch = fakes.Torch()
    torch._C = SimpleNamespace(_has_cudnn=True)
    found = detect(torch=torch)
    assert found.cudnn is None
    assert "cuDNN" in found.notes[0]


def test_rocm_is_named_in_place_of_cuda(detect: Callable[..., Hardware], fakes: SimpleNamespace) -> None:
    """A ROCm build says so in the version field."""
    assert detect(torch=fakes.Torch(hip="6.2")).cuda == "rocm 6.2"


def test_a_record_survives_json(detect: Callable[..., Hardware]) -> None:
    """What is written is what is read, tuples and nulls included."""
    for found in (detect(), detect(device="cpu"), detect(files={"sys/fs/cgroup/cpu.max": "200000 100000"})):
        assert Hardware.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False))) == found


def test_the_fingerprint_holds_what_changes_speed_only(detect: Callable[..., Hardware]) -> None:
    """Free memory, notes, other processes and a minor driver change nothing; each speed fact changes it."""
    found = detect()
    card = found.accelerator
    assert card is not None
    assert found.fingerprint.startswith("sha256:")
    assert len(found.fingerprint) == 7 + 64
    same: list[dict[str, Any]] = [
        {"ram_available_bytes": 1},
        {"shm_bytes": 5},
        {"notes": ("x",)},
        {"open_files": 3},
        {"accelerator": dataclasses.replace(card, free_bytes=1, other_processes=5, uuid="GPU-other", index=1)},
        {"accelerator": dataclasses.replace(card, driver="550.99", memory_bytes=24 * GIB - 2**20)},
    ]
    other: list[dict[str, Any]] = [
        {"cores": 2},
        {"cpu_model": "Slow CPU"},
        {"torch": "2.15.0"},
        {"cuda": "12.8"},
        {"cudnn": 90000},
        {"accelerator": None},
        {"accelerator": dataclasses.replace(card, name="NVIDIA H100")},
        {"accelerator": dataclasses.replace(card, count=2)},
        {"accelerator": dataclasses.replace(card, memory_bytes=48 * GIB)},
        {"accelerator": dataclasses.replace(card, driver="570.10")},
    ]
    assert {dataclasses.replace(found, **change).fingerprint for change in same} == {found.fingerprint}
    prints = {dataclasses.replace(found, **change).fingerprint for change in other}
    assert len(prints | {found.fingerprint}) == len(other) + 1


def test_the_fingerprint_is_the_same_in_another_process(detect: Callable[..., Hardware]) -> None:
    """It depends on the facts alone, not on hash seeds or the process."""
    found = detect()
    script = (
        "import json, sys; from autotune.hardware import Hardware;"
        "print(Hardware.from_json(json.loads(sys.argv[1])).fingerprint)"
    )
    command = [sys.executable, "-c", script, json.dumps(found.to_json())]
    root = Path(__file__).parents[2]
    printed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == found.fingerprint


def test_a_complete_record_is_not_looked_at_again(detect: Callable[..., Hardware], fakes: SimpleNamespace) -> None:
    """In the child a complete record stays as it is and torch is not asked (the fake would fail)."""
    found = detect()
    assert found.completed(torch=fakes.Torch()) is found
    on_cpu = detect(device="cpu")
    assert on_cpu.completed(torch=fakes.Torch()) is on_cpu


def test_a_record_from_elsewhere_stays_usable_without_its_device(
    detect: Callable[..., Hardware], fakes: SimpleNamespace
) -> None:
    """A complete record of a machine with two cards keeps them where torch finds none."""
    found = detect(nvml=fakes.Nvml(fakes.card(), fakes.card()))
    assert found.completed(torch=fakes.Torch(available=False)) == found


def test_an_incomplete_record_is_completed(detect: Callable[..., Hardware], fakes: SimpleNamespace) -> None:
    """With NVML failing but the device file there, the child goes on with torch's numbers."""
    found = detect(files={"dev/nvidia0": ""}, nvml=fakes.Nvml(init_code=9))
    assert found.accelerator is not None
    assert found.accelerator.memory_bytes is None
    late = found.completed(torch=fakes.Torch(available=True, devices=(fakes.properties(),)))
    assert late.accelerator is not None
    assert (late.accelerator.memory_bytes, late.accelerator.bf16_native) == (24 * GIB, True)


def record() -> dict[str, Any]:
    card = Accelerator(type="cuda", name="A", index=0, count=1, capability=(8, 0))
    found = Hardware(
        cores=2,
        cores_reason="all",
        physical_cores=None,
        cpu_model="C",
        cpu_bf16_native=False,
        ram_bytes=1,
        ram_available_bytes=1,
        shm_bytes=None,
        open_files=5,
        accelerator=card,
        has_compiler=True,
        platform="P",
        python="3",
        torch="2",
        cuda=None,
        cudnn=None,
    )
    return found.to_json()


@pytest.mark.parametrize(
    "change",
    [
        {"cores": "2"},
        {"cores": True},
        {"cores": 2.0},
        {"cores": None},
        {"cudnn": "9"},
        {"notes": "text"},
        {"notes": [1]},
        {"accelerator": {}},
        {"accelerator": []},
        {"unknown": 1},
    ],
)
def test_damaged_records_raise_our_error(change: dict[str, Any]) -> None:
    """Fields of another type, missing or unknown are a ``ConfigError``."""
    with pytest.raises(ConfigError):
        Hardware.from_json({**record(), **change})
    with pytest.raises(ConfigError):
        Hardware.from_json({key: value for key, value in record().items() if key not in change and key != "torch"})


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from([*record(), "new"]),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    ),
)
def test_any_json_value_loads_or_raises_our_error(name: str, value: Any) -> None:
    """Whatever stands in a field, loading gives a record that equals it or a ``ConfigError``."""
    try:
        loaded = Hardware.from_json({**record(), name: value})
    except ConfigError:
        return
    assert loaded.to_json()[name] == value


def test_this_machine_is_described_without_starting_an_accelerator() -> None:
    """On the real machine, in a fresh process: a full record, and CUDA stays untouched."""
    script = (
        "import json, torch; from autotune.hardware import Hardware; found = Hardware.detect();"
        "print(json.dumps([found.to_json(), torch.cuda.is_initialized()]))"
    )
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    found, initialised = json.loads(run.stdout)
    assert not initialised
    assert Hardware.from_json(found).cores >= 1
    assert 0 < found["ram_available_bytes"] <= found["ram_bytes"]


def test_importing_the_room_is_light() -> None:
    """Neither torch nor psutil nor pynvml is loaded before something is read."""
    script = "import sys, autotune.hardware, autotune.oom; print({'torch', 'psutil', 'pynvml'} & set(sys.modules))"
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
