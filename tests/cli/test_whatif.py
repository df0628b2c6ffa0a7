"""`python -m rlmods.whatif`: an iteration of a run under other parts."""

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from rlmods.advantage import RLOO, GroupNorm
from rlmods.algo import PolicyGradient, policy_gradient
from rlmods.cli import job, whatif as command
from rlmods.cli.command import configuration
from rlmods.cli.whatif import _action, _reason, whatif, with_credit
from rlmods.critic.loss import clip_range
from rlmods.errors import UserError
from rlmods.lab.show import show
from rlmods.ratio import LogLikelihood, Unclipped
from rlmods.rollout import Local
from rlmods.run.directory import RUN_DIR_VARIABLE, release
from rlmods.run.files import dumps, read_rows
from rlmods.training import train_step
from rlmods.training.extensions import greedy_baseline
from rlmods.training.metrics import values_and_mask
from rlmods.training.train_step import TrainStep
from rlmods.types import Experience
from tests.run.test_directory import files
from tests.training.test_buffer import rows

SAMPLES = 4
OVERRIDES = [
    "algo=dapo",
    "sampling=fixed",
    "data.num_train=16",
    "data.num_val=2",
    "batch.prompts=4",
    f"batch.samples={SAMPLES}",
    "batch.minibatches=2",
    "rollout.max_tokens=8",
    "optimizer.lr=0.0003",
    "ratio.low=0.01",
    "ratio.high=0.01",
    "trainer.accelerator=cpu",
    "trainer.max_iterations=2",
    "callbacks.checkpoint.every=1",
    "callbacks.samples.print_every=0",
    "~logger.tensorboard",
    "~logger.csv",
]


BASE = [text for text in OVERRIDES if not text.startswith(("algo=", "ratio."))]
PPO = ["algo=ppo", *BASE, "critic=shared", "kl=none"]


def train(overrides: list[str], path: Path) -> None:
    """Train a run of one iteration."""
    overrides = [*overrides, "trainer.max_iterations=1", f"run_dir={path}"]
    choices = {"critic": "shared"} if "critic=shared" in overrides else {}
    job.train(configuration(overrides), choices, overrides)
    release(path)


@dataclass
class Recorder:
    """Keeps the gradient of the policy whenever it is clipped."""

    clip: Callable[..., torch.Tensor]
    gradients: list[torch.Tensor]

    def __call__(self, parameters: Iterator[torch.nn.Parameter], max_norm: float) -> torch.Tensor:
        parameters = list(parameters)
        self.gradients.append(torch.cat([p.grad.flatten().double() for p in parameters]))
        return self.clip(parameters, max_norm)


@pytest.fixture(scope="module")
def recorder() -> Iterator[Recorder]:
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(train_step.clip_grad_norm_, [])
        patch.setattr(train_step, "clip_grad_norm_", recorder)
        patch.setenv(RUN_DIR_VARIABLE, "")
        yield recorder


