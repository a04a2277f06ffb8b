from __future__ import annotations

from types import SimpleNamespace

import pytest

from autotune.hardware.nvml import NvmlUnavailable, open_nvml, read_card, visible_entries

GIB = 2**30


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0", [0]),
        ("1,0", [1, 0]),
        (" 2 , 3", [2, 3]),
        ("0,-1,1", [0]),
        ("0,what,1", [0]),
        ("1gpu,2", [1, 2]),
        ("1,1", []),
        ("GPU-aa,GPU-bb", ["GPU-aa", "GPU-bb"]),
        ("GPU-aa,GPU-aa", []),
        ("GPU-aa,1", ["GPU-aa"]),
        ("MIG-x", ["MIG-x"]),
    ],
)
def test_the_visible_devices_are_read_as_cuda_reads_them(value: str | None, expected: object) -> None:
    """Order kept, the first malformed entry ends the list, one named twice hides all."""
    assert visible_entries(value) == expected


def test_nvml_that_does_not_start_is_unavailable(fakes: SimpleNamespace) -> None:
    """A driver that is not loaded (code 9, as under WSL) is one exception with NVML's own words.

    Reports: deepfakes/faceswap#778, ollama/ollama#1888.
    """
    with pytest.raises(NvmlUnavailable, match="Driver Not Loaded"), open_nvml(fakes.Nvml(init_code=9)):
        pytest.fail("entered")


def test_nvml_that_fails_in_use_is_unavailable_and_shut_down(fakes: SimpleNamespace) -> None:
    """An error while reading is mapped as well, and nothing stays open."""
    library = fakes.Nvml()
    with pytest.raises(NvmlUnavailable), open_nvml(library):
        raise fakes.NvmlError(15)
    assert library.open == 0


def test_a_failing_shutdown_does_not_lose_the_answers(fakes: SimpleNamespace) -> None:
    """What was read stays read when NVML cannot be closed."""

    class Nvml(fakes.Nvml):  # type: ignore[misc, name-defined]
        def nvmlShutdown(self) -> None:
            raise fakes.NvmlError(1)

    with open_nvml(Nvml()) as library:
        assert library.nvmlDeviceGetCount() == 0


def test_the_installed_library_starts_or_says_why_not() -> None:
    """Whatever driver this machine has, the real pynvml leads to cards or to a reason.

    Report: deepfakes/faceswap#778.
    """
    count, reason = 0, ""
    try:
        with open_nvml(None) as library:
            count = library.nvmlDeviceGetCount()
    except NvmlUnavailable as error:
        reason = str(error)
    assert count > 0 or reason


@pytest.fixture
def two(fakes: SimpleNamespace) -> SimpleNamespace:
    """A machine with a card of 24 GiB and one of 8 GiB, in NVML's order."""
    small = fakes.card(name="NVIDIA T4", total=8 * GIB, free=7 * GIB, capability=(7, 5), uuid="GPU-bbbb2222-0000")
    return fakes.Nvml(fakes.card(), small)


@pytest.mark.parametrize(
    ("visible", "index", "expected_gib"),
    [
        (None, 0, 24),
        (None, 1, 8),
        ("1", 0, 8),
        ("1,0", 1, 24),
        ("GPU-bbbb2222-0000", 0, 8),
        ("GPU-bbbb", 0, 8),
        ("0,7", 0, 24),
    ],
)
def test_torchs_number_leads_to_the_right_card(
    two: SimpleNamespace, visible: str | None, index: int, expected_gib: int
) -> None:
    """CUDA_VISIBLE_DEVICES by index or by UUID shifts torch's numbers; the memory read is that card's.

    Reports: gpuopenanalytics/pynvml#28, huggingface/optimum-benchmark#47.
    """
    env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    notes: list[str] = []
    card = read_card(two, index=index, env=env, notes=notes)
    assert card is not None
    assert card.memory_bytes == expected_gib * GIB
    assert notes == []


