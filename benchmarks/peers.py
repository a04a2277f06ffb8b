"""Which way of choosing settings trains fastest? Peers tuned one after another, then one race of all their answers.

    python benchmarks/peers.py w1 --rivals rivals/bin/python --budget 60 --out peers-w1.json
    python benchmarks/peers.py w2 --locked --rivals rivals/bin/python
    python benchmarks/peers.py w1 --tiny

PyTorch's defaults; what articles advise (4 workers, pinned, bf16 autocast, channels_last, the largest batch); workers =
cores; loadtune; pytorch-autotune; Lightning's Tuner; accelerate's finder; Optuna's TPE over the tuner's own space, with
and without compiling; the tuner. Each is tuned in a process of its own, one at a time, with a folder of its own for
compiled kernels, and answers with ``Settings``. All that choose a batch have the same cap, the tuner's default: 8 times
the base (less where the data is small). With ``--locked`` the batch stays as it is, and what changes nothing else is
left out.

Then all distinct answers race, see ``side_by_side/laps.py``; at the end the tuner's answer meets the best of the others
alone, in laps of their own, since the best of several is partly the luckiest.

Rivals run in the interpreter named by ``--rivals``; those it does not have are listed as such. To make one:

    python -m venv rivals
    python -c "import site; print(site.getsitepackages()[0])" > rivals/lib/python3.*/site-packages/host.pth
    rivals/bin/python -m pip install lightning accelerate
    rivals/bin/python -m pip install --no-deps loadtune==0.3.0 pytorch-autotune==2.0.0
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __package__ in (None, ""):  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.side_by_side.answers import PEERS, Answer, Request, answer_here, ask, load

if TYPE_CHECKING:
    from autotune import Settings
    from autotune.measurement import Outcome, Probe
    from benchmarks.probing import Bench
    from benchmarks.side_by_side.laps import Laps
    from benchmarks.side_by_side.report import Field

SCRIPT = ("-m", "benchmarks.peers")
BUDGET_S, ROUNDS, LAP_S = 60.0, 6, 1.5
DUEL_ROUNDS = 8
TINY = {"budget": 25.0, "rounds": 2, "lap": 0.3}


def main() -> int:
    """Tunes all, races all, prints all."""
    arguments = parsed()
    if arguments.peer:
        answer_here(arguments.peer, Request(**json.loads(arguments.request)), arguments.to)
        return 0
    with own_kernels():
        document = run(arguments)
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """The whole run."""
    from benchmarks.probing import opened
    from benchmarks.side_by_side import own, report
    from benchmarks.side_by_side.laps import Laps

    request = Request(
        workload=arguments.workload,
        budget_s=arguments.budget,
        base=0,
        cap=0,
        locked=arguments.locked,
        seed=arguments.seed,
        tiny=arguments.tiny,
    )
    job = load(request)
    with opened(job, locked=arguments.locked) as bench:
        request = dataclasses.replace(request, base=job.batch_size, cap=own.cap_of(bench))
        known = known_answers(bench, request)
        defaults, hardware = bench.candidates.baseline, bench.hardware.to_json()
    say(f"{job.name}: {job.summary}; {of_batch(request)}; budget {request.budget_s:g} s")
    answers, settings = tuned(request, known, defaults, arguments)
    field = report.field_of(defaults, answers, settings)
    with opened(job, locked=arguments.locked) as bench:
        laps = Laps(defaults, field.entries, run=bench.run, lap_s=arguments.lap, say=say)
        began = time.perf_counter()
        laps.go(arguments.rounds)
        race_s = time.perf_counter() - began
        print("\n".join(report.lines(field, laps)), flush=True)
        verdict = against_best(field, laps, bench.run, arguments.lap)
    return {
        "workload": job.name,
        "summary": job.summary,
        "request": dataclasses.asdict(request),
        "hardware": hardware,
        "answers": {peer: answer.to_json() for peer, answer in answers.items()},
        "defaults": defaults.to_json(),
        "settings": {peer: one.to_json() for peer, one in settings.items()},
        "laps": laps.to_json(),
        "standings": {name: dataclasses.asdict(standing) for name, standing in laps.standings.items()},
        "race_s": race_s,
        "ours_over_best_other": verdict,
    }


def tuned(
    request: Request, known: Mapping[str, tuple[Settings, Answer]], defaults: Settings, arguments: argparse.Namespace
) -> tuple[dict[str, Answer], dict[str, Settings]]:
    """Every peer's answer, and the settings of those that gave possible ones."""
    answers: dict[str, Answer] = {}
    settings: dict[str, Settings] = {}
    for peer in PEERS:
        if arguments.only and peer not in (*arguments.only, "defaults"):
            continue
        if peer in known:
            settings[peer], answers[peer] = known[peer]
        else:
            python = arguments.rivals if PEERS[peer].rival else sys.executable
            answer, found = judged(ask(peer, request, python=python, script=SCRIPT), defaults)
            answers[peer] = answer
            settings.update({} if found is None else {peer: found})
        say(f"{PEERS[peer].label}: {answers[peer].fate}, {outcome_of(answers[peer], settings.get(peer), defaults)}")
    return answers, settings


