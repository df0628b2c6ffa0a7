"""Scores per token: independent of padding, batch and later tokens, unchanged by saving; loading
rejects everything else."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    CohereConfig,
    CohereForCausalLM,
)

from rlmods.errors import UserError
from rlmods.policy import Policy, ScalarModel
from rlmods.policy.linear import CPULinear
from rlmods.policy.scalar import POOLINGS, find, pool
from rlmods.policy.tiny import character_tokenizer
from rlmods.types import Prompt
from tests.support.models import MODELS, PDROP, SHAPE, seeded

LENGTHS = [3, 9, 6, 1]
PAD, EOS = 0, 1


def policy(kind: str = "llama", *, pad_is_eos: bool = False, **change: Any) -> Policy:
    tokenizer = character_tokenizer()
    if pad_is_eos:
        tokenizer.pad_token = tokenizer.eos_token
    return Policy(MODELS[kind](**change), tokenizer)


def scalar(kind: str = "llama", seed: int = 0, **options: Any) -> ScalarModel:
    """Return a scalar model with a random head."""
    model = ScalarModel.from_policy(policy(kind, **options))
    model.model.score.weight.data.normal_(generator=torch.Generator().manual_seed(seed))
    return model.requires_grad_(False)


def texts() -> list[Tensor]:
    """Return rows of `LENGTHS` that end with the end-of-text token."""
    generator = torch.Generator().manual_seed(3)
    return [
        torch.cat([torch.randint(2, 102, (n - 1,), generator=generator), torch.tensor([EOS])])
        for n in LENGTHS
    ]


def padded(rows: list[Tensor], width: int, side: str, pad: int) -> tuple[Tensor, Tensor]:
    tokens, attention = (
        torch.full((len(rows), width), pad),
        torch.zeros(len(rows), width, dtype=torch.bool),
    )
    for i, row in enumerate(rows):
        columns = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        tokens[i, columns], attention[i, columns] = row, True
    return tokens, attention


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("kind", MODELS)
class TestForward:
    def test_equals_the_score_of_transformers_at_the_last_token(self, kind: str) -> None:
        model = scalar(kind)
        for row in texts():
            for length in range(1, len(row) + 1):
                expected = model.model(input_ids=row[None, :length]).logits[0, 0]
                close(model(row[None])[0, length - 1], expected)

    @pytest.mark.parametrize("pad_is_eos", [False, True])
    @pytest.mark.parametrize("width", [9, 14])
    @pytest.mark.parametrize("side", ["left", "right"])
    def test_padding_on_either_side_changes_nothing(
        self, kind: str, side: str, width: int, pad_is_eos: bool
    ) -> None:
        model = scalar(kind, pad_is_eos=pad_is_eos)
        assert (model.pad_id == model.eos_id) == pad_is_eos
        tokens, attention = padded(texts(), width, side, model.pad_id)
        scores = model(tokens, attention)
        assert scores.isfinite().all()
        for i, row in enumerate(texts()):
            close(scores[i][attention[i]], model(row[None])[0])

    def test_right_padding_needs_no_attention_mask(self, kind: str) -> None:
        model = scalar(kind)
        tokens, attention = padded(texts(), 14, "right", model.pad_id)
        changed = torch.where(attention, tokens, 77)
        close(model(tokens)[attention], model(tokens, attention)[attention])
        assert torch.equal(model(changed)[attention], model(tokens)[attention])

    def test_scores_do_not_depend_on_later_tokens(self, kind: str) -> None:
        model, row = scalar(kind), texts()[1][None]
        changed = row.clone()
        changed[0, 4] += 1
        assert (model(changed) != model(row))[0].tolist() == [False] * 4 + [True] * 5

    def test_dropout_is_off_in_train_mode(self, kind: str) -> None:
        change = PDROP if kind == "gpt2" else {"attention_dropout": 0.5}
        model, row = scalar(kind, **change), texts()[1][None]
        assert torch.equal(model.train()(row), model.eval()(row))

    def test_the_head_ignores_autocast(self, kind: str) -> None:
        model, row, hidden = scalar(kind), texts()[1][None], list[Tensor]()
        model.model.base_model.register_forward_hook(
            lambda *call: hidden.append(call[-1].last_hidden_state)
        )
        exact = model(row)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = model(row)
        assert scores.dtype == torch.float32
        assert not torch.equal(hidden[0], hidden[1])
        assert torch.equal(scores[0], (hidden[1].float() @ model.model.score.weight.T)[0, :, 0])
        assert not torch.equal(scores, exact)

    def test_trunk_and_head_have_equal_gradients_with_and_without_checkpointing(
        self, kind: str
    ) -> None:
        def gradient(checkpointing: bool) -> Tensor:
            model = ScalarModel.from_policy(
                Policy(MODELS[kind](), character_tokenizer(), gradient_checkpointing=checkpointing)
            )
            model.model.score.weight.data.normal_(generator=torch.Generator().manual_seed(0))
            model.train(model.gradient_checkpointing)
            calls = list[str]()
            next(
                m for name, m in model.named_modules() if name.endswith("0.mlp")
            ).register_forward_pre_hook(lambda *_: calls.append("mlp"))
            model(padded(texts(), 9, "right", PAD)[0])[:, 0].square().sum().backward()
            assert len(calls) == 1 + checkpointing
            assert all(p.grad is not None for p in model.parameters())
            return torch.cat([p.grad.flatten() for p in model.parameters()])  # type: ignore[union-attr]

        plain = gradient(False)
        assert plain.norm() > 1e-2
        torch.testing.assert_close(gradient(True), plain, rtol=1e-4, atol=1e-5)


def test_linear_layers_but_the_head_are_computed_by_onednn() -> None:
    model = scalar().model
    assert type(model.model.layers[0].mlp.up_proj) is CPULinear
    assert type(model.score) is torch.nn.Linear


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf, 1e6])
@pytest.mark.parametrize(
    ("how", "expected"),
    {
        "last": [5, -3, 0],
        "mean": [3, -1, 0],
        "sum": [6, -2, 0],
        "weighted_sum": [(1 + 2 * 5) / 3, (1 + 2 * -3) / 3, 0],
        "max": [5, 1, 0],
        "min": [1, -3, 0],
    }.items(),
)
def test_pool_by_hand_with_any_masked_values(
    how: str, expected: list[float], poison: float
) -> None:
    p = poison
    x = torch.tensor([[p, 1.0, 5.0, p, p], [1.0, p, p, -3.0, p], [p, p, p, p, p]])
    assert pool(x, x != p if p == p else ~x.isnan(), how).tolist() == pytest.approx(
        expected, rel=1e-6
    )


ROWS: list[tuple[list[int], list[int]]] = [
    ([5, 6, 7], [8, 1]),
    ([9], [8, 8, 40, 1]),
    ([5, 6, 7, 5, 6], []),
    ([30, 31], [1]),
    ([4], [9, 9, 9]),
]


class TestGrade:
    @pytest.mark.parametrize("kind", MODELS)
    @pytest.mark.parametrize("budget", [1, 10, 8192])
    def test_scores_do_not_depend_on_the_batch(self, kind: str, budget: int) -> None:
        model = scalar(kind, pad_is_eos=True)
        scores = model.grade(ROWS, budget)
        assert scores.shape == (5, 4)
        for (prompt, response), row in zip(ROWS, scores, strict=True):
            close(row[: len(response)], model(torch.tensor([prompt + response]))[0, len(prompt) :])
            assert row[len(response) :].isnan().all()

    def test_the_token_budget_limits_each_forward(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model, sizes = scalar(), list[int]()
        forward = model.forward
        monkeypatch.setattr(
            model, "forward", lambda tokens: sizes.append(tokens.numel()) or forward(tokens)
        )
        model.grade(ROWS, 10)
        assert max(sizes) <= 10
        assert len(sizes) > 1

    @pytest.mark.parametrize("how", POOLINGS)
    def test_no_rows_and_empty_responses_can_be_pooled(self, how: str) -> None:
        model = scalar()
        for rows in ([], [([5], []), ([6], [])]):
            scores = model.grade(rows)
            assert pool(scores, torch.zeros_like(scores, dtype=torch.bool), how).tolist() == [
                0.0
            ] * len(rows)

    def test_a_text_longer_than_the_context_is_rejected(self) -> None:
        with pytest.raises(
            UserError, match=r"have 65 .* context is 64: type a smaller rollout.max_tokens"
        ):
            scalar().grade([([5] * 60, [6] * 5)])


class TestFromPolicy:
    @pytest.mark.parametrize("kind", MODELS)
    def test_the_trunk_is_a_copy_and_scores_are_zero(self, kind: str) -> None:
        initial = policy(kind)
        before = {name: x.clone() for name, x in initial.model.state_dict().items()}
        model = ScalarModel.from_policy(initial)
        assert (model(texts()[1][None]) == 0).all()
        for name, x in initial.model.base_model.state_dict().items():
            assert torch.equal(model.model.base_model.state_dict()[name], x)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
        assert all(torch.equal(x, before[name]) for name, x in initial.model.state_dict().items())

    def test_weights_keep_their_precision(self) -> None:
        initial = policy()
        initial.model.config.dtype = torch.bfloat16  # the data type of the checkpoint
        model = ScalarModel.from_policy(initial)
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        assert torch.equal(
            model.model.base_model.embed_tokens.weight, initial.model.base_model.embed_tokens.weight
        )

    def test_eos_and_padding_ids_are_those_of_the_policy(self, tmp_path: Path) -> None:
        initial = policy()
        initial.eos_ids = frozenset({1, 40})  # as a generation config may list them
        model = ScalarModel.from_policy(initial)
        model.export(tmp_path)
        for copy in (model, ScalarModel.load(tmp_path)):
            assert (copy.eos_ids, copy.eos_id, copy.pad_id) == (
                initial.eos_ids,
                initial.eos_id,
                initial.pad_id,
            )

    def test_the_end_of_text_is_trained_if_it_is_also_the_padding(self) -> None:
        model = ScalarModel.from_policy(policy(pad_is_eos=True))
        model.model.config.pad_token_id = EOS
        model.model.score.weight.data.fill_(0.1)
        model(texts()[1][None])[0, -1].backward()
        assert model.eos_id == EOS
        assert model.model.base_model.embed_tokens.weight.grad[EOS].any()

    def test_an_architecture_without_a_classifier_is_rejected(self) -> None:
        model = Policy(seeded(CohereForCausalLM, CohereConfig(**SHAPE)), character_tokenizer())
        with pytest.raises(
            UserError, match="CohereForCausalLM does not support a scalar head"
        ) as error:
            ScalarModel.from_policy(model)
        assert "\n" not in str(error.value)


class TestExport:
    @pytest.mark.parametrize("kind", MODELS)
    def test_loaded_scores_are_bitwise_equal(self, kind: str, tmp_path: Path) -> None:
        model = scalar(kind, **(PDROP if kind == "gpt2" else {}))
        metadata = {"kind": "reward", "pooling": "mean", "offset": 0.1 + 0.2}
        model.metadata.update(metadata)
        model.export(tmp_path / "run" / "export")
        row = texts()[1][None]
        for source in (tmp_path / "run", tmp_path / "run" / "export", str(tmp_path / "run")):
            loaded = ScalarModel.load(source)
            assert torch.equal(loaded(row), model(row))
            assert loaded.metadata == metadata
            assert not loaded.training
            assert not any(p.requires_grad for p in loaded.parameters())
        assert find(tmp_path / "run") == (str(tmp_path / "run" / "export"), metadata)
        prompt = Prompt(id="p", text="1+2=")
        assert loaded.encode(prompt) == model.encode(prompt)
        assert loaded.encode_response("<answer>3</answer>") == model.encode_response(
            "<answer>3</answer>"
        )

    def test_transformers_loads_all_weights_and_the_dropout(self, tmp_path: Path) -> None:
        model = scalar("gpt2", **PDROP)
        model.export(tmp_path)
        loaded, info = AutoModelForSequenceClassification.from_pretrained(
            tmp_path, output_loading_info=True
        )
        assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        assert loaded.config.num_labels == 1
        assert {name: getattr(loaded.config, name) for name in PDROP} == PDROP
        row = texts()[1][None]
        assert torch.equal(loaded(input_ids=row).logits[0, 0], model(row)[0, -1])
        loaded = ScalarModel.load(tmp_path)
        assert torch.equal(loaded.train()(row), model(row))
        loaded.export(tmp_path / "twice")
        before, after = (
            json.loads((folder / "config.json").read_text())
            for folder in (tmp_path, tmp_path / "twice")
        )
        assert after == before

    def test_transformers_scores_the_end_of_text_if_it_was_the_padding(
        self, tmp_path: Path
    ) -> None:
        """Its own forward takes the last token that is not padding."""
        base = policy(pad_is_eos=True)
        base.tokenizer.unk_token = "<pad>"
        model = ScalarModel.from_policy(base)
        model.model.score.weight.data.normal_()
        model.export(tmp_path)
        loaded, tokenizer = (
            AutoModelForSequenceClassification.from_pretrained(tmp_path),
            AutoTokenizer.from_pretrained(tmp_path),
        )
        assert tokenizer.pad_token_id == loaded.config.pad_token_id == model.pad_id != EOS
        batch = tokenizer(["1+2=3", "3"], padding=True, padding_side="right", return_tensors="pt")[
            "input_ids"
        ]
        with_eos = torch.nn.functional.pad(batch, (0, 1), value=tokenizer.pad_token_id)
        lengths = (batch != tokenizer.pad_token_id).sum(1)
        with_eos[torch.arange(2), lengths] = EOS
        expected = model(with_eos)[torch.arange(2), lengths]
        torch.testing.assert_close(loaded(input_ids=with_eos).logits[:, 0], expected)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    scalar().export(folder)
    return folder


class TestLoad:
    @pytest.fixture(autouse=True)
    def working_directory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "runs").mkdir()

    def error_message(self, source: str | Path) -> str:
        with pytest.raises(UserError) as error:
            ScalarModel.load(source)
        assert "\n" not in str(error.value)
        return str(error.value)

    def damaged(self, saved: Path, weights: dict[str, Tensor] | None = None, **config: Any) -> Path:
        folder = Path("damaged")
        shutil.copytree(saved, folder)
        if weights is not None:
            remaining = {
                name: x
                for name, x in (load_file(saved / "model.safetensors") | weights).items()
                if x is not None
            }
            save_file(remaining, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(
            json.dumps(json.loads((saved / "config.json").read_text()) | config)
        )
        return folder

    def test_a_missing_source(self) -> None:
        for source in ("nothing", "runs/nothing", "./nothing", "~/nothing/at/all", Path("runs/no")):
            message = self.error_message(source)
            assert "no reward model at" in message
            assert "algo=reward_model" in message

    def test_a_run_without_an_export(self) -> None:
        assert "has the run finished?" in self.error_message("runs")

    def test_a_language_model(self) -> None:
        policy().export(Path("lm"))
        assert "no reward model at 'lm': it holds ['LlamaForCausalLM']" in self.error_message("lm")

    @pytest.mark.parametrize("head", [None, torch.zeros(2, 32)], ids=["none", "another shape"])
    def test_weights_without_the_head(self, head: Any, saved: Path) -> None:
        folder = self.damaged(saved, {"score.weight": head})
        assert "lacks weights (score.weight)" in self.error_message(folder)

    def test_a_head_with_two_outputs(self, saved: Path) -> None:
        labels = {"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}}
        assert "no linear head with one output" in self.error_message(
            self.damaged(saved, {"score.weight": torch.zeros(2, 32)}, **labels)
        )

    def test_a_truncated_weights_file(self, saved: Path) -> None:
        folder = self.damaged(saved)
        content = (saved / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
        assert "cannot load a reward model from 'damaged'" in self.error_message("damaged")

    def test_a_hub_name_is_passed_to_the_hub(self) -> None:
        assert find("owner/name") == ("owner/name", {})
        assert "cannot load a reward model from 'owner/name'" in self.error_message("owner/name")