@pytest.mark.parametrize("visible", ["", "-1", "7", "7,0", "GPU-", "GPU-cccc", "MIG-none"])
def test_no_card_is_found_where_torch_sees_none(two: SimpleNamespace, visible: str) -> None:
    """Hidden, missing and ambiguous cards are none."""
    assert read_card(two, index=0, env={"CUDA_VISIBLE_DEVICES": visible}, notes=[]) is None


def test_unlike_cards_in_cudas_own_order_are_doubted(two: SimpleNamespace) -> None:
    """CUDA's default order is by speed, NVML's by bus: with unlike cards the note says what to set."""
    notes: list[str] = []
    read_card(two, index=0, env={}, notes=notes)
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in notes[0]


def test_a_reading_that_is_refused_is_null_and_the_others_stay(fakes: SimpleNamespace) -> None:
    """One "not supported" costs that one fact only, with a note.

    Report: dask/distributed#8739.
    """
    notes: list[str] = []
    library = fakes.Nvml(fakes.card(unsupported=("pids", "mode", "capability")))
    card = read_card(library, index=0, env={}, notes=notes)
    assert card is not None
    assert (card.memory_bytes, card.name) == (24 * GIB, "NVIDIA A10")
    assert (card.process_ids, card.exclusive_process, card.capability) == (None, None, None)
    assert len(notes) == 3
    assert all("Not Supported" in note for note in notes)


def test_refused_memory_is_null(fakes: SimpleNamespace) -> None:
    """A card that shares the host's memory refuses; null, not 0."""
    card = read_card(fakes.Nvml(fakes.card(unsupported=("total",))), index=0, env={}, notes=[])
    assert card is not None
    assert (card.memory_bytes, card.free_bytes) == (None, None)


def slices(fakes: SimpleNamespace) -> tuple[SimpleNamespace, ...]:
    part = fakes.card(
        name="NVIDIA A100 MIG 1g.5gb",
        total=5 * GIB,
        free=4 * GIB,
        uuid="MIG-11",
        parent="GPU-aaaa1111-0000",
        unsupported=("mode", "capability"),
    )
    return (None, part)


@pytest.mark.parametrize("visible", [None, "0", "MIG-11"])
def test_with_mig_the_slice_is_read(fakes: SimpleNamespace, visible: str | None) -> None:
    """Torch sees a slice of a MIG card: its memory counts, the whole card answers what the slice cannot."""
    library = fakes.Nvml(fakes.card(total=40 * GIB, capability=(8, 0), mig=True, slices=slices(fakes)))
    notes: list[str] = []
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    card = read_card(library, index=0, env=env, notes=notes)
    assert card is not None
    assert (card.memory_bytes, card.uuid, card.capability, card.count) == (5 * GIB, "MIG-11", (8, 0), 1)
    assert notes == []


def test_mig_without_a_readable_slice_is_said(fakes: SimpleNamespace) -> None:
    """Where no slice answers, the whole card's memory comes with a warning."""
    notes: list[str] = []
    card = read_card(fakes.Nvml(fakes.card(mig=True)), index=0, env={}, notes=notes)
    assert card is not None
    assert card.memory_bytes == 24 * GIB
    assert "whole card" in notes[0]


def test_texts_given_as_bytes_are_read(fakes: SimpleNamespace) -> None:
    """Old releases of pynvml answer in bytes."""
    card = read_card(fakes.Nvml(fakes.card(name=b"NVIDIA A10"), driver=b"470.1"), index=0, env={}, notes=[])
    assert card is not None
    assert (card.name, card.driver) == ("NVIDIA A10", "470.1")


def test_processes_and_mode_are_read(fakes: SimpleNamespace) -> None:
    """Who is on the card, and whether it admits one process only."""
    card = read_card(fakes.Nvml(fakes.card(pids=(5, 4, 5), mode=3)), index=0, env={}, notes=[])
    assert card is not None
    assert (card.process_ids, card.exclusive_process) == ((4, 5), True)
