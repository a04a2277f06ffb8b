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

With a budget of 60 s on two cores it takes about 20 minutes. ``--answers`` races the answers in an earlier run's
``--out`` anew, where others used the machine during the first race.

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
        document = tuned(arguments)
        keep(document, arguments.out)  # an answer may have taken minutes: it must not be lost with the race
        document.update(raced(document, arguments))
        keep(document, arguments.out)
    return 0


def tuned(arguments: argparse.Namespace) -> dict[str, Any]:
    """What every peer answers; with ``--answers``, what it answered in an earlier run."""
    from benchmarks.probing import opened
    from benchmarks.side_by_side.own import cap_of

    given = {name: getattr(arguments, name) for name in ("workload", "locked", "seed", "tiny")}
    request = Request(**given, budget_s=arguments.budget, base=0, cap=0)
    job = load(request)
    with opened(job, locked=arguments.locked) as bench:
        request = dataclasses.replace(request, base=job.batch_size, cap=cap_of(bench))
        known = known_answers(bench, request)
        document = {
            "summary": f"{job.name}: {job.summary}",
            "request": dataclasses.asdict(request),
            "hardware": bench.hardware.to_json(),
            "defaults": bench.candidates.baseline.to_json(),
        }
    print(heading(document), flush=True)
    if arguments.answers:
        earlier = json.loads(arguments.answers.read_text())
        return {**document, "answers": earlier_answers(earlier, document)}
    answers = {}
    for peer in PEERS:
        if arguments.only is None or peer in (*arguments.only, "defaults"):
            python = arguments.rivals if PEERS[peer].rival else sys.executable
            answers[peer] = known.get(peer) or ask(peer, request, python=python, script=SCRIPT)
            say(f"{PEERS[peer].label}: {answers[peer].fate} {answers[peer].error or ''}")
    return {**document, "answers": {peer: answer.to_json() for peer, answer in answers.items()}}


def raced(document: Mapping[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """The race of all answers, and ours against the best of the others."""
    from autotune import Settings
    from benchmarks.probing import opened
    from benchmarks.side_by_side import report
    from benchmarks.side_by_side.laps import Laps

    defaults = Settings.from_json(document["defaults"])
    found = {
        peer: judged(Answer.from_json(one), defaults, document["request"]["cap"])
        for peer, one in document["answers"].items()
    }
    answers = {peer: answer for peer, (answer, _) in found.items()}
    field = report.field_of(defaults, answers, {peer: one for peer, (_, one) in found.items() if one is not None})
    began = time.perf_counter()
    with opened(load(Request(**document["request"])), locked=arguments.locked) as bench:
        laps = Laps(defaults, field.entries, run=bench.run, lap_s=arguments.lap, say=say)
        laps.go(arguments.rounds)
        print("\n".join(report.lines(field, laps)), flush=True)
        verdict = against_best(field, laps, bench.run)
    return {
        "settings": {peer: one.to_json() for peer, one in field.settings.items()},
        "laps": laps.to_json(),
        "standings": {name: dataclasses.asdict(standing) for name, standing in laps.standings.items()},
        "ours_over_best_other": verdict,
        "race_s": time.perf_counter() - began,
    }


def earlier_answers(earlier: Mapping[str, Any], document: Mapping[str, Any]) -> Any:
    """The answers of an earlier run of the same question on the same machine."""
    for name, part in (("request", ("workload", "base", "cap", "locked", "tiny")), ("defaults", document["defaults"])):
        if any(earlier[name].get(key) != document[name].get(key) for key in part):
            raise SystemExit(f"the earlier run is another one: {earlier[name]}, not {document[name]}")
    return earlier["answers"]


def keep(document: Mapping[str, Any], path: Path | None) -> None:
    """Writes what there is so far."""
    if path is not None:
        path.write_text(json.dumps(document, indent=1) + "\n")


def heading(document: Mapping[str, Any]) -> str:
    """What was asked, and where."""
    request, machine = document["request"], document["hardware"]
    batch = f"batch locked at {request['base']}" if request["locked"] else f"batch {request['base']}"
    cap = "" if request["locked"] else f" (cap {request['cap']} for all)"
    accelerator = (machine["accelerator"] or {}).get("name", "no accelerator")
    return (
        f"{document['summary']}; {batch}{cap}; budget {request['budget_s']:g} s. "
        f"{machine['cores']} cores, {machine['cpu_model']}, {accelerator}, torch {machine['torch']}.\n"
    )


def judged(answer: Answer, defaults: Settings, cap: int) -> tuple[Answer, Settings | None]:
    """The settings of an answer; an answer that is no settings counts as a crash."""
    from autotune.errors import SettingsError

    if answer.fate != "answered":
        return answer, None
    try:
        settings = defaults.replace(**answer.changes)
    except SettingsError as error:
        return dataclasses.replace(answer, fate="crashed", error=f"its answer is not possible: {error}"), None
    if (settings.batch_size or 0) <= cap:
        return answer, settings
    note = f"its batch {settings.batch_size} is above the cap: raced at {cap}"
    return dataclasses.replace(answer, notes=(*answer.notes, note)), settings.replace(batch_size=cap)


def known_answers(bench: Bench, request: Request) -> dict[str, Answer]:
    """What needs no tuning."""
    from benchmarks.side_by_side.own import with_workers

    cores = bench.hardware.cores
    settings, notes = with_workers(bench, bench.candidates.baseline, cores)
    return {
        "defaults": Answer(peer="defaults", fate="answered", call=f"DataLoader(dataset, batch_size={request.base})"),
        "cores": Answer(
            peer="cores",
            fate="answered",
            changes=settings.to_json(),
            call=f"num_workers={cores}, kept between epochs",
            notes=tuple(notes),
        ),
    }


def against_best(field: Field, laps: Laps, run: Callable[[Probe], Outcome]) -> dict[str, Any]:
    """Ours over the best of the others: by the race of all, and in laps of these two alone."""
    from benchmarks.probing import LapFailed, interleave
    from benchmarks.side_by_side import report

    other = report.best_other(field, laps.standings)
    if "ours" not in field.settings or other is None:
        print("ours / best other: nothing to compare")
        return {}
    ours, theirs = field.settings["ours"], field.settings[other]
    verdict: dict[str, Any] = {"other": other, "in_race": report.in_race(field, laps, other)}
    lap_s = max(laps.window_s(field.entry_of(peer)) for peer in ("ours", other))
    try:
        alone = interleave(run, [ours, theirs], rounds=DUEL_ROUNDS, lap_s=lap_s) if ours != theirs else None
    except LapFailed as error:
        verdict["alone"] = str(error)
    else:
        verdict["alone"] = alone.ratio(ours, theirs).text("round") if alone else report.IDENTITY
        verdict["laps"] = alone.to_json() if alone else None
    print(f"ours / best other ({PEERS[other].label}): {verdict['alone']}; in the race of all: {verdict['in_race']}")
    return verdict


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
    parser.add_argument("--answers", type=Path, help="race the answers in an earlier run's --out anew")
    parser.add_argument("--out", type=Path, help="JSON of all answers, settings and laps")
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