@pytest.fixture(scope="module")
def run(recorder: Recorder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two iterations with two optimizer steps each."""
    path = tmp_path_factory.mktemp("whatif") / "a"
    overrides = [*OVERRIDES, f"run_dir={path}"]
    job.train(configuration(overrides), {}, overrides)
    release(path)
    return path


@pytest.fixture(scope="module")
def gradients(recorder: Recorder, run: Path) -> list[torch.Tensor]:
    """The gradient of each optimizer step of the run."""
    return recorder.gradients[:4]


@pytest.fixture(scope="module")
def compared(run: Path, gradients: list[torch.Tensor]) -> dict[str, Any]:
    typed = [
        "ratio.low=0.01,0.5",
        "ratio.high=0.01,5.0",
        "advantage=group_norm,group_mean,branch_soft,gae",
    ]
    return whatif(run, 2, typed)


def row(result: dict[str, Any], low: float, high: float, advantage: str) -> dict[str, Any]:
    overrides = [f"ratio.low={low}", f"ratio.high={high}", f"advantage={advantage}"]
    [found] = [row for row in result["rows"] if row["overrides"] == overrides]
    return found


@pytest.mark.slow
class TestComparison:
    @pytest.mark.parametrize("step", [1, 2])
    def test_the_gradient_of_the_run_is_reproduced(
        self, step: int, run: Path, gradients: list[torch.Tensor], recorder: Recorder
    ) -> None:
        recorder.gradients.clear()
        result = whatif(run, 2, [], step)
        before = files(run)
        own, expected = recorder.gradients[step - 1], gradients[1 + step]
        assert expected.norm() > 1e-3
        assert float((own - expected).norm() / expected.norm()) < 1e-6
        assert result["rows"][0]["grad_norm"] == pytest.approx(float(expected.norm()), rel=1e-6)
        assert result["repeated_from"] == 1
        assert result["grad_norm"]["repeated"] == result["grad_norm"]["run"]
        assert files(run) == before

    def test_parts_of_the_run_change_nothing(self, compared: dict[str, Any]) -> None:
        same = row(compared, 0.01, 0.01, "group_norm")
        assert same | {"overrides": []} == compared["rows"][0]
        assert (same["distance"], same["sign_changes"]) == (0.0, 0.0)

    def test_other_parts_change_the_gradient(self, compared: dict[str, Any]) -> None:
        assert row(compared, 0.5, 5.0, "group_norm")["distance"] > 1e-3
        assert row(compared, 0.01, 0.01, "group_mean")["distance"] > 1e-3

    def test_what_would_have_been_clipped(self, compared: dict[str, Any]) -> None:
        narrow = row(compared, 0.01, 0.01, "group_norm")
        wide = row(compared, 0.5, 5.0, "group_norm")
        assert narrow["clipped_low"] + narrow["clipped_high"] > 0
        assert wide["clipped_low"] + wide["clipped_high"] == 0

    def test_values_are_clipped_in_units_of_the_returns_of_the_estimator(
        self, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ranges: list[float | None] = []

        def spied(returns: Any, mask: Any, clip: float | None) -> float | None:
            ranges.append(clip_range(returns, mask, clip))
            return ranges[-1]

        monkeypatch.setattr(policy_gradient, "clip_range", spied)
        monkeypatch.setattr(command, "clip_range", spied)
        typed = ["advantage=n_step", "advantage.n=1"]
        train(PPO, tmp_path / "a")
        own = ranges[-1]
        whatif(tmp_path / "a", 1, typed)
        predicted = ranges[-1]
        train([*PPO, *typed], tmp_path / "b")
        assert own != ranges[-1] == predicted
        [_, refused] = whatif(tmp_path / "a", 1, ["advantage=rloo"])["rows"]
        assert refused["reason"].startswith("critic=shared would be trained")

    def test_estimators_see_other_rows_than_remax_trains_on(
        self, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def without_the_first(values: Any) -> Any:
            return values_and_mask([None, *values[1:]])

        train(["algo=remax", *BASE, "kl=none"], tmp_path / "a")
        monkeypatch.setattr(greedy_baseline, "values_and_mask", without_the_first)
        [own, other] = whatif(tmp_path / "a", 1, ["advantage=rloo"])["rows"]
        assert own["reason"] is None
        assert "greedy response is unscored" in other["reason"]

    def test_what_the_run_did_not_keep_is_refused(self) -> None:
        rollout = Local(temperature=1.0)
        parts = {"rollout": rollout, "ratio": Unclipped(), "advantage": GroupNorm()}
        spec: Any = SimpleNamespace(parts=parts, settings=SimpleNamespace(replay_fraction=0.5))
        assert "replayed rows" in str(_reason({"advantage": RLOO()}, spec))
        assert _reason({"ratio": LogLikelihood()}, spec) is None
        parts["rollout"] = Local(temperature=0.7)
        assert "another temperature" in str(_reason({"ratio": LogLikelihood()}, spec))

    def test_refused_combinations_have_a_reason(self, compared: dict[str, Any]) -> None:
        assert "needs a critic" in row(compared, 0.5, 5.0, "gae")["reason"]
        assert sum(x["reason"] is None for x in compared["rows"]) == 13


def test_parts_on_the_command_line_make_a_table_and_a_file(run: Path, tmp_path: Path) -> None:
    text = _action(
        [
            str(run),
            "1",
            "aggregation=sequence_mean",
            "ratio=none,sequence",
            "step=2",
            "--json",
            str(tmp_path / "o.json"),
        ]
    )
    assert "repeated from iteration 0" in text
    saved = json.loads((tmp_path / "o.json").read_text())
    assert [x["overrides"] for x in saved["rows"]] == [
        [],
        *(["aggregation=sequence_mean", f"ratio={x}"] for x in ("none", "sequence")),
    ]
    assert "this is not" not in text


def test_a_run_of_other_code_is_named(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for name, content in files(run).items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(content)
    with (copy / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"iteration": 1, "train/grad_norm": 1.0}\n')
    text = _action([str(copy), "1"])
    assert "this is not the run's iteration" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "origin", ["fork={run}@1", "resume={run}/checkpoints/iteration_000001.ckpt"]
)
def test_a_run_that_began_from_a_checkpoint_is_repeated_from_it(
    origin: str, run: Path, tmp_path: Path
) -> None:
    later = tmp_path / "later"
    overrides = [*OVERRIDES, origin.format(run=run)]
    fork_run(overrides, later, ["ratio.low=0.02"] if origin.startswith("fork") else [])
    result = whatif(later, 2, [])
    assert result["repeated_from"] == 1
    assert result["grad_norm"]["repeated"] == result["grad_norm"]["run"]
    with pytest.raises(UserError, match=r"^iteration 1: the run began from .*iteration_000001"):
        whatif(later, 1, [])


def test_what_reaches_beyond_the_process_is_typed(run: Path, tmp_path: Path) -> None:
    config = OmegaConf.load(run / "config.yaml")
    OmegaConf.update(config, "trainer.default_root_dir", str(tmp_path / "there"), force_add=True)
    OmegaConf.save(config, tmp_path / "config.yaml")
    with pytest.raises(UserError, match=r"default_root_dir.* type --trust"):
        whatif(tmp_path, 1, ["ratio=sequence"])
    result = whatif(tmp_path, 1, ["ratio=sequence", "--trust"])
    assert [x["overrides"] for x in result["rows"]] == [[], ["ratio=sequence"]]


def test_iterations_after_a_resume_have_the_settings_of_the_resumed_run(
    run: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(saved := (run / "config.yaml").read_text())
    (tmp_path / "config.resumed_000002.yaml").write_text(
        saved.replace("max_iterations: 2", "max_iterations: 3")
    )
    with pytest.raises(UserError, match="the run has iterations 1 to 3"):
        whatif(tmp_path, 4, [])
    with pytest.raises(UserError, match="ratio=nothing"):
        whatif(tmp_path, 3, ["ratio=nothing"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["2", "kl=penalty"],
            r"kl cannot be compared .* type python train\.py \.\.\. fork=RUN@ITERATION kl=penalty",
        ),
        (["2", "ratoi=symmetric"], r"^ratoi=symmetric: no such group; did you mean ratio\?$"),
        (["2", "ratio=nothing"], "ratio"),
        (["3"], "the run has iterations 1 to 2"),
        (["2", "step=3"], "step=3: the iteration makes 2 optimizer steps"),
        (["2", "step=last"], "step=last: type step=N"),
    ],
)
def test_mistakes(arguments: list[str], message: str, run: Path) -> None:
    with pytest.raises(UserError, match=message):
        _action([str(run), *arguments])


GAME = [
    "experiment=tunnel/turns",
    "algo=grpo",
    "data.num_train=4",
    "data.num_val=2",
    "batch.prompts=2",
    "batch.samples=4",
    "batch.minibatches=1",
    "trainer.accelerator=cpu",
    "trainer.max_iterations=1",
    "validation.every=null",
    "callbacks.samples.print_every=0",
    "~logger.tensorboard",
    "~logger.csv",
    "advantage=sum",
    "+advantage@advantage.terms.outcome.estimator=group_norm",
    "+advantage@advantage.terms.state.estimator=anchor_state",
    "+advantage.terms.outcome.weight=1.0",
]
OWN = ["tokens=entropy", "tokens.fraction=0.3", "+advantage.terms.state.weight=0.5"]
OTHER = ["tokens=entropy", "tokens.fraction=0.6", "+advantage.terms.state.weight=-2.0"]


class TestDrawing:
    """Turns, terms and selection, before and after, are those of the batches that two runs train
    on: one with the parts of the run, one with the other parts."""

    @pytest.fixture
    def trained(
        self, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> dict[str, Experience]:
        """The rows of the optimizer step by the folder of the run."""
        found: dict[str, Experience] = {}
        select_tokens = PolicyGradient.select_tokens

        def recorded(loop: Any, rows: Experience) -> Experience:
            found[path] = select_tokens(loop, rows)
            return found[path]

        with monkeypatch.context() as patch:
            patch.setattr(PolicyGradient, "select_tokens", recorded)
            for overrides in (OWN, OTHER):
                path = str(tmp_path / str(len(found)))
                job.train(configuration([*GAME, *overrides, f"run_dir={path}"]), {}, [])
                release(Path(path))
        return found

    def numbers(self, text: str, name: str) -> list[list[str]]:
        """The numbers of each line of credit."""
        lines = re.findall(rf"^\[{re.escape(name)} *(advantage .*)\]$", text, re.MULTILINE)
        return [re.findall(r"[-+]?[\d.]+", line.partition(":")[0]) for line in lines]

    def expected(self, rows: Experience, samples: Sequence[Any], weight: str) -> list[list[str]]:
        """The same from the batch, by turn."""
        assert rows.term_advantages is not None
        assert rows.trained is not None
        by_tokens: dict[tuple[int, ...], int] = {}
        for i, (ids, length) in enumerate(zip(rows.tokens, rows.lengths, strict=True)):
            by_tokens[tuple(ids[:length].tolist())] = i
        num_selected = 0
        found = []
        for sample in samples:
            tokens = tuple(sample["tokens"])
            [i] = {i for ids, i in by_tokens.items() if ids[-len(tokens) :] == tokens}
            first = int(rows.lengths[i]) - len(sample["tokens"])
            for turn in sample["turns"]:
                columns = range(first + turn["start"], first + turn["stop"])
                assert rows.mask[i, columns].all()
                [total] = set(rows.advantages[i, columns].tolist())
                [terms] = {tuple(x) for x in rows.term_advantages[i, columns].tolist()}
                outcome, state = (f"{x:+.3f}" for x in terms)
                num_trained = int(rows.trained[i, columns].sum())
                num_selected += num_trained
                count = [str(num_trained), str(len(columns))]
                found.append([f"{total:+.3f}", "1", outcome, weight, state, *count])
        assert num_selected > 0
        return found

    @pytest.mark.slow
    def test_show_and_whatif(self, trained: dict[str, Experience]) -> None:
        own, other = map(Path, trained)
        samples = read_rows(own / "samples/iteration_000001.jsonl")
        prompt = samples[0]["id"]
        of_prompt = [row for row in samples if row["id"] == prompt]
        assert max(len(row["turns"]) for row in of_prompt) > 1
        typed = [text.removeprefix("+") for text in OTHER]
        text = _action([str(own), "1", *typed, "--prompt", prompt])
        before = self.expected(trained[str(own)], of_prompt, "0.5")
        after = self.expected(trained[str(other)], of_prompt, "-2")
        assert before != after
        assert self.numbers(show(own, "1", prompt), "") == before
        assert self.numbers(text, "as in the run") == before
        assert self.numbers(text, " ".join(typed)) == after
        again = json.loads(dumps(whatif(own, 1, typed, prompt=prompt)["rows"]))
        saved = read_rows(other / "samples/iteration_000001.jsonl")
        assert again[0]["samples"] == of_prompt
        assert again[1]["samples"] == [row for row in saved if row["id"] == prompt]
        with pytest.raises(UserError, match=f"--prompt {prompt}x: did you mean {prompt}"):
            whatif(own, 1, [], prompt=f"{prompt}x")


FORKED_RUNS = {
    "grpo": ["algo=grpo", "algo.entropy_coefficient=0.01"],
    "dapo": ["algo=dapo", "sampling=dynamic", "batch.epochs=2", "algo.fallback=train"],
    "ppo shared": ["algo=ppo", "critic=shared", "batch.minibatches=2"],
    "ppo separate": ["algo=ppo", "batch.epochs=2", "algo.normalize_reward=true"],
    "remax": ["algo=remax", "batch.minibatches=2"],
    "distill": [
        *("algo=distill", "+policy@teacher.policy=tiny", "policy.pretrained=false"),
        *("policy.hidden_size=64", "policy.num_layers=2"),
    ],
    "replay": ["algo=dapo", "sampling=fixed", "algo.replay_fraction=1.0", "kl=loss"],
    "rft": ["algo=rft"],
    "float16": ["algo=grpo", "trainer.precision=16-mixed"],
    "reinforce_pp": ["algo=reinforce_pp", "batch.epochs=2", "algo.overlong_filter=true"],
}
"""Algorithms with what the loop may add: a teacher, replayed rows, a greedy baseline, a clipped
value loss, equal responses left out, several epochs and minibatches, scaled losses."""
ESTIMATORS = (
    *("group_norm", "group_mean", "rloo", "reinforce_pp", "reinforce_pp_baseline"),
    *("max_rl", "length_weighted", "gae", "gae_whitened", "n_step"),
)
RATIOS = ("symmetric", "clip_higher", "sequence", "sequence_token", "soft", "cispo", "none", "dual")
AGGREGATIONS = ("token_mean", "sequence_mean", "fixed_length")
CORRECTIONS = ("truncated", "masked", "none")
TOKENS = ("all", "entropy", "clip_cov", "kl_cov", "off_policy")
FAST = ("grpo", "replay", "float16")
"""Runs of which two combinations are compared outside of the nightly tests."""


def drawn(run: str, number: int) -> list[str]:
    """Return parts to compare on a run: one of an estimator, with other parts, or without."""
    generator = random.Random(f"{run} {number}")
    choices = {
        "advantage": ESTIMATORS,
        "ratio": RATIOS,
        "aggregation": AGGREGATIONS,
        "correction": CORRECTIONS,
        "tokens": TOKENS,
    }
    # replayed rows keep the advantages that they have; those of distillation are the teacher's
    if run in ("replay", "distill"):
        del choices["advantage"]
    if run == "rft":
        del choices["correction"]
    groups = generator.sample(sorted(choices), generator.choice([1, 2, 3]))
    return [f"{group}={generator.choice(choices[group])}" for group in sorted(groups)]


@pytest.mark.parametrize("left_out", [0, 1])
def test_one_of_equal_responses_keeps_its_loss(left_out: int) -> None:
    equal = rows(0)
    mask = equal.mask.clone()
    mask[left_out] = False
    trained = replace(equal, mask=mask)
    estimated = replace(trained, advantages=equal.advantages + 2)
    found = with_credit(trained, estimated)
    assert torch.equal(found.mask, mask)
    assert found.advantages[1 - left_out].tolist() == [2, 2, 2]


def test_the_terms_of_a_sum_do_not_stay_with_another_estimator() -> None:
    own = rows(0)
    of_sum = replace(own, term_advantages=torch.ones(*own.tokens.shape, 2))
    assert with_credit(of_sum, own).term_advantages is None


def test_the_terms_of_another_sum_get_the_width_of_the_rows() -> None:
    own = replace(rows(0), lengths=torch.tensor([2, 2]))
    of_sum = replace(own, term_advantages=torch.ones(*own.tokens.shape, 2)).trim()
    found = with_credit(own, of_sum).term_advantages
    assert found is not None
    assert found[0].tolist() == [[1, 1], [1, 1], [0, 0]]


class TestForkedRuns:
    """The loss and the gradient are those of a run that is forked from the same checkpoint with
    these parts. A combination that is refused is also refused by the run."""

    @pytest.fixture
    def losses(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """The loss of each optimizer step."""
        found: list[float] = []
        accumulate = TrainStep.accumulate

        def recorded(self: TrainStep, *sources: Any, **options: Any) -> Any:
            parts = accumulate(self, *sources, **options)
            found.append(sum(float(part.value) for part in parts))
            return parts

        monkeypatch.setattr(TrainStep, "accumulate", recorded)
        return found

    def check(
        self,
        name: str,
        numbers: Sequence[int],
        recorder: Recorder,
        losses: list[float],
        folder: Path,
    ) -> None:
        overrides = [*OVERRIDES[2:], *FORKED_RUNS[name], "validation.every=null"]
        overrides = [text for text in overrides if not text.startswith("ratio.")]
        start = folder / "start"
        fork_run(overrides, start, [])
        num_equal = 0
        for number in numbers:
            typed = drawn(name, number)
            [_, predicted] = whatif(start, 2, typed, step=1)["rows"]
            recorder.gradients.clear()
            losses.clear()
            fork = folder / str(number)
            fork_overrides = [*overrides, f"fork={start}@1"]
            if predicted["reason"] is not None:
                with pytest.raises(UserError):
                    fork_run(fork_overrides, fork, typed)
                continue
            fork_run(fork_overrides, fork, typed)
            norm = float(recorder.gradients[0].norm())
            assert norm > 0, typed
            assert predicted["grad_norm"] == pytest.approx(norm, rel=1e-6), typed
            assert predicted["loss"] == pytest.approx(losses[0], rel=1e-6, abs=1e-9), typed
            num_equal += 1
        assert num_equal

    @pytest.mark.slow
    @pytest.mark.parametrize("name", FAST)
    def test_two_combinations(
        self, name: str, recorder: Recorder, losses: list[float], tmp_path: Path
    ) -> None:
        self.check(name, range(2), recorder, losses, tmp_path)

    @pytest.mark.nightly
    @pytest.mark.parametrize("name", FORKED_RUNS)
    def test_seven_combinations(
        self, name: str, recorder: Recorder, losses: list[float], tmp_path: Path
    ) -> None:
        self.check(name, range(7), recorder, losses, tmp_path)


def fork_run(overrides: list[str], path: Path, typed: list[str]) -> None:
    """Train to iteration 2 with these parts."""
    overrides = [*overrides, *typed, f"run_dir={path}"]
    choices = dict(text.split("=", 1) for text in overrides if "." not in text.split("=")[0])
    try:
        job.train(configuration(overrides), choices, overrides)
    finally:
        release(path)
