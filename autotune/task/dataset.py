"""What a dataset must be: loadable more than once, by index or as a stream, and not empty."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import GeneratorType
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

from autotune.errors import TaskError
from autotune.task.names import qualified_name

__all__ = ["FactoryStream", "check_dataset", "is_factory", "length"]

_ONE_PASS = (GeneratorType, map, filter, zip, enumerate, itertools.chain, itertools.islice)


class FactoryStream(IterableDataset[Any]):
    """An iterable dataset over a factory that returns a one-pass iterator, called anew for every epoch.

    Args:
        factory: Without arguments; returns an iterator of samples.
    """

    def __init__(self, factory: Callable[[], Iterator[Any]]) -> None:
        self.factory = factory

    def __iter__(self) -> Iterator[Any]:
        return self.factory()


def is_factory(data: Any) -> bool:
    """Whether ``data`` is something to call for a dataset instead of one.

    Args:
        data: What the user handed over.

    Returns:
        True for classes, and for callables that can be neither indexed nor iterated.
    """
    if isinstance(data, type):
        return True
    return callable(data) and not hasattr(data, "__getitem__") and not hasattr(data, "__iter__")


def length(data: Any) -> int | None:
    """``len(data)``, None where there is none.

    Args:
        data: A dataset or sampler.

    Returns:
        Items, or None for streams of unknown length.

    Raises:
        TaskError: ``__len__`` failed, or gave what is no length.
    """
    try:
        return len(data)
    except (TypeError, NotImplementedError):  # having no length is an answer
        return None
    except Exception as error:  # whatever a __len__ of the user's raises
        raise TaskError(
            f"len() of {qualified_name(type(data))} raised {type(error).__name__}: {str(error).rstrip('.')}.",
            f"Its __len__ must return the number of samples, at most {sys.maxsize}.",
        ) from error


def check_dataset(data: Any) -> None:
    """Refuse what cannot be trained from; nothing is read.

    Args:
        data: A dataset, not a factory.

    Raises:
        TaskError: It is None, no dataset, empty, or a stream that can be read only once.
    """
    if data is None:
        raise TaskError("dataset is None.", "Pass a dataset, a DataLoader, or a factory that makes one of them.")
    if _is_one_pass(data):
        raise TaskError(
            f"dataset ({qualified_name(type(data))}) can be read only once: measuring would use it up.",
            "Pass a factory instead: a function without arguments that makes the dataset anew.",
        )
    if not isinstance(data, IterableDataset):
        _check_map_style(data)
    elif any(isinstance(stage, DataLoader) for stage in _stages(data)):
        raise TaskError(
            f"dataset ({qualified_name(type(data))}) is a loader of whole batches with a DataLoader inside.",
            "Pass the pipeline before that loader, or torch's DataLoader over it with batch_size=None.",
        )


def _stages(data: Any) -> Iterable[Any]:
    """The parts of a pipeline as WebDataset makes them, whose ``WebLoader`` is no ``DataLoader``."""
    stages = getattr(data, "pipeline", ())
    return stages if isinstance(stages, (list, tuple)) else ()


def _is_one_pass(data: Any) -> bool:
    if isinstance(data, IterableDataset):  # one around a generator is no better than the generator
        return any(isinstance(value, _ONE_PASS) for value in getattr(data, "__dict__", {}).values())
    return isinstance(data, Iterator) and not isinstance(data, Dataset)


def _check_map_style(data: Any) -> None:
    name = qualified_name(type(data))
    if isinstance(data, Mapping):
        raise TaskError(
            f"dataset is a mapping ({name}) with the keys {', '.join(map(str, itertools.islice(data, 5)))}.",
            "Pass one of its datasets, such as dataset['train'].",
        )
    if isinstance(data, (str, bytes)) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise TaskError(
            f"dataset ({name}) has not both __getitem__ and __len__, and it is no IterableDataset.",
            "Pass a torch Dataset, a list of samples, a DataLoader, or a factory that makes one of them.",
        )
    if isinstance(data, tuple) and len(data) == 2 and all(getattr(item, "ndim", 0) for item in data):
        raise TaskError(
            "dataset is a pair of tensors, not a sequence of samples.",
            "Pass torch.utils.data.TensorDataset(inputs, targets).",
        )
    if length(data) == 0:
        raise TaskError(f"dataset ({name}) has no samples.", "Check the path or the filter it was made with.")
