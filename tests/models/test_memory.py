"""Too little memory is said before anything is allocated, and in one line if it happens after all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from unmask.bench.subject import PUBLISHED
from unmask.errors import OutOfMemory
from unmask.models import device
from unmask.models.checkpoint.loading import load_model
from unmask.models.random_weights import random_model

CPU = torch.device("cpu")


def test_a_model_that_does_not_fit_is_refused_with_both_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "free_memory", lambda _: 2**26)
    config = PUBLISHED["llada-8b"] | {"n_layers": 1}  # 1.25 billion weights, of which 1.04 are embedding and head
    with pytest.raises(OutOfMemory) as caught:
        random_model(config, name="large")
    assert str(caught.value) == (
        "large needs 4.67 GiB on cpu, but 0.06 GiB are free; "
        "use dtype='bfloat16' if it is not that already, quantize='int8', a smaller model, "
        "or a machine with more memory"
    )


def test_needs_are_counted_in_the_dtype_asked_for(monkeypatch: pytest.MonkeyPatch, llada_folder: Path) -> None:
    needed = 38528  # bytes of the weights in bfloat16, from their shapes
    monkeypatch.setattr(device, "free_memory", lambda _: needed * 2 - 1)
    assert load_model(llada_folder, device="cpu", dtype="bfloat16").model.dtype == torch.bfloat16
    with pytest.raises(OutOfMemory):
        load_model(llada_folder, device="cpu", dtype="float32")


def test_unknown_free_memory_refuses_nothing(monkeypatch: pytest.MonkeyPatch, llada_folder: Path) -> None:
    monkeypatch.setattr(device, "free_memory", lambda _: None)
    assert load_model(llada_folder, device="cpu").model.spec.family == "llada"


def test_an_allocation_that_fails_after_all_is_one_line() -> None:
    with pytest.raises(OutOfMemory) as caught, device.memory_errors(2**31, CPU, what="model"):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")
    assert str(caught.value).startswith("cpu ran out of memory loading model, which needs 2.00 GiB; use dtype=")


def test_the_cpu_allocators_failure_counts_too() -> None:
    with pytest.raises(OutOfMemory), device.memory_errors(2**31, CPU, what="model"):
        raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 99 bytes")


@pytest.mark.parametrize("said", ["no kernel for this device", "CUDA error: an illegal memory access was encountered"])
def test_other_failures_are_not_blamed_on_memory(said: str) -> None:
    with pytest.raises(RuntimeError, match=said), device.memory_errors(2**31, CPU, what="model"):
        raise RuntimeError(said)


def test_the_smaller_of_machine_and_container_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable:    4096 kB\n")
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("2500000\n")
    (tmp_path / "memory.stat").write_text("anon 2000000\ninactive_file 500000\n")
    monkeypatch.setattr(device, "MEMINFO", meminfo)
    monkeypatch.setattr(device, "CGROUP", tmp_path)
    assert device.free_memory(CPU) == 1000000
    (tmp_path / "memory.max").write_text("max\n")
    assert device.free_memory(CPU) == 4096 * 1024


def test_a_system_that_does_not_tell_has_no_known_free_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(device, "MEMINFO", tmp_path / "absent")
    monkeypatch.setattr(device, "CGROUP", tmp_path / "absent")
    assert device.free_memory(CPU) is None
