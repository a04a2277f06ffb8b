from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.errors import SettingsError
from autotune.hardware.accelerator import UNKNOWN_NAME, Accelerator, complete_accelerator, find_accelerator

Machine = Callable[[Mapping[str, object]], Path]
GIB = 2**30


def find(torch: Any, root: Path, notes: list[str] | None = None, **changes: Any) -> Accelerator | None:
    facts: dict[str, Any] = {"device": None, "root": root, "env": {}, "nvml": None, **changes}
    return find_accelerator(torch, notes=[] if notes is None else notes, **facts)


def test_a_card_is_described_without_starting_cuda(fakes: SimpleNamespace, tmp_path: Path) -> None:
    """All facts come from NVML; torch's runtime is never asked (the fake would fail)."""
    notes: list[str] = []
    found = find(fakes.Torch(), tmp_path, notes, nvml=fakes.Nvml(fakes.card(pids=(2**22 + 1,))))
    assert found == Accelerator(
        type="cuda",
        name="NVIDIA A10",
        index=0,
        count=1,
        memory_bytes=24 * GIB,
        free_bytes=23 * GIB,
        capability=(8, 6),
        driver="550.54.15",
        uuid="GPU-aaaa1111-0000",
        bf16_native=True,
        other_processes=1,
        exclusive_process=False,
    )
    assert not found.incomplete
    assert notes == []


def test_emulated_bf16_is_not_native(fakes: SimpleNamespace, tmp_path: Path) -> None:
    """Capability 7.5 has no bf16 although torch's support call, which the fake has say yes, would pass.

    Report: pytorch/pytorch#148322.
    """
    found = find(fakes.Torch(), tmp_path, nvml=fakes.Nvml(fakes.card(capability=(7, 5))))
    assert found is not None
    assert not found.bf16_native


@pytest.mark.parametrize("visible", ["1", "GPU-bbbb2222"])
def test_the_visible_card_is_the_one_described(fakes: SimpleNamespace, tmp_path: Path, visible: str) -> None:
    """With the second card alone visible, its 8 GiB are used.

    Reports: gpuopenanalytics/pynvml#28, huggingface/optimum-benchmark#47.
    """
    nvml = fakes.Nvml(fakes.card(), fakes.card(total=8 * GIB, uuid="GPU-bbbb2222-0000"))
    found = find(fakes.Torch(), tmp_path, nvml=nvml, env={"CUDA_VISIBLE_DEVICES": visible})
    assert found is not None
    assert (found.memory_bytes, found.index, found.count) == (8 * GIB, 0, 1)


def test_own_processes_on_the_card_are_not_others(fakes: SimpleNamespace, tmp_path: Path) -> None:
    """This process and its children do not count as somebody else."""
    torch = fakes.Torch(initialised=True, available=True, devices=(fakes.properties(),))
    found = find(torch, tmp_path, nvml=fakes.Nvml(fakes.card(pids=(os.getpid(), 2**22 + 1))))
    assert found is not None
    assert found.other_processes == 1


def test_processes_numbered_by_the_host_are_not_counted(fakes: SimpleNamespace, tmp_path: Path) -> None:
    """In a container that does not find itself on a card it uses, others cannot be told apart: null, said."""
    torch = fakes.Torch(initialised=True, available=True, devices=(fakes.properties(),))
    notes: list[str] = []
    found = find(torch, tmp_path, notes, nvml=fakes.Nvml(fakes.card(pids=(2**22 + 1,))))
    assert found is not None
    assert found.other_processes is None
    assert "container" in notes[0]


def test_without_nvml_a_device_file_leaves_the_facts_open(fakes: SimpleNamespace, machine: Machine) -> None:
    """NVML failing with code 9 under WSL: the card is there, its facts are null and the note says why.

    Report: ollama/ollama#1888.
    """
    notes: list[str] = []
    found = find(fakes.Torch(), machine({"dev/dxg": ""}), notes, nvml=fakes.Nvml(init_code=9))
    assert found == Accelerator(type="cuda", name=UNKNOWN_NAME, index=0, count=1)
    assert found.incomplete
    assert "Driver Not Loaded" in notes[0]


def test_without_nvml_and_without_a_device_there_is_none(fakes: SimpleNamespace, tmp_path: Path) -> None:
    """A CPU machine with a CUDA build of torch has no accelerator, said once.

    Report: deepfakes/faceswap#778.
    """
    notes: list[str] = []
    assert find(fakes.Torch(), tmp_path, notes, nvml=fakes.Nvml(init_code=12)) is None
    assert len(notes) == 1


