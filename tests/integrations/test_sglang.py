"""Our algorithms inside SGLang's own loops, from its released wheel (sglang_host.py)."""

from __future__ import annotations

import ast
import inspect
import logging
import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from sglang_host import WHEEL, Batch, Request, Runner, imported, serve

import unmask
from unmask import policies
from unmask.errors import UnmaskError

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ("json_schema", "regex", "ebnf", "structural_tag", "logit_bias")
PROMPTS = [[30, 41, 59, 26, 53, 58, 97], [93, 23, 84, 62], [64, 33, 83, 27, 95, 2, 88, 41, 97, 16], [7]]


@pytest.fixture(scope="module")
def host(users_policies):
    with imported() as host:
        host.ours.register()
        yield host


@pytest.fixture(scope="module")
def llm(make_sdar):
    return unmask.load(str(make_sdar(seed=3)), device="cpu")


def algorithm(host, llm, name, *, fdfo, block_size=4, **fields):
    config = host.config.DllmConfig(
        algorithm=name,
        algorithm_config=fields,
        block_size=block_size,
        mask_id=llm.model.spec.mask_id,
        max_running_requests=8,
        first_done_first_out_mode=fdfo,
    )
    return host.algorithm.get_algorithm(config)


def whole_blocks(prompt, size, blocks):
    """How many tokens fill this many blocks, the prompt's tail included."""
    return blocks * size - len(prompt) % size


RULES = [
    ("UnmaskMeanField", "mean_field", {}),
    ("UnmaskMeanField", "mean_field", {"threshold": 0.6, "iterations": 1}),
    ("UnmaskEb", "eb", {"gamma": 2.0}),
    ("UnmaskThreshold", "threshold", {"threshold": 0.05}),
    ("UnmaskCumulative", "cumulative", {}),
    ("UnmaskFixed", "fixed", {"schedule": "dream"}),  # remembers how many masks the block began with
    ("UnmaskSteady", "steady", {}),
    ("UnmaskHesitant", "hesitant", {}),
    ("UnmaskThirds", "thirds", {}),  # asks where in the text its block begins
]


@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("fdfo", [True, False], ids=["first done first out", "synchronous"])
@pytest.mark.parametrize(("name", "policy", "fields"), RULES)
def test_both_loops_of_the_host_decode_as_our_engine_does(host, llm, name, policy, fields, fdfo, block_size):
    policy = policies.get(policy, **fields)
    blocks = 3 if block_size == 4 else 1
    requests = [Request(prompt, whole_blocks(prompt, block_size, blocks)) for prompt in PROMPTS]
    serve(algorithm(host, llm, name, fdfo=fdfo, block_size=block_size, **fields), llm.model, requests)
    for request in requests:
        own = llm.generate(request.prompt, policy=policy, max_tokens=request.max_tokens, block_size=block_size)
        assert request.output == own.canvas_ids
        # One pass more over every full block stores its keys and values; in the other loop rows wait for each other.
        assert not fdfo or request.forwards == own.usage.forward_passes + blocks


@pytest.mark.parametrize("name", ["UnmaskMeanField", "UnmaskSteady"])
def test_requests_that_arrive_late_or_leave_early_change_no_other_request(host, llm, name):
    made = algorithm(host, llm, name, fdfo=True)
    alone = []
    for prompt in PROMPTS:
        alone.append(Request(prompt, whole_blocks(prompt, 4, len(prompt))))
        serve(made, llm.model, alone[-1:])
    crowd = [Request(request.prompt, request.max_tokens) for request in alone]
    serve(made, llm.model, crowd[:2], late={2: crowd[2], 5: crowd[3]})
    assert [request.output for request in crowd[:2]] == [request.output for request in alone[:2]]
    assert [request.output for request in crowd[2:]] == [request.output for request in alone[2:]]


def first_block(llm, prompts, *, size=4):
    return Batch.of([Request(prompt, 4) for prompt in prompts], size, llm.model.spec.mask_id)


@torch.inference_mode()
def test_a_row_is_done_one_pass_after_its_last_commit_and_is_then_left_alone(host, llm):
    made = algorithm(host, llm, "UnmaskThreshold", fdfo=True, threshold=1.0)  # one position a pass
    batch, runner = first_block(llm, [[5, 6, 7], [8]]), Runner(llm.model, 4)
    states, storage, history = None, batch.input_ids.data_ptr(), []
    for _ in range(4):
        _, tokens, accepted, states, _ = made.run(runner, batch, states)
        history.append((tokens, accepted, [state is None for state in states]))
        assert batch.input_ids.data_ptr() == storage
    assert [accepted for _, accepted, _ in history] == [[0, 0], [4, 0], [4, 0], [4, 4]]
    assert [dropped for _, _, dropped in history] == [[False, False], [True, False], [True, False], [True, True]]
    assert len({tuple(tokens[0]) for tokens, _, _ in history}) == 1
    assert history[-1][0][0][:3] == [5, 6, 7]
    assert history[-1][0][1][0] == 8
    assert history[-2][0] == history[-1][0]


