"""Reading torch's process-wide switches, and setting them back."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

_CHANGES = {
    "legacy": "torch.backends.cudnn.allow_tf32 = False; torch.set_float32_matmul_precision('high')",
    "new": "torch.backends.fp32_precision = 'tf32'; torch.backends.cuda.matmul.fp32_precision = 'ieee'",
    "mixed": "torch.set_float32_matmul_precision('high'); torch.backends.cuda.matmul.fp32_precision = 'ieee'",
    "others": "torch.use_deterministic_algorithms(True, warn_only=True); torch.set_default_dtype(torch.float64);"
    "torch.backends.cudnn.deterministic = True; torch.backends.cuda.enable_flash_sdp(False);"
    "torch.set_default_device('meta')",
}
_PROGRAM = """
import json, sys, torch
from autotune.sandbox.flags import TorchFlags
before = TorchFlags.capture()
{change}
changed = TorchFlags.capture()
assert changed != before
before.apply()
restored = TorchFlags.capture()
changed.apply()
again = TorchFlags.capture()
print(json.dumps([before.values, changed.values, restored.values, again.values, torch.cuda.is_initialized()]))
"""


@pytest.mark.parametrize("change", _CHANGES)
def test_switches_are_read_and_set_back(change: str) -> None:
    """Through the old TF32 interface, the new one or both: restoring restores, applying applies, no CUDA is touched."""
    program = _PROGRAM.format(change=_CHANGES[change])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    before, changed, restored, again, initialised = json.loads(done.stdout)
    assert restored == before
    assert {name: again.get(name) for name in changed} == changed
    assert not initialised