def judged(answer: Answer, defaults: Settings) -> tuple[Answer, Settings | None]:
    """The settings of an answer; an answer that is no settings counts as a crash."""
    from autotune.errors import SettingsError

    if answer.fate != "answered":
        return answer, None
    try:
        return answer, defaults.replace(**answer.changes)
    except SettingsError as error:
        return dataclasses.replace(answer, fate="crashed", error=f"its answer is not possible: {error}"), None


def known_answers(bench: Bench, request: Request) -> dict[str, tuple[Settings, Answer]]:
    """What needs no tuning."""
    from benchmarks.side_by_side.own import with_workers

    cores = bench.hardware.cores
    settings, notes = with_workers(bench, bench.candidates.baseline, cores)
    asked = Answer(peer="defaults", fate="answered", call=f"DataLoader(dataset, batch_size={request.base}, shuffle=…)")
    many = Answer(peer="cores", fate="answered", call=f"num_workers={cores}, kept between epochs", notes=tuple(notes))
    return {"defaults": (bench.candidates.baseline, asked), "cores": (settings, many)}


def against_best(field: Field, laps: Laps, run: Callable[[Probe], Outcome], lap_s: float) -> dict[str, Any]:
    """Ours over the best of the others: by the race of all, and in laps of these two alone."""
    from benchmarks.probing import LapFailed, interleave
    from benchmarks.side_by_side import report

    other = report.best_other(field, laps.standings)
    if "ours" not in field.settings or other is None:
        print("ours / best other: nothing to compare")
        return {}
    ours, theirs = field.settings["ours"], field.settings[other]
    verdict: dict[str, Any] = {"other": other, "in_race": report.in_race(field, laps, other)}
    try:
        alone = interleave(run, [ours, theirs], rounds=DUEL_ROUNDS, lap_s=lap_s) if ours != theirs else None
    except LapFailed as error:
        verdict["alone"] = str(error)
    else:
        verdict["alone"] = alone.ratio(ours, theirs).text("round") if alone else report.IDENTITY
        verdict["laps"] = alone.to_json() if alone else None
    print(f"ours / best other ({PEERS[other].label}): {verdict['alone']}; in the race of all: {verdict['in_race']}")
    return verdict


def outcome_of(answer: Answer, settings: Settings | None, defaults: Settings) -> str:
    """One line while it runs."""
    from benchmarks.probing import described

    return str(answer.error) if settings is None else described(settings, defaults)


def of_batch(request: Request) -> str:
    """The batch rule in words."""
    return f"batch locked at {request.base}" if request.locked else f"batch {request.base}, cap {request.cap} for all"


@contextmanager
def own_kernels() -> Iterator[None]:
    """Kernels that the race compiles go into a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        yield


def say(line: str) -> None:
    """Progress, on stderr."""
    print(line, file=sys.stderr, flush=True)


def interpreter(name: str) -> str:
    """Its path from anywhere; links are kept, since a virtual environment's interpreter is one."""
    found = shutil.which(name)
    if found is None:
        raise argparse.ArgumentTypeError(f"{name} cannot be run")
    return os.path.abspath(found)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", nargs="?", help="name of a workload, such as w1")
    parser.add_argument("--rivals", type=interpreter, default=sys.executable, help="interpreter that has the rivals")
    parser.add_argument("--budget", type=float, help=f"seconds for each that takes a budget ({BUDGET_S:g})")
    parser.add_argument("--rounds", type=int, help=f"of the race ({ROUNDS})")
    parser.add_argument("--lap", type=float, help=f"seconds of a lap's window ({LAP_S:g})")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=list(PEERS), help="these peers (and the defaults)")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true", help="to try it out: few samples, short laps")
    batch = parser.add_mutually_exclusive_group()
    batch.add_argument("--free", dest="locked", action="store_false", help="the batch may grow (default)")
    batch.add_argument("--locked", dest="locked", action="store_true", help="samples per optimizer step stay")
    parser.add_argument("--peer", choices=list(PEERS), help=argparse.SUPPRESS)
    parser.add_argument("--request", help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    parser.set_defaults(locked=False)
    arguments = parser.parse_args()
    if not (arguments.peer or arguments.workload):
        parser.error("which workload?")
    for name, usual in (("budget", BUDGET_S), ("rounds", ROUNDS), ("lap", LAP_S)):
        if getattr(arguments, name) is None:
            setattr(arguments, name, TINY[name] if arguments.tiny else usual)
    return arguments


if __name__ == "__main__":
    sys.exit(main())