def test_the_state_of_a_policy_belongs_to_the_request_not_to_the_algorithm(host, llm):
    made = algorithm(host, llm, "UnmaskSteady", fdfo=True)
    before = dict(vars(made))
    batch, runner = first_block(llm, [[5], [6]]), Runner(llm.model, 4)
    states = made.run(runner, batch, None)[3]
    assert [state.of_policy.tokens.shape for state in states] == [(1, 4), (1, 4)]
    # The second request has just joined: it waits in its first pass, while the first one goes on.
    masks = (batch.input_ids.view(2, 4) == made.mask_id).sum(-1)
    _, _, _, states, _ = made.run(runner, batch, [states[0], None])
    assert [state.step for state in states] == [2, 1]
    left = (batch.input_ids.view(2, 4) == made.mask_id).sum(-1)
    assert left[0] < masks[0]
    assert left[1] == masks[1]
    assert vars(made) == before


@pytest.mark.parametrize("fdfo", [True, False])
@pytest.mark.parametrize("name", ["UnmaskMeanField", "UnmaskHesitant"])
def test_a_mask_token_in_the_prompt_stays_and_the_rest_is_filled(host, llm, name, fdfo):
    mask_id = llm.model.spec.mask_id
    literal, plain = Request([9, mask_id, 11, 12, mask_id, 14], 6), Request([3, 4, 5], 5)
    serve(algorithm(host, llm, name, fdfo=fdfo), llm.model, [literal, plain])
    assert mask_id not in literal.output + plain.output
    own = llm.generate([3, 4, 5], policy=policies.get("mean_field" if "Mean" in name else "hesitant"), max_tokens=5)
    assert plain.output == own.canvas_ids


def test_a_prompt_without_a_free_position_is_only_stored(host, llm):
    made = algorithm(host, llm, "UnmaskMeanField", fdfo=False)
    runner = Runner(llm.model, 4)
    assert made.run(runner, first_block(llm, [[5, 6, 7, 8], [1, 2, 3, 4]]))[1] == []
    assert len(runner.seen) == 1


@pytest.mark.parametrize("fdfo", [True, False])
def test_a_policy_that_only_waits_cannot_hold_a_block_for_ever(host, llm, fdfo):
    request = Request([5], 3)
    serve(algorithm(host, llm, "UnmaskIdle", fdfo=fdfo), llm.model, [request])
    assert request.forwards == 4 * 4 + 1
    assert llm.model.spec.mask_id not in request.output


def server_args(architecture, name, path=None, **more):
    config = SimpleNamespace(hf_config=SimpleNamespace(architectures=[architecture], **more), vocab_size=200_000)
    return SimpleNamespace(
        dllm_algorithm=name,
        dllm_algorithm_config=None if path is None else str(path),
        dllm_fdfo=True,
        max_running_requests=8,
        model_path="a checkpoint",
        revision=None,
        model_config=config,
    )


def written(folder, **keys):
    path = folder / "algorithm.yaml"
    path.write_text(yaml.safe_dump(keys))
    return path


@pytest.mark.parametrize(
    ("architecture", "block_size", "mask_id"),
    [("LLaDA2MoeModelLM", 32, 156895), ("SDARForCausalLM", 4, 151669), ("SDARMoeForCausalLM", 4, 151669)],
)
def test_keys_of_the_yaml_file_are_the_fields_of_the_policy(host, tmp_path, architecture, block_size, mask_id):
    args = server_args(architecture, "UnmaskMeanField", written(tmp_path, threshold=0.7, iterations=3))
    made = host.base.DllmAlgorithm.from_server_args(args)
    assert made.policy == policies.get("mean_field", threshold=0.7, iterations=3)
    assert (made.block_size, made.mask_id, made.fdfo) == (block_size, mask_id, True)
    args = server_args(architecture, "UnmaskEb", written(tmp_path, block_size=8))
    made = host.base.DllmAlgorithm.from_server_args(args)
    assert made.policy == policies.get("eb")
    assert made.block_size == 8
    logits = torch.randn(2 * 8, mask_id + 10)
    batch = Batch.of([Request([1, 2], 6), Request([3], 7)], 8, mask_id)
    assert made.step(batch, logits, made.init_step_state(batch)) == [False, False]
    assert (batch.input_ids == mask_id).sum() < 13