def test_a_card_in_use_is_completed_at_once(fakes: SimpleNamespace, machine: Machine) -> None:
    """Where this process has started CUDA itself, torch's numbers cost nothing and stand in for NVML's."""
    torch = fakes.Torch(initialised=True, available=True, devices=(fakes.properties(total_memory=8 * GIB),))
    found = find(torch, machine({"dev/nvidia0": ""}), nvml=fakes.Nvml(init_code=9))
    assert found is not None
    assert (found.name, found.memory_bytes, found.free_bytes) == ("NVIDIA A10", 8 * GIB, 4 * GIB)
    assert (found.capability, found.bf16_native) == ((8, 6), True)


def test_the_current_device_of_the_caller_is_used(fakes: SimpleNamespace, tmp_path: Path) -> None:
    """After ``torch.cuda.set_device(1)`` the second card is described."""
    torch = fakes.Torch(initialised=True, available=True, current=1, devices=(fakes.properties(),) * 2)
    found = find(torch, tmp_path, nvml=fakes.Nvml(fakes.card(), fakes.card(uuid="GPU-b")))
    assert found is not None
    assert (found.index, found.uuid) == (1, "GPU-b")


def test_the_cpu_may_be_asked_for(fakes: SimpleNamespace, tmp_path: Path) -> None:
    """With ``device="cpu"`` no accelerator is looked for."""
    assert find(fakes.Torch(), tmp_path, device="cpu", nvml=fakes.Nvml(fakes.card())) is None


def test_a_device_may_be_asked_for_by_number(fakes: SimpleNamespace, tmp_path: Path) -> None:
    """``cuda:1`` is the second visible card."""
    nvml = fakes.Nvml(fakes.card(), fakes.card(uuid="GPU-b"))
    found = find(fakes.Torch(), tmp_path, device="cuda:1", nvml=nvml)
    assert found is not None
    assert (found.index, found.uuid, found.count) == (1, "GPU-b", 2)


@pytest.mark.parametrize("device", ["gpu 0", "cuda:x", "", 7, "xpu", "cuda:5"])
def test_a_device_that_cannot_be_is_refused(fakes: SimpleNamespace, tmp_path: Path, device: Any) -> None:
    """Malformed, of another kind than this torch, or not there: an error that names the argument."""
    with pytest.raises(SettingsError, match="device="):
        find(fakes.Torch(), tmp_path, device=device, nvml=fakes.Nvml(fakes.card()))


def test_torch_built_for_the_cpu_has_no_accelerator(fakes: SimpleNamespace, tmp_path: Path) -> None:
    """A CPU build of torch has none, and refuses to be asked for one."""
    torch = fakes.Torch(built=None)
    assert find(torch, tmp_path) is None
    with pytest.raises(SettingsError, match="built"):
        find(torch, tmp_path, device="cuda")


def test_hidden_devices_are_none_without_nvml_too(fakes: SimpleNamespace, machine: Machine) -> None:
    """An empty CUDA_VISIBLE_DEVICES hides the card, whatever NVML does."""
    root = machine({"dev/nvidia0": ""})
    notes: list[str] = []
    assert find(fakes.Torch(), root, notes, nvml=fakes.Nvml(init_code=9), env={"CUDA_VISIBLE_DEVICES": ""}) is None
    assert "hides" in notes[0]


@pytest.mark.parametrize(
    ("built", "hip", "file", "env", "there"),
    [
        ("cuda", "6.2", "dev/kfd", {}, True),
        ("cuda", "6.2", "dev/kfd", {"HIP_VISIBLE_DEVICES": "-1"}, False),
        ("cuda", "6.2", "dev/nvidia0", {}, False),
        ("xpu", None, "dev/dri/renderD128", {}, True),
        ("xpu", None, "dev/null", {}, False),
        ("hpu", None, "dev/null", {}, True),
    ],
)
def test_other_makers_devices_are_left_to_their_runtime(
    fakes: SimpleNamespace, machine: Machine, built: str, hip: str | None, file: str, env: dict[str, str], there: bool
) -> None:
    """ROCm, XPU and unknown devices are expected where their driver's file is, and described later."""
    found = find(fakes.Torch(built=built, hip=hip), machine({file: ""}), env=env)
    assert (found is not None) is there
    if found is not None:
        assert found.incomplete
        assert found.type == built


@pytest.mark.parametrize("available", [True, False])
def test_apples_device_is_asked_directly(fakes: SimpleNamespace, tmp_path: Path, available: bool) -> None:
    """MPS says whether it is there without starting anything; its memory comes later."""
    torch = fakes.Torch(built="mps", mps_available=available)
    found = find(torch, tmp_path)
    assert (found is not None) is available


