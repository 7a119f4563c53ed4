"""Our scheduler in the real LLaDA2Pipeline, with transformers' Qwen3 and the weights of a small SDAR checkpoint."""

from __future__ import annotations

import inspect
import json

import pytest
import torch
from diffusers import BlockRefinementScheduler, LLaDA2Pipeline
from safetensors.torch import load_file

import unmask
from unmask import policies
from unmask.errors import UnmaskError
from unmask.integrations.diffusers import BlockCausal, UnmaskScheduler

pytestmark = pytest.mark.usefixtures("users_policies")

PROMPTS = [[30, 41, 59, 26, 53, 58, 97], [93, 23, 84, 62], [64, 33, 83, 27, 95, 2, 88, 41, 97, 16], [7]]


@pytest.fixture(scope="module")
def folder(make_sdar):
    return make_sdar(seed=3)


@pytest.fixture(scope="module")
def llm(folder):
    return unmask.load(str(folder), device="cpu")


@pytest.fixture(scope="module")
def qwen3(folder):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    values = json.loads((folder / "config.json").read_text())
    config = Qwen3Config(**{key: value for key, value in values.items() if key not in ("model_type", "architectures")})
    model = Qwen3ForCausalLM(config).eval()
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model


def pipeline(qwen3, scheduler):
    pipe = LLaDA2Pipeline(model=BlockCausal(qwen3, scheduler.config["block_length"]), scheduler=scheduler)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def decoded(qwen3, llm, prompts, scheduler, *, blocks, **options):
    """What the pipeline generates, without ends of text: our own engine decodes whole canvases, too."""
    size = scheduler.config["block_length"]
    options = {"num_inference_steps": 4 * size, "gen_length": blocks * size - len(prompts[0]) % size} | options
    ids, mask_id = torch.tensor(prompts), llm.model.spec.mask_id
    pipe = pipeline(qwen3, scheduler)
    found = pipe(input_ids=ids, mask_token_id=mask_id, eos_early_stop=False, output_type="seq", **options)
    return found.sequences.tolist()


RULES = [
    ("mean_field", {}),
    ("mean_field", {"threshold": 0.6, "iterations": 1}),
    ("eb", {"gamma": 2.0}),
    ("threshold", {"threshold": 0.05}),
    ("cumulative", {}),
    ("entropy", {"schedule": "dream"}),
    ("steady", {}),
    ("hesitant", {}),
]


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize(("policy", "parameters"), RULES)
def test_the_pipeline_gives_the_tokens_of_our_engine(qwen3, llm, policy, parameters, size):
    scheduler = UnmaskScheduler(policy=policy, parameters=parameters, block_length=size)
    for prompt in PROMPTS:
        [tokens] = decoded(qwen3, llm, [prompt], scheduler, blocks=3, num_inference_steps=2 * size)
        own = llm.generate(prompt, policy=policies.get(policy, **parameters), max_tokens=len(tokens), block_size=size)
        assert tokens == own.canvas_ids


def test_rows_of_a_batch_are_decoded_as_if_alone(qwen3, llm):
    prompts = [prompt[:4] for prompt in PROMPTS[:3]]
    scheduler = UnmaskScheduler(policy="steady", block_length=4)
    together = decoded(qwen3, llm, prompts, scheduler, blocks=3)
    assert together == [decoded(qwen3, llm, [prompt], scheduler, blocks=3)[0] for prompt in prompts]
    assert len({tuple(row) for row in together}) == 3


@pytest.mark.parametrize("policy", ["threshold", "random"])
def test_temperature_draws_the_tokens_that_our_engine_draws_from_the_same_seed(qwen3, llm, policy):
    options = {"temperature": 0.8, "top_p": 0.9, "top_k": 20}
    for seed in (1, 2):
        [tokens] = decoded(
            qwen3,
            llm,
            PROMPTS[:1],
            UnmaskScheduler(policy=policy, block_length=4),
            blocks=3,
            generator=torch.Generator().manual_seed(seed),
            **options,
        )
        own = llm.generate(PROMPTS[0], policy=policies.get(policy), max_tokens=len(tokens), seed=seed, **options)
        assert tokens == own.canvas_ids


def test_the_greedy_method_takes_the_likeliest_tokens_at_any_temperature(qwen3, llm):
    scheduler = UnmaskScheduler(block_length=4)
    cold = decoded(qwen3, llm, PROMPTS[:1], scheduler, blocks=2)
    assert cold == decoded(qwen3, llm, PROMPTS[:1], scheduler, blocks=2, temperature=2.0, sampling_method="greedy")


def test_fewer_passes_than_a_block_has_positions_are_refused(qwen3, llm):
    scheduler = UnmaskScheduler(block_length=8)
    for few in ({"num_inference_steps": 7}, {"gen_length": 5}):
        with pytest.raises(UnmaskError, match=r"a block of 8 may take 8 passes, and it gets [75]: .*gen_length"):
            decoded(qwen3, llm, PROMPTS[:1], scheduler, blocks=2, **few)
    with pytest.raises(UnmaskError, match="may take 64 passes, and it gets 32"):
        UnmaskScheduler(block_length=64)


