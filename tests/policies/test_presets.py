import pytest

from unmask import policies
from unmask.errors import UnmaskError

TASKS = ("gsm8k", "math", "humaneval", "mbpp")
LLADA = ("llada", "GSAI-ML/LLaDA-8B-Instruct", "GSAI-ML/LLaDA-8B-Base", "LLaDA-1.5", "toy", "tiny")
DREAM = ("dream", "Dream-org/Dream-v0-Base-7B", "Dream-v0-Instruct-7B", "Dream-Coder-v0", "apple/DiffuCoder-7B-cpGRPO")


def column(name, model, field):
    return tuple(getattr(policies.preset(name, model, task), field) for task in TASKS)


@pytest.mark.parametrize("model", LLADA)
def test_presets_of_llada(model):
    assert policies.preset("mean_field", model) == policies.MeanField(threshold=0.85, iterations=2)
    assert policies.preset("threshold", model, "mbpp") == policies.Threshold(threshold=0.9)
    assert policies.preset("local_leap", model) == policies.LocalLeap(relaxed_threshold=0.75)
    assert policies.preset("entropy", model) == policies.Entropy(schedule="even")
    assert policies.preset("fixed", model) == policies.Fixed(tokens_per_pass=1)
    assert column("klass", model, "confidence") == (0.6, 0.6, 0.9, 0.7)
    assert column("klass", model, "kl") == (0.015, 0.01, 0.01, 0.01)
    assert policies.preset("klass", model).convention == "llada"


@pytest.mark.parametrize("model", DREAM)
def test_presets_of_dream(model):
    assert policies.preset("mean_field", model) == policies.MeanField(threshold=0.95, iterations=2)
    assert policies.preset("threshold", model) == policies.Threshold(threshold=0.9)
    assert policies.preset("local_leap", model) == policies.LocalLeap(relaxed_threshold=0.8)
    for name in ("entropy", "margin", "random"):
        assert policies.preset(name, model) == policies.get(name, schedule="dream")
    assert column("klass", model, "confidence") == (0.9, 0.9, 0.8, 0.9)
    assert column("klass", model, "kl") == (0.001, 0.005, 0.001, 0.001)
    assert policies.preset("klass", model).convention == "dream"


@pytest.mark.parametrize(
    ("model", "sink", "edge", "induce", "low"),
    [
        ("LLaDA-8B-Instruct", 0.01, 0.07, 0.7, (0.75, 0.75, 0.8, 0.7)),
        ("llada", 0.01, 0.07, 0.7, (0.75, 0.75, 0.8, 0.7)),
        ("GSAI-ML/LLaDA-1.5", 0.01, 0.07, 0.7, (0.75, 0.75, 0.8, 0.75)),
        ("Dream-v0-Instruct-7B", 0.03, 0.1, 0.75, (0.8, 0.8, 0.8, 0.8)),
        ("Dream-v0-Base-7B", 0.03, 0.05, 0.75, (0.75, 0.8, 0.8, 0.8)),
    ],
)
def test_dawn_has_a_row_for_each_checkpoint(model, sink, edge, induce, low):
    for task, tau_low in zip(TASKS, low, strict=True):
        expected = policies.Dawn(tau_sink=sink, tau_edge=edge, tau_induce=induce, tau_low=tau_low)
        assert policies.preset("dawn", model, task) == expected


def test_a_policy_without_a_row_gets_its_defaults():
    for name in ("factor", "eb"):
        assert policies.preset(name, "llada", "mbpp") == policies.get(name)


def test_math500_is_math_and_no_task_is_gsm8k():
    assert policies.preset("klass", "llada", "math500") == policies.preset("klass", "llada", "math")
    assert policies.preset("klass", "llada") == policies.preset("klass", "llada", "gsm8k")


def test_settings_that_belong_to_a_preset():
    assert policies.preset_settings("mean_field", "llada") == {"block_size": 20}
    assert policies.preset_settings("mean_field", "Dream-v0-Instruct-7B") == {"block_size": 20}
    assert policies.preset_settings("klass", "LLaDA-1.5", "mbpp") == {"block_size": 64}
    assert policies.preset_settings("klass", "dream") == {"block_size": 256, "temperature": 0.2, "top_p": 0.95}
    assert policies.preset_settings("threshold", "dream") == {}


def test_the_last_telling_part_of_a_path_decides_the_family():
    assert policies.preset("mean_field", "/data/dream/LLaDA-8B-Instruct").threshold == 0.85
    assert policies.preset("mean_field", "/hub/models--Dream-org--Dream-v0-Base-7B/snapshots/0a1b").threshold == 0.95
    assert policies.preset("dawn", "/hub/models--Dream-org--Dream-v0-Base-7B/snapshots/0a1b").tau_edge == 0.05


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("mean_feild", "llada"), "unknown policy 'mean_feild'; did you mean 'mean_field'?"),
        (("klass", "gpt2"), "no presets for model 'gpt2'; its name must tell the family: llada, dream"),
        (("klass", "destiny"), "no presets for model 'destiny'"),
        (("klass", "llada", "gsmk8"), "unknown task of a preset 'gsmk8'; did you mean 'gsm8k'?"),
    ],
)
@pytest.mark.parametrize("function", [policies.preset, policies.preset_settings])
def test_what_is_typed_wrong_is_named(function, call, message):
    with pytest.raises(UnmaskError) as error:
        function(*call)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_published_settings_outside_the_common_scripts_are_there_too():
    assert policies.preset("dapd", "llada", "humaneval").tau_max == 0.15
    wino = [policies.preset("wino", "llada", task) for task in ("gsm8k", "math", "mbpp")]
    assert [policy.draft_threshold for policy in wino] == [0.6, 0.7, 0.8]
    assert policies.preset("wino", "llada", "HumanEval").draft_threshold == 0.7


def test_a_small_dream_checkpoint_is_still_dream():
    assert policies.preset("entropy", "some/tiny-dream").schedule == "dream"