def test_a_late_look_completes_the_nulls(fakes: SimpleNamespace) -> None:
    """In the child torch fills in what the parent could not see.

    Report: ollama/ollama#1888.
    """
    torch = fakes.Torch(available=True, devices=(fakes.properties(name="Card", major=7, minor=5),))
    found = complete_accelerator(Accelerator(type="cuda", name=UNKNOWN_NAME, index=0, count=1), torch, [])
    assert found is not None
    assert (found.name, found.capability, found.bf16_native) == ("Card", (7, 5), False)
    assert (found.memory_bytes, found.uuid) == (24 * GIB, "GPU-aaaa1111-0000")


def test_a_late_look_replaces_nothing_known(fakes: SimpleNamespace) -> None:
    """What NVML said of the same card stays."""
    torch = fakes.Torch(available=True, devices=(fakes.properties(),) * 2)
    known = Accelerator(
        type="cuda", name="From NVML", index=0, count=2, memory_bytes=5, uuid="GPU-aaaa1111-0000", driver="1"
    )
    found = complete_accelerator(known, torch, [])
    assert found is not None
    assert (found.name, found.memory_bytes, found.driver, found.count) == ("From NVML", 5, "1", 2)


def test_a_late_look_notices_another_card(fakes: SimpleNamespace) -> None:
    """Where CUDA numbers the cards differently, torch's facts replace NVML's and it is said."""
    torch = fakes.Torch(available=True, devices=(fakes.properties(uuid="bbbb", total_memory=8 * GIB),) * 2)
    known = Accelerator(type="cuda", name="A", index=0, count=2, memory_bytes=5, uuid="GPU-aaaa", other_processes=3)
    notes: list[str] = []
    found = complete_accelerator(known, torch, notes)
    assert found is not None
    assert (found.name, found.memory_bytes, found.uuid) == ("NVIDIA A10", 8 * GIB, "GPU-bbbb")
    assert found.other_processes is None
    assert "another card" in notes[0]


def test_a_device_that_is_not_there_after_all_is_dropped(fakes: SimpleNamespace) -> None:
    """A driver's file without a usable device ends as no accelerator, said."""
    notes: list[str] = []
    guess = Accelerator(type="xpu", name=UNKNOWN_NAME, index=0, count=1)
    assert complete_accelerator(guess, fakes.Torch(built="xpu", available=False), notes) is None
    assert "finds no device" in notes[0]


def test_a_number_torch_does_not_have_is_refused(fakes: SimpleNamespace) -> None:
    """``cuda:3`` with one card is an error, not another card."""
    guess = Accelerator(type="cuda", name=UNKNOWN_NAME, index=3, count=4)
    with pytest.raises(SettingsError, match="cuda:3"):
        complete_accelerator(guess, fakes.Torch(available=True, devices=(fakes.properties(),)), [])


@pytest.mark.parametrize(("arch", "native"), [("gfx90a:sramecc+", True), ("gfx1100", True), ("gfx906", False)])
def test_amd_cards_tell_bf16_by_their_architecture(fakes: SimpleNamespace, arch: str, native: bool) -> None:
    """Torch says bf16 is supported on every AMD card; the architecture says whether it is fast."""
    torch = fakes.Torch(hip="6.2", available=True, devices=(fakes.properties(name="MI", gcnArchName=arch),))
    found = complete_accelerator(Accelerator(type="cuda", name=UNKNOWN_NAME, index=0, count=1), torch, [])
    assert found is not None
    assert (found.bf16_native, found.capability) == (native, None)


def test_apples_device_is_completed(fakes: SimpleNamespace) -> None:
    """MPS gives its recommended memory as the limit."""
    torch = fakes.Torch(built="mps", available=True, devices=(None,))
    found = complete_accelerator(Accelerator(type="mps", name=UNKNOWN_NAME, index=0, count=1), torch, [])
    assert found is not None
    assert (found.memory_bytes, found.bf16_native, found.incomplete) == (16 * GIB, False, False)


def test_free_memory_that_cannot_be_read_is_null(fakes: SimpleNamespace) -> None:
    """A backend without the memory call keeps its other facts, with a note."""
    torch = fakes.Torch(built="xpu", available=True, devices=(fakes.properties(has_bfloat16_conversions=True),))
    del torch.xpu.mem_get_info
    notes: list[str] = []
    found = complete_accelerator(Accelerator(type="xpu", name=UNKNOWN_NAME, index=0, count=1), torch, notes)
    assert found is not None
    assert (found.free_bytes, found.memory_bytes, found.bf16_native) == (None, 24 * GIB, True)
    assert "Free memory" in notes[0]