@pytest.mark.parametrize("passes", [8, 11])
def test_a_policy_that_only_waits_still_fills_its_block_in_the_passes_there_are(qwen3, llm, passes):
    scheduler, calls = UnmaskScheduler(policy="idle", block_length=8), []
    tokens = decoded(
        qwen3,
        llm,
        PROMPTS[1:2],
        scheduler,
        blocks=1,
        gen_length=12,
        num_inference_steps=passes,
        editing_threshold=None,
        callback_on_step_end=lambda pipe, step, timestep, given: calls.append(timestep) or {},
    )
    assert llm.model.spec.mask_id not in tokens[0]
    assert calls == [*range(passes), *range(passes)]


def test_the_scheduler_is_saved_and_loaded_with_its_policy(tmp_path):
    made = UnmaskScheduler(policy="threshold", parameters={"threshold": 0.7}, block_length=8, num_inference_steps=16)
    made.save_pretrained(tmp_path)
    for loaded in (UnmaskScheduler.from_pretrained(tmp_path), UnmaskScheduler.from_config(made.config)):
        for key in ("policy", "parameters", "block_length", "num_inference_steps"):
            assert loaded.config[key] == made.config[key]
    saved = json.loads((tmp_path / "scheduler_config.json").read_text())
    assert {key for key in saved if not key.startswith("_")} == {
        "policy",
        "parameters",
        "block_length",
        "num_inference_steps",
    }


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"policy": "meanfield"}, "unknown policy 'meanfield'; did you mean 'mean_field'?"),
        ({"parameters": {"treshold": 0.5}}, "unknown parameter of mean_field 'treshold'"),
        ({"policy": "dawn"}, "dawn needs attention, sequence_logits, which diffusers' pipeline does not give"),
        ({"policy": "wino"}, "wino needs shadow, which diffusers' pipeline does not give"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(options, complaint):
    with pytest.raises(UnmaskError, match=complaint):
        UnmaskScheduler(**options)


def one_step(scheduler, sample, mask_id=9, **options):
    logits = torch.randn(*sample.shape, 10, generator=torch.Generator().manual_seed(0))
    return scheduler.step(logits, 0, sample, mask_token_id=mask_id, **options)


def test_a_step_answers_as_the_base_class_does():
    scheduler, sample = UnmaskScheduler(block_length=4), torch.tensor([[9, 3, 9, 9], [1, 2, 3, 4]])
    before, prompt = sample.clone(), torch.tensor([True, False, False, False])
    answer = one_step(scheduler, sample, prompt_mask=prompt)
    assert torch.equal(sample, before)
    assert answer.transfer_index[0].any()
    assert not (answer.transfer_index & (sample != 9)).any()
    assert torch.equal(answer.prev_sample[1], sample[1])
    assert answer.prev_sample[0, 0] == 9  # of the prompt
    committed = answer.transfer_index[0]
    assert torch.equal(answer.prev_sample[0][committed], answer.sampled_tokens[0][committed])
    assert ((answer.sampled_probs > 0) & (answer.sampled_probs <= 1)).all()
    assert not answer.editing_transfer_index.any()
    as_tuple = one_step(scheduler, sample, prompt_mask=prompt, return_dict=False)
    theirs = one_step(BlockRefinementScheduler(block_length=4), sample, return_dict=False)
    assert [part.shape for part in as_tuple] == [part.shape for part in theirs]
    assert torch.equal(as_tuple[0], answer.prev_sample)


def test_what_a_step_cannot_do_is_refused():
    scheduler, sample = UnmaskScheduler(block_length=4), torch.tensor([[9, 3, 9, 9]])
    with pytest.raises(UnmaskError, match="minimal_topk must be 1, got 2: the policy decides"):
        one_step(scheduler, sample, minimal_topk=2)
    with pytest.raises(UnmaskError, match="mask_token_id is missing"):
        one_step(scheduler, sample, mask_id=None)


def test_the_interface_of_the_host_is_the_one_that_the_adapter_was_written_for():
    for name in ("step", "set_timesteps"):
        ours, theirs = (
            [
                (item.name, item.kind, item.default)
                for item in inspect.signature(getattr(kind, name)).parameters.values()
            ]
            for kind in (UnmaskScheduler, BlockRefinementScheduler)
        )
        assert ours == theirs, name
    answer = one_step(BlockRefinementScheduler(block_length=4), torch.tensor([[9, 3, 9, 9]]))
    assert list(answer) == [
        "prev_sample",
        "transfer_index",
        "editing_transfer_index",
        "sampled_tokens",
        "sampled_probs",
        "pred_logits",
    ]
    steps = inspect.getsource(LLaDA2Pipeline.__call__)
    assert "self.scheduler.set_timesteps(num_inference_steps, device=device, block_length=block_length)" in steps
