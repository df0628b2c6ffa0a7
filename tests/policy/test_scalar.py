"""One number a token: blind to padding, batch and what comes later; the same after saving; and nothing that is no reward model gets in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer, CohereConfig, CohereForCausalLM

from rlmods.policy import Policy, ScalarModel
from rlmods.policy.scalar import POOLINGS, find, pool
from rlmods.policy.tiny import character_tokenizer
from rlmods.types import Prompt, UserError
from tests.policy.test_base import MODELS, PDROP, SHAPE, gpt2, llama, seeded

LENGTHS = [3, 9, 6, 1]
PAD, EOS = 0, 1


def policy(kind: str = "llama", *, pad_is_eos: bool = False, **change: Any) -> Policy:
    tokenizer = character_tokenizer()
    if pad_is_eos:
        tokenizer.pad_token = tokenizer.eos_token
    return Policy(MODELS[kind](**change), tokenizer)


def scalar(kind: str = "llama", seed: int = 0, **options: Any) -> ScalarModel:
    """With a head that says something."""
    made = ScalarModel.from_policy(policy(kind, **options))
    made.model.score.weight.data.normal_(generator=torch.Generator().manual_seed(seed))
    return made.requires_grad_(False)


def texts() -> list[Tensor]:
    """Rows of `LENGTHS` that end on the true end-of-text token."""
    generator = torch.Generator().manual_seed(3)
    return [torch.cat([torch.randint(2, 102, (n - 1,), generator=generator), torch.tensor([EOS])]) for n in LENGTHS]


def padded(rows: list[Tensor], width: int, side: str, pad: int) -> tuple[Tensor, Tensor]:
    tokens, attention = torch.full((len(rows), width), pad), torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        at = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        tokens[i, at], attention[i, at] = row, True
    return tokens, attention


def close(have: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(have, want, rtol=0, atol=2e-5)


@pytest.mark.parametrize("kind", MODELS)
class TestForward:
    def test_equals_what_transformers_says_of_the_last_token(self, kind: str) -> None:
        made = scalar(kind)
        for row in texts():
            for length in range(1, len(row) + 1):
                want = made.model(input_ids=row[None, :length]).logits[0, 0]
                close(made(row[None])[0, length - 1], want)

    @pytest.mark.parametrize("pad_is_eos", [False, True])
    @pytest.mark.parametrize("width", [9, 14])
    @pytest.mark.parametrize("side", ["left", "right"])
    def test_padding_on_either_side_changes_nothing(self, kind: str, side: str, width: int, pad_is_eos: bool) -> None:
        made = scalar(kind, pad_is_eos=pad_is_eos)
        assert (made.pad_id == made.eos_id) == pad_is_eos
        tokens, attention = padded(texts(), width, side, made.pad_id)
        numbers = made(tokens, attention)
        assert numbers.isfinite().all()
        for i, row in enumerate(texts()):
            close(numbers[i][attention[i]], made(row[None])[0])

    def test_padding_on_the_right_needs_no_attention(self, kind: str) -> None:
        made = scalar(kind)
        tokens, attention = padded(texts(), 14, "right", made.pad_id)
        garbage = torch.where(attention, tokens, 77)
        close(made(tokens)[attention], made(tokens, attention)[attention])
        assert torch.equal(made(garbage)[attention], made(tokens)[attention])

    def test_a_number_is_blind_to_later_tokens(self, kind: str) -> None:
        made, row = scalar(kind), texts()[1][None]
        changed = row.clone()
        changed[0, 4] += 1
        assert (made(changed) != made(row))[0].tolist() == [False] * 4 + [True] * 5

    def test_dropout_is_off_also_in_train_mode(self, kind: str) -> None:
        change = PDROP if kind == "gpt2" else {"attention_dropout": 0.5}
        made, row = scalar(kind, **change), texts()[1][None]
        assert torch.equal(made.train()(row), made.eval()(row))

    def test_autocast_leaves_the_head_alone(self, kind: str) -> None:
        made, row, seen = scalar(kind), texts()[1][None], list[Tensor]()
        made.model.base_model.register_forward_hook(lambda *call: seen.append(call[-1].last_hidden_state))
        exact = made(row)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            numbers = made(row)
        assert numbers.dtype == torch.float32
        assert not torch.equal(seen[0], seen[1])
        assert torch.equal(numbers[0], (seen[1].float() @ made.model.score.weight.T)[0, :, 0])
        assert not torch.equal(numbers, exact)

    def test_trunk_and_head_learn_with_and_without_checkpointing(self, kind: str) -> None:
        def gradient(checkpointing: bool) -> Tensor:
            made = ScalarModel.from_policy(Policy(MODELS[kind](), character_tokenizer(), gradient_checkpointing=checkpointing))
            made.model.score.weight.data.normal_(generator=torch.Generator().manual_seed(0))
            made.train(made.gradient_checkpointing)
            calls = list[str]()
            next(m for name, m in made.named_modules() if name.endswith("0.mlp")).register_forward_pre_hook(lambda *_: calls.append("mlp"))
            made(padded(texts(), 9, "right", PAD)[0])[:, 0].square().sum().backward()
            assert len(calls) == 1 + checkpointing
            assert all(p.grad is not None for p in made.parameters())
            return torch.cat([p.grad.flatten() for p in made.parameters()])  # type: ignore[union-attr]

        plain = gradient(False)
        assert plain.norm() > 1e-2
        torch.testing.assert_close(gradient(True), plain, rtol=1e-4, atol=1e-5)


class TestPool:
    @pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf, 1e6])
    @pytest.mark.parametrize(
        ("how", "want"), {"last": [5, -3, 0], "mean": [3, -1, 0], "sum": [6, -2, 0], "max": [5, 1, 0], "min": [1, -3, 0]}.items()
    )
    def test_by_hand_whatever_masked_slots_hold(self, how: str, want: list[float], poison: float) -> None:
        p = poison
        x = torch.tensor([[p, 1.0, 5.0, p, p], [1.0, p, p, -3.0, p], [p, p, p, p, p]])
        assert pool(x, x != p if p == p else ~x.isnan(), how).tolist() == want

    def test_last_is_the_end_of_text_where_padding_is_the_same_token(self) -> None:
        made = scalar(pad_is_eos=True)
        tokens, attention = padded(texts(), 14, "right", made.pad_id)
        close(pool(made(tokens), attention, "last"), torch.stack([made(row[None])[0, -1] for row in texts()]))


ROWS: list[tuple[list[int], list[int]]] = [
    ([5, 6, 7], [8, 1]), ([9], [8, 8, 40, 1]), ([5, 6, 7, 5, 6], []), ([30, 31], [1]), ([4], [9, 9, 9]),
]  # fmt: skip


class TestGrade:
    @pytest.mark.parametrize("kind", MODELS)
    @pytest.mark.parametrize("budget", [1, 10, 8192])
    def test_gives_each_row_what_it_gets_alone(self, kind: str, budget: int) -> None:
        made = scalar(kind, pad_is_eos=True)
        numbers = made.grade(ROWS, budget)
        assert numbers.shape == (5, 4)
        for (prompt, response), found in zip(ROWS, numbers, strict=True):
            close(found[: len(response)], made(torch.tensor([prompt + response]))[0, len(prompt) :])
            assert found[len(response) :].isnan().all()

    def test_the_budget_bounds_a_forward(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made, sizes = scalar(), list[int]()
        forward = made.forward
        monkeypatch.setattr(made, "forward", lambda tokens: sizes.append(tokens.numel()) or forward(tokens))
        made.grade(ROWS, 10)
        assert max(sizes) <= 10
        assert len(sizes) > 1

    @pytest.mark.parametrize("how", POOLINGS)
    def test_no_rows_and_rows_without_a_token_can_be_pooled(self, how: str) -> None:
        made = scalar()
        for rows in ([], [([5], []), ([6], [])]):
            numbers = made.grade(rows)
            assert pool(numbers, torch.zeros_like(numbers, dtype=torch.bool), how).tolist() == [0.0] * len(rows)

    def test_a_text_that_does_not_fit_is_refused(self) -> None:
        with pytest.raises(UserError, match=r"have 65 .* context is 64: type a smaller rollout.max_tokens"):
            scalar().grade([([5] * 60, [6] * 5)])


class TestFromPolicy:
    @pytest.mark.parametrize("kind", MODELS)
    def test_the_trunk_is_a_copy_and_every_number_is_zero(self, kind: str) -> None:
        start = policy(kind)
        before = {name: x.clone() for name, x in start.model.state_dict().items()}
        made = ScalarModel.from_policy(start)
        assert (made(texts()[1][None]) == 0).all()
        for name, x in start.model.base_model.state_dict().items():
            assert torch.equal(made.model.base_model.state_dict()[name], x)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(1)
        assert all(torch.equal(x, before[name]) for name, x in start.model.state_dict().items())

    def test_weights_keep_their_precision(self) -> None:
        start = policy()
        start.model.config.dtype = torch.bfloat16  # what the checkpoint was stored in
        made = ScalarModel.from_policy(start)
        assert {p.dtype for p in made.parameters()} == {torch.float32}
        assert torch.equal(made.model.base_model.embed_tokens.weight, start.model.base_model.embed_tokens.weight)

    def test_ends_of_text_and_padding_are_the_policys(self, tmp_path: Path) -> None:
        start = policy()
        start.eos_ids = frozenset({1, 40})  # as a generation config may list them
        made = ScalarModel.from_policy(start)
        made.export(tmp_path)
        for twin in (made, ScalarModel.load(tmp_path)):
            assert (twin.eos_ids, twin.eos_id, twin.pad_id) == (start.eos_ids, start.eos_id, start.pad_id)

    def test_the_end_of_text_learns_where_it_is_also_the_padding(self) -> None:
        made = ScalarModel.from_policy(policy(pad_is_eos=True))
        made.model.config.pad_token_id = EOS
        made.model.score.weight.data.fill_(0.1)
        made(texts()[1][None])[0, -1].backward()
        assert made.eos_id == EOS
        assert made.model.base_model.embed_tokens.weight.grad[EOS].any()

    def test_an_architecture_without_a_classifier_is_refused(self) -> None:
        model = Policy(seeded(CohereForCausalLM, CohereConfig(**SHAPE)), character_tokenizer())
        with pytest.raises(UserError, match="CohereForCausalLM cannot carry a scalar head") as error:
            ScalarModel.from_policy(model)
        assert "\n" not in str(error.value)


class TestExport:
    @pytest.mark.parametrize("kind", MODELS)
    def test_what_is_loaded_says_the_same_to_the_last_bit(self, kind: str, tmp_path: Path) -> None:
        made = scalar(kind, **(PDROP if kind == "gpt2" else {}))
        facts = {"kind": "reward", "pooling": "mean", "offset": 0.1 + 0.2}
        made.metadata.update(facts)
        made.export(tmp_path / "run" / "export")
        row = texts()[1][None]
        for source in (tmp_path / "run", tmp_path / "run" / "export", str(tmp_path / "run")):
            again = ScalarModel.load(source)
            assert torch.equal(again(row), made(row))
            assert again.metadata == facts
            assert not again.training
            assert not any(p.requires_grad for p in again.parameters())
        assert find(tmp_path / "run") == (str(tmp_path / "run" / "export"), facts)
        prompt = Prompt(id="p", text="1+2=")
        assert again.encode(prompt) == made.encode(prompt)
        assert again.encode_response("<answer>3</answer>") == made.encode_response("<answer>3</answer>")

    def test_transformers_loads_every_weight_and_the_dropout(self, tmp_path: Path) -> None:
        made = scalar("gpt2", **PDROP)
        made.export(tmp_path)
        again, info = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
        assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        assert again.config.num_labels == 1
        assert {name: getattr(again.config, name) for name in PDROP} == PDROP
        row = texts()[1][None]
        assert torch.equal(again(input_ids=row).logits[0, 0], made(row)[0, -1])
        loaded = ScalarModel.load(tmp_path)
        assert torch.equal(loaded.train()(row), made(row))
        loaded.export(tmp_path / "twice")
        was, now = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path, tmp_path / "twice"))
        assert now == was

    def test_transformers_scores_the_end_of_text_where_it_was_the_padding(self, tmp_path: Path) -> None:
        """Its own forward takes the last token that is not padding."""
        base = policy(pad_is_eos=True)
        base.tokenizer.unk_token = "<pad>"
        made = ScalarModel.from_policy(base)
        made.model.score.weight.data.normal_()
        made.export(tmp_path)
        again, reader = AutoModelForSequenceClassification.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
        assert reader.pad_token_id == again.config.pad_token_id == made.pad_id != EOS
        batch = reader(["1+2=3", "3"], padding=True, padding_side="right", return_tensors="pt")["input_ids"]
        ended = torch.nn.functional.pad(batch, (0, 1), value=reader.pad_token_id)
        lengths = (batch != reader.pad_token_id).sum(1)
        ended[torch.arange(2), lengths] = EOS
        want = made(ended)[torch.arange(2), lengths]
        torch.testing.assert_close(again(input_ids=ended).logits[:, 0], want)

    def test_facts_of_a_model_that_has_none(self) -> None:
        assert scalar().metadata == {}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    scalar().export(folder)
    return folder


class TestLoad:
    @pytest.fixture(autouse=True)
    def here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "runs").mkdir()

    def refused(self, source: str | Path) -> str:
        with pytest.raises(UserError) as error:
            ScalarModel.load(source)
        assert "\n" not in str(error.value)
        return str(error.value)

    def damaged(self, saved: Path, weights: dict[str, Tensor] | None = None, **config: Any) -> Path:
        folder = Path("damaged")
        shutil.copytree(saved, folder)
        if weights is not None:
            kept = {name: x for name, x in (load_file(saved / "model.safetensors") | weights).items() if x is not None}
            save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(json.loads((saved / "config.json").read_text()) | config))
        return folder

    def test_what_is_not_there(self) -> None:
        for source in ("nothing", "runs/nothing", "./nothing", "~/nothing/at/all", Path("runs") / "nothing"):
            assert "no reward model at" in self.refused(source)
            assert "algo=reward_model" in self.refused(source)

    def test_a_run_without_an_export(self) -> None:
        assert "has the run finished?" in self.refused("runs")

    def test_a_language_model(self) -> None:
        policy().export(Path("lm"))
        assert "'lm' holds LlamaForCausalLM, no reward model" in self.refused("lm")

    def test_a_language_model_that_says_it_is_a_reward_model(self, saved: Path) -> None:
        assert "lacks weights (score.weight)" in self.refused(self.damaged(saved, {"score.weight": None}))  # type: ignore[dict-item]

    def test_a_head_of_another_shape(self, saved: Path) -> None:
        assert "lacks weights (score.weight)" in self.refused(self.damaged(saved, {"score.weight": torch.zeros(2, 32)}))

    def test_a_head_with_two_outputs(self, saved: Path) -> None:
        labels = {"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}}
        assert "no linear head with one output" in self.refused(self.damaged(saved, {"score.weight": torch.zeros(2, 32)}, **labels))

    def test_weights_cut_short(self, saved: Path) -> None:
        folder = self.damaged(saved)
        whole = (saved / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
        assert "cannot load a reward model from 'damaged'" in self.refused("damaged")

    def test_a_hub_name_is_left_to_the_hub(self) -> None:
        assert find("owner/name") == ("owner/name", {})
        assert "cannot load a reward model from 'owner/name'" in self.refused("owner/name")


def test_gpt2_and_llama_are_models_of_the_two_kinds_of_position() -> None:
    assert hasattr(gpt2().transformer, "wpe")
    assert not hasattr(llama().model, "wpe")
