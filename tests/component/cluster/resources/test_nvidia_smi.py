"""The GPUs that nvidia-smi lists."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from dasktune.cluster.resources.declare import visible_devices

LISTING = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbbb)
  MIG 1g.10gb     Device  0: (UUID: MIG-cccc)
  MIG 1g.10gb     Device  1: (UUID: MIG-dddd)
"""


def test_nvidia_smi_is_asked_and_nvml_where_that_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvidia_smi = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "listing").write_text(LISTING)
    echo = 'while IFS= read -r line; do echo "$line"; done'
    nvidia_smi.write_text(f"#!/bin/sh\n[ $1 = -L ] && {echo} < '{tmp_path}/listing'\n")
    nvidia_smi.chmod(0o755)
    assert visible_devices() == ("0", "MIG-cccc", "MIG-dddd")
    nvidia_smi.write_text("#!/bin/sh\nexit 9\n")
    nvml = ModuleType("pynvml")
    nvml.nvmlInit = lambda: None  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetCount = lambda: 2  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert visible_devices() == ("0", "1")
