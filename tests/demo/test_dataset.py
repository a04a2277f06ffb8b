"""The demo's dataset: real images, usable by loader workers of every start method."""

from __future__ import annotations

import pickle

import pytest
import torch

from autotune.demo.crops import prepare_crops
from autotune.demo.dataset import IMAGE_PIXELS, CropDataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> CropDataset:
    """Thirty crops."""
    return CropDataset(prepare_crops(tmp_path_factory.mktemp("cache"), 30))


def test_an_item_is_a_normalised_image_and_its_photo(dataset):
    """Float image of the model's size, about zero mean, and an int label."""
    image, label = dataset[13]
    assert image.shape == (3, IMAGE_PIXELS, IMAGE_PIXELS)
    assert image.dtype is torch.float32
    assert -2 <= image.min() < image.max() <= 2.3
    assert label == 3
    assert type(label) is int


def test_length_and_ends(dataset):
    """As many items as crops, and none beyond."""
    assert len(dataset) == 30
    with pytest.raises(IndexError):
        dataset[30]


def test_augmentation_follows_the_seed(dataset):
    """The same seed gives the same picture, another one a different picture."""
    pictures = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        pictures.append(dataset[2][0])
    assert torch.equal(pictures[0], pictures[1])
    assert not torch.equal(pictures[0], pictures[2])


def test_it_travels_to_a_spawned_worker(dataset):
    """It pickles by reference, small, and gives the same items on the other side."""
    data = pickle.dumps(dataset)
    copy = pickle.loads(data)
    assert len(data) < 5000
    torch.manual_seed(0)
    image, _ = dataset[4]
    torch.manual_seed(0)
    assert torch.equal(copy[4][0], image)
