"""What device.py chooses: kernels where they can run and are wanted, plain code everywhere else.

No test here needs a CUDA device: torch is told which capability a device has that is not there.
"""

import inspect
import itertools
import json
import pkgutil
import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

import unmask
from unmask.device import KERNEL_NAMES, fast_module, kernels_on, on_device, wait_for, widest_float, with_kernel

REMOVABLE = ("kernels", "cuda")

_numbers = itertools.count(1)


@pytest.fixture
def cuda(monkeypatch, needs_triton):
    """Makes up a CUDA device of some capability; none of them is told of twice, since an answer is remembered."""
    monkeypatch.delenv("UNMASK_KERNELS", raising=False)

    def make(capability=(9, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        return torch.device("cuda", next(_numbers))

    return make


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes a package with plain code, and perhaps with kernels, and gives its plain module."""

    def make(kernels=None):
        name = f"dispatched_{next(_numbers)}"
        folder = tmp_path / name
        folder.mkdir()
        (folder / "__init__.py").touch()
        (folder / "sums.py").write_text(
            "from unmask.device import with_kernel\n"
            "@with_kernel\n"
            "def total(values, *, scale=1):\n"
            "    'Their sum.'\n"
            "    return ('plain', scale)\n"
        )
        if kernels is not None:
            (folder / "kernels").mkdir()
            (folder / "kernels" / "__init__.py").touch()
            (folder / "kernels" / "sums.py").write_text(kernels)
        monkeypatch.syspath_prepend(tmp_path)
        return import_module(f"{name}.sums")

    yield make
    KERNEL_NAMES[:] = [name for name in KERNEL_NAMES if not name.startswith("dispatched_")]


KERNEL = "def total(values, *, scale=1):\n    return NotImplemented if scale > 8 else ('kernel', scale)\n"


def tensor_on(device):
    """As much of a tensor as a choice looks at."""
    return SimpleNamespace(is_cuda=device.type == "cuda", device=device)


def plain_modules():
    """Imports every module of ours that is not only about speed."""
    for found in pkgutil.walk_packages(unmask.__path__, "unmask."):
        parts = found.name.split(".")
        if parts[1] in ("rules", "models", "engine") and not set(parts) & set(REMOVABLE):
            import_module(found.name)


def kernels_and_plain():
    plain_modules()
    return [(name, name.replace(".kernels.", ".")) for name in KERNEL_NAMES if name.startswith("unmask.")]


def found_at(name):
    module, _, function = name.rpartition(".")
    return getattr(import_module(module), function)


def test_continuous_integration_has_triton(needs_triton):
    """Files of tests of kernels are skipped without Triton; this one fails then, where CI runs."""


def test_plain_functions_ask_for_kernels():
    names = {kernel for kernel, _ in kernels_and_plain()}
    assert {"unmask.rules.kernels.commit.commit_open", "unmask.models.kernels.quantized.product"} <= names
    assert len(names) == len(KERNEL_NAMES) >= 7


@pytest.mark.usefixtures("needs_triton")
@pytest.mark.parametrize(("kernel", "plain"), kernels_and_plain())
def test_every_kernel_that_is_asked_for_exists_and_takes_what_the_plain_function_takes(kernel, plain):
    mine, theirs = (inspect.signature(found_at(name)).parameters for name in (kernel, plain))
    wanted = {name: p for name, p in theirs.items() if p.kind is not inspect.Parameter.VAR_KEYWORD}
    positional = [name for name, p in wanted.items() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert list(mine)[: len(positional)] == positional
    assert positional, "a choice looks at the first argument"
    for name, parameter in wanted.items():
        assert name in mine
        assert mine[name].kind is parameter.kind, name
        if parameter.default is not inspect.Parameter.empty:
            assert mine[name].default == parameter.default, name
    for name in mine.keys() - wanted.keys():
        assert mine[name].kind is inspect.Parameter.KEYWORD_ONLY, name
        assert mine[name].default is not inspect.Parameter.empty, name


def test_a_kernel_serves_on_a_cuda_device_and_plain_code_on_others(package, cuda):
    module = package(KERNEL)
    assert module.total(tensor_on(cuda())) == ("kernel", 1)
    assert module.total(tensor_on(cuda()), scale=3) == ("kernel", 3)
    for device in ("cpu", "mps", "meta"):
        assert module.total(tensor_on(torch.device(device)), scale=3) == ("plain", 3)


def test_plain_code_serves_what_a_kernel_does_not_take(package, cuda):
    assert package(KERNEL).total(tensor_on(cuda()), scale=9) == ("plain", 9)


@pytest.mark.parametrize("capability", [(6, 1), (7, 5)])
def test_plain_code_serves_on_an_old_cuda_device(package, cuda, capability):
    device = cuda(capability)
    assert not kernels_on(device)
    assert package(KERNEL).total(tensor_on(device)) == ("plain", 1)


def test_kernels_are_turned_off_and_on_again_by_the_environment(package, cuda, monkeypatch):
    module, device = package(KERNEL), cuda((8, 0))
    assert kernels_on(device)
    monkeypatch.setenv("UNMASK_KERNELS", "0")
    assert not kernels_on(device)
    assert fast_module("unmask.rules.kernels.commit", device) is None
    assert module.total(tensor_on(device)) == ("plain", 1)
    monkeypatch.setenv("UNMASK_KERNELS", "1")
    assert module.total(tensor_on(device)) == ("kernel", 1)


def test_functions_have_their_kernels_on_every_device_where_these_are_interpreted(package, monkeypatch):
    module, here = package(KERNEL), torch.device("cpu")
    monkeypatch.setenv("UNMASK_KERNELS", "interpret")
    assert module.total(tensor_on(here)) == ("kernel", 1)
    assert module.total(tensor_on(here), scale=9) == ("plain", 9)
    assert not kernels_on(here)
    assert fast_module("unmask.rules.kernels.commit", here) is None  # but models and runners stay plain


def test_plain_code_serves_without_triton_and_on_amd_devices(package, cuda, monkeypatch):
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "triton", None)
        assert not kernels_on(cuda())
    with monkeypatch.context() as other:
        other.setattr(torch.version, "hip", "6.2")
        assert not kernels_on(cuda())
    assert kernels_on(cuda())


def test_plain_code_serves_where_the_folder_of_kernels_is_missing(package, cuda):
    module = package()
    assert module.total(tensor_on(cuda())) == ("plain", 1)
    assert fast_module(f"{module.__package__}.kernels.sums", cuda()) is None


def test_a_folder_of_kernels_without_the_module_counts_as_missing(package, cuda):
    module = package(KERNEL)
    assert fast_module(f"{module.__package__}.kernels.products", cuda()) is None


def test_what_a_kernel_module_lacks_itself_is_an_error(package, cuda):
    module = package("import a_library_that_is_not_there\n")
    with pytest.raises(ModuleNotFoundError, match="a_library_that_is_not_there"):
        module.total(tensor_on(cuda()))


def test_a_kernel_module_without_the_function_is_an_error(package, cuda):
    with pytest.raises(AttributeError, match="total"):
        package("").total(tensor_on(cuda()))


def test_a_function_that_may_have_a_kernel_keeps_its_name_and_its_text():
    def total(values):
        """Their sum."""
        return sum(values)

    chosen = with_kernel(total)
    KERNEL_NAMES.pop()
    assert (chosen.__name__, chosen.__doc__, chosen.__module__) == ("total", "Their sum.", __name__)


def test_the_widest_float_is_double_precision_where_the_device_has_it():
    assert widest_float(torch.device("cpu")) == widest_float(torch.device("cuda")) == torch.float64
    assert widest_float(torch.device("mps")) == torch.float32


def test_numbers_of_the_host_come_to_the_device_as_they_are():
    device = torch.device("cpu")
    assert torch.equal(on_device([3, 1], device), torch.tensor([3, 1]))
    values = torch.tensor([[1.5], [2.5]])
    assert torch.equal(on_device(values, device), values)
    wait_for(device)


DECODES = """
import json, sys, unmask
llm = unmask.load("tiny", device="cpu")
for policy in ("mean_field", "fixed", "klass", "dawn", "eb"):
    for cache in ("none", "prefix", "dual") if policy not in ("klass", "dawn") else ("none",):
        llm.generate(["one", "two, three"], policy=policy, cache=cache, max_tokens=6, block_size=3)
print(json.dumps([name for name in sys.modules if name.startswith("unmask.")]))
"""


def test_a_model_without_a_gpu_imports_no_kernels():
    done = subprocess.run([sys.executable, "-c", DECODES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = json.loads(done.stdout.splitlines()[-1])
    assert "unmask.models.transformer" in names
    assert not [name for name in names if set(REMOVABLE) & set(name.split("."))]
