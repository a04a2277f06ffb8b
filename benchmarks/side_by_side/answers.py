"""What a peer is asked and what it answers: JSON between processes, each peer in a process of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

__all__ = ["PEERS", "ROOT", "Answer", "Peer", "Request", "answer_here", "ask", "load"]

ROOT = Path(__file__).resolve().parents[2]
TINY_SIZE, TINY_FILES = 1600, 6
"""Samples (w5: files) of a workload with ``tiny``."""

# A peer that takes no budget, or keeps none, may take this much longer before it is given up.
_PATIENCE_S = 900.0
_BUDGETS = 4.0

Fate = Literal["answered", "crashed", "not installed", "left out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One way of choosing settings."""

    label: str
    finder: str | None = None
    """"module:function" that answers a ``Request``; None: the answer is known without trying anything."""
    package: str | None = None
    """What must be importable; None: nothing but this repository."""
    rival: bool = False
    """Runs in the rivals' interpreter."""
    only_batch: bool = False
    """Changes nothing but the batch."""


_RIVALS, _OWN, _TPE = (f"benchmarks.side_by_side.{name}" for name in ("rivals", "own", "plain_tpe"))

PEERS: Mapping[str, Peer] = {
    "defaults": Peer(label="PyTorch defaults"),
    "articles": Peer(label="articles' advice", finder=f"{_OWN}:articles"),
    "cores": Peer(label="workers = cores"),
    "loadtune": Peer(label="loadtune", finder=f"{_RIVALS}:loadtune", package="loadtune", rival=True),
    "pytorch-autotune": Peer(
        label="pytorch-autotune", finder=f"{_RIVALS}:pytorch_autotune", package="pytorch_autotune", rival=True
    ),
    "lightning": Peer(
        label="Lightning Tuner, power",
        finder=f"{_RIVALS}:lightning",
        package="lightning",
        rival=True,
        only_batch=True,
    ),
    "accelerate": Peer(
        label="accelerate finder", finder=f"{_RIVALS}:accelerate", package="accelerate", rival=True, only_batch=True
    ),
    "tpe": Peer(label="Optuna TPE", finder=f"{_TPE}:tpe"),
    "tpe-eager": Peer(label="Optuna TPE, no compiling", finder=f"{_TPE}:tpe_eager"),
    "ours": Peer(label="autotune (ours)", finder=f"{_OWN}:ours"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What every peer is told."""

    workload: str
    budget_s: float
    base: int
    """Batch of the defaults."""
    cap: int
    """Largest batch allowed."""
    locked: bool = False
    """The batch stays ``base``."""
    seed: int = 0
    tiny: bool = False
    """To try the program out: few samples, few steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of one peer."""

    peer: str
    fate: Fate
    changes: dict[str, Any] = field(default_factory=dict)
    """Knobs of ``Settings`` in which the answer differs from the defaults (or all of them)."""
    call: str = ""
    """The API that was used."""
    version: str | None = None
    tuning_s: float | None = None
    """Wall seconds of that call; interpreter start, imports and reading the data left out."""
    process_s: float | None = None
    """Wall seconds of the whole process."""
    steps: int | None = None
    """Training steps taken for it; None: not known."""
    trials: int | None = None
    claimed_ratio: float | None = None
    """The gain over the defaults that it promises."""
    claimed_samples_per_s: float | None = None
    notes: tuple[str, ...] = ()
    """What is not expressible, or went otherwise than one would think."""
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Answer:
        """The answer that ``to_json`` gave."""
        return cls(**{**data, "notes": tuple(data["notes"])})


def load(request: Request) -> Any:
    """The workload of a request (few samples of it with ``tiny``)."""
    from benchmarks.workloads import workload

    if not request.tiny:
        return workload(request.workload)
    return workload(request.workload, size=TINY_FILES if request.workload == "w5" else TINY_SIZE)


def answer_here(peer: str, request: Request, to: Path) -> None:
    """Answers in this process; the answer goes into a file, since libraries print."""
    finder = PEERS[peer].finder
    if finder is None:
        raise ValueError(f"{peer} needs no process")
    module, _, name = finder.partition(":")
    answer: Answer = getattr(import_module(module), name)(request)
    to.write_text(json.dumps(answer.to_json()))


def ask(peer: str, request: Request, *, python: str, script: Sequence[str], limit_s: float | None = None) -> Answer:
    """The answer of ``peer``, from a process of its own.

    Args:
        peer: Name in ``PEERS``.
        request: What it is told.
        python: Interpreter that has its package.
        script: Arguments that lead to ``answer_here``.
        limit_s: Longest wait; None: several budgets and 15 minutes.
    """
    one = PEERS[peer]
    if request.locked and one.only_batch:
        why = f"it changes nothing but the batch, which is locked at {request.base}"
        return Answer(peer=peer, fate="left out", error=why)
    if one.package and not _importable(python, one.package):
        return Answer(peer=peer, fate="not installed", error=f"{python} cannot import {one.package}")
    if limit_s is None:
        limit_s = _BUDGETS * request.budget_s + _PATIENCE_S
    with tempfile.TemporaryDirectory() as folder:
        return _asked(peer, request, [python, *script], Path(folder), limit_s, rival=one.rival)


def _asked(peer: str, request: Request, command: list[str], folder: Path, limit_s: float, *, rival: bool) -> Answer:
    to = folder / "answer.json"
    command = [*command, "--peer", peer, "--request", json.dumps(dataclasses.asdict(request)), "--to", str(to)]
    began = time.perf_counter()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, cwd=ROOT, env=_environment(folder, rival=rival)
        )
    except subprocess.TimeoutExpired:
        return Answer(peer=peer, fate="crashed", error=f"no answer after {limit_s:.0f} s", process_s=limit_s)
    process_s = time.perf_counter() - began
    if done.returncode or not to.exists():
        print(done.stderr[-3000:], file=sys.stderr)
        last = (done.stderr.strip().splitlines() or ["nothing was printed"])[-1][:200]
        error = f"exit code {done.returncode}: {last}"
        return Answer(peer=peer, fate="crashed", error=error, process_s=process_s)
    return dataclasses.replace(Answer.from_json(json.loads(to.read_text())), process_s=process_s)


def _environment(folder: Path, *, rival: bool) -> dict[str, str]:
    """Compiled kernels go into a folder of the peer's own, or one peer would compile for the next."""
    kept = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    if rival:
        kept.pop("PYTHONPATH", None)  # it leads to packages of the host, which may hide theirs
    return kept


def _importable(python: str, package: str) -> bool:
    return not subprocess.run(
        [python, "-c", f"import {package}"], capture_output=True, cwd=tempfile.gettempdir()
    ).returncode
