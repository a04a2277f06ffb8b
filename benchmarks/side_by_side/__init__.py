"""The parts of ``benchmarks/peers.py``.

==============  ======================================================================
``answers``     what a peer is asked and what it answers, as JSON between processes
``rivals``      other packages through their public API; runs in their interpreter
``own``         this package, and what articles advise
``plain_tpe``   Optuna's default sampler over the same space
``laps``        the race of all answers at the end
``report``      what is printed
==============  ======================================================================

``answers`` and ``rivals`` use nothing of the tuner: only the workloads, which every peer is given, import it.
"""