@pytest.mark.parametrize(
    ("name", "keys", "complaint"),
    [
        ("UnmaskMeanField", {"treshold": 0.7}, "unknown parameter of mean_field 'treshold'; did you mean 'threshold'?"),
        ("UnmaskThreshold", {"threshold": 3}, r"threshold must be a number in \(0, 1\], got 3"),
        ("UnmaskDawn", {}, "the policy dawn needs attention, sequence_logits, which SGLang does not give"),
        ("UnmaskKlass", {}, "the policy klass needs sequence_logits, which SGLang does not give"),
        ("UnmaskWino", {}, "the policy wino needs shadow, which SGLang does not give"),
        ("UnmaskRandom", {}, "the policy random needs uniform, which SGLang does not give"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line_at_launch(host, tmp_path, name, keys, complaint):
    launch = host.algorithm.get_algorithm_cls(name).configure_server_args
    with pytest.raises(UnmaskError, match=complaint) as error:
        launch(server_args("SDARForCausalLM", name, written(tmp_path, **keys)))
    assert "\n" not in str(error.value)


def test_the_example_of_the_page_is_one_that_the_host_takes(host, tmp_path):
    page = (ROOT / "docs" / "integrations.md").read_text()
    keys = yaml.safe_load(re.search(r"```yaml\n(.*?)```", page, re.S)[1])
    name = re.search(r"--dllm-algorithm (\w+)", page)[1]
    made = host.base.DllmAlgorithm.from_server_args(server_args("LLaDA2MoeModelLM", name, written(tmp_path, **keys)))
    assert made.policy == policies.get("mean_field", **keys)


def test_the_host_refuses_other_architectures_by_name(host):
    with pytest.raises(ValueError, match="requires the Gemma4Renoise"):
        host.config.DllmConfig.from_server_args(server_args("DiffusionGemmaForBlockDiffusion", "UnmaskEb"))


def test_requests_whose_constraints_would_be_ignored_are_refused(host):
    free = dict.fromkeys(CONSTRAINTS)
    config = host.config.DllmConfig.from_server_args(server_args("SDARForCausalLM", "UnmaskEb"))
    assert config.validate_request(SimpleNamespace(sampling_params=SimpleNamespace(**free))) is None
    bound = SimpleNamespace(sampling_params=SimpleNamespace(**free | {"regex": "a+", "logit_bias": {"3": 1.0}}))
    assert config.validate_request(bound) == "UnmaskEb cannot heed regex, logit_bias; leave it out"


def test_the_plugin_loader_of_the_host_finds_and_runs_our_entry_point(tmp_path, monkeypatch, caplog):
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["sglang.srt.plugins"]
    info = tmp_path / "unmask-0.1.0.dist-info"  # as an installation of this very pyproject.toml writes it
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: unmask\nVersion: 0.1.0\n")
    lines = [f"{name} = {value}" for name, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[sglang.srt.plugins]", *lines, ""]))
    monkeypatch.syspath_prepend(tmp_path)
    with imported() as host, caplog.at_level(logging.INFO):
        monkeypatch.setenv("SGLANG_PLUGINS", "unmask")
        host.plugins.load_plugins()
        assert "Executed general plugin: unmask" in caplog.messages
        assert any(line.startswith("unmask: registered ") and "UnmaskMeanField" in line for line in caplog.messages)
        table = dict(host.algorithm.algo_name_to_cls)
        assert {"LowConfidence", "UnmaskMeanField", "UnmaskEb", "UnmaskThreshold"} <= set(table)
        host.ours.register()
        assert host.algorithm.algo_name_to_cls == table


SIGNATURES = {
    "__init__": "self, config",
    "from_server_args": "server_args",
    "init_step_state": "self, forward_batch",
    "configure_server_args": "server_args",
    "validate_request": "req",
    "prepare_inputs": "self, model_runner, forward_batch, states",
    "max_steps": "self, block_size",
    "step": "self, forward_batch, full_logits, states",
    "run": "self, model_runner, forward_batch, algo_states",
}


def class_fields(path, name):
    """The names that a class of the wheel annotates; its module cannot be imported here."""
    tree = ast.parse((WHEEL / "sglang" / path).read_text())
    found = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
    return {node.target.id for node in found.body if isinstance(node, ast.AnnAssign)}


def test_the_interface_of_the_host_is_the_one_that_the_adapter_was_written_for(host):
    versions = {found.metadata["Name"]: found.version for found in distributions(path=[str(WHEEL)])}
    assert versions == {"sglang": "0.5.23"}
    base = host.base.DllmAlgorithm
    found = {name: ", ".join(inspect.signature(getattr(base, name)).parameters) for name in SIGNATURES}
    assert found == SIGNATURES
    for name in set(SIGNATURES) & set(vars(host.ours.UnmaskAlgorithm)):
        ours, theirs = inspect.signature(getattr(host.ours.UnmaskAlgorithm, name)), SIGNATURES[name]
        assert ", ".join(ours.parameters) == theirs, name
    assert {"input_ids", "positions", "batch_size", "dllm_prompt_mask"} <= class_fields(
        "srt/model_executor/forward_batch_info.py", "ForwardBatch"
    )
    assert set(CONSTRAINTS) <= class_fields("srt/sampling/sampling_params.py", "SamplingParams")
    assert {"dllm_algorithm", "dllm_algorithm_config", "dllm_fdfo"} <= class_fields(
        "srt/arg_groups/fields/exec_.py", "ExecDllm"
    )
