from collections import Counter
from itertools import chain, islice, repeat
from random import Random

import lightning as L
import pytest
import torch
from hypothesis import given, settings, strategies as st
from lightning.pytorch.callbacks import Callback

from rlmods.data import PromptLoader, PromptModule, Splits
from rlmods.errors import UserError
from rlmods.types import Prompt


def prompts(n):
    return [Prompt(id=str(i), text=f"{i}?") for i in range(n)]


def stream(loader, batches):
    """Return the ids of the next `batches` batches, over as many epochs as needed."""
    assert len(loader) >= 1
    return [[p.id for p in batch] for batch in islice(chain.from_iterable(repeat(loader)), batches)]


def test_a_source_without_rows_is_an_error():
    with pytest.raises(UserError, match=r"^the source b has no rows to train on: leave it out$"):
        PromptLoader([Prompt(id="0", text="0?", source="a")], 1, weights={"a": 1.0, "b": 1.0})


sizes = {
    "n": st.integers(1, 13),
    "batch": st.integers(1, 5),
    "world": st.integers(1, 3),
    "seed": st.integers(0, 5),
}


@settings(max_examples=60, deadline=None)
@given(**sizes, passes=st.integers(1, 4))
def test_every_pass_holds_every_prompt_once(n, batch, world, seed, passes):
    loader = PromptLoader(prompts(n), batch * world, seed)
    flat = list(chain.from_iterable(stream(loader, -(-n * passes // (batch * world)))))
    for i in range(passes):
        assert sorted(flat[i * n : (i + 1) * n]) == sorted(str(j) for j in range(n))


@settings(max_examples=60, deadline=None)
@given(**sizes, batches=st.integers(1, 12))
def test_ranks_split_the_global_batch(n, batch, world, seed, batches):
    global_batches = stream(PromptLoader(prompts(n), batch * world, seed), batches)
    ranks = [
        stream(PromptLoader(prompts(n), batch * world, seed, rank, world), batches)
        for rank in range(world)
    ]
    assert all(len(part) == batch for rank in ranks for part in rank)
    assert global_batches == [
        list(chain.from_iterable(parts)) for parts in zip(*ranks, strict=True)
    ]


@settings(max_examples=60, deadline=None)
@given(**sizes, batches=st.integers(1, 12))
def test_the_next_batch_is_known_before(n, batch, world, seed, batches):
    """Also across passes and epochs; asking changes nothing."""
    loader, plain = (
        PromptLoader(prompts(n), batch * world, seed, world - 1, world) for _ in range(2)
    )
    iterator = chain.from_iterable(repeat(loader))
    for expected in islice(chain.from_iterable(repeat(plain)), batches):
        state = loader.state_dict()
        upcoming = loader.next_batch()
        assert loader.next_batch() == upcoming == expected
        assert loader.state_dict() == state
        assert next(iterator) == expected


@settings(max_examples=60, deadline=None)
@given(**sizes, before=st.integers(0, 9), world_after=st.integers(1, 3))
def test_a_state_resumes_at_the_next_batch_on_any_number_of_ranks(
    n, batch, world, seed, before, world_after
):
    size = batch * world * world_after
    uninterrupted = stream(PromptLoader(prompts(n), size, seed), before + 5)
    interrupted = PromptLoader(prompts(n), size, seed, world - 1, world)
    stream(interrupted, before)
    resumed = [
        PromptLoader(prompts(n), size, seed, rank, world_after) for rank in range(world_after)
    ]
    for loader in resumed:
        loader.load_state_dict(interrupted.state_dict())
    parts = zip(*(stream(loader, 5) for loader in resumed), strict=True)
    assert uninterrupted[before:] == [list(chain.from_iterable(part)) for part in parts]


def test_resuming_with_another_batch_size_continues_at_the_next_prompt():
    first, second = PromptLoader(prompts(7), 3), PromptLoader(prompts(7), 4)
    batches_seen = stream(first, 3)
    second.load_state_dict(first.state_dict())
    assert list(chain.from_iterable(batches_seen + stream(second, 3))) == list(
        chain.from_iterable(stream(PromptLoader(prompts(7), 3), 7))
    )


def test_length_of_an_epoch():
    loader = PromptLoader(prompts(7), 3)
    assert len(loader) == 3 == len(list(loader))
    assert len(PromptLoader(prompts(2), 5)) == 1
    batch = next(iter(PromptLoader(prompts(2), 5)))
    assert sorted(Counter(p.id for p in batch).values()) == [2, 3]


class CountingRows(list):
    """Rows that count how often one of them is read in turn."""

    num_read = 0

    def __iter__(self):
        for row in super().__iter__():
            self.num_read += 1
            yield row

    def __getitem__(self, index):
        self.num_read += 1
        return super().__getitem__(index)


def test_a_batch_reads_its_rows_only_and_the_states_read_all_rows_once_a_run():
    rows = CountingRows(prompts(50))
    loader = PromptLoader(rows, 1)
    batches = iter(loader)
    next(batches)
    assert rows.num_read == 1
    states = [(next(batches), loader.state_dict()) for _ in range(20)]
    assert rows.num_read == 21 + len(rows)
    assert [state["taken"] for _, state in states] == list(range(2, 22))
    assert states[0][1]["fingerprint"] == PromptLoader(prompts(50), 1).state_dict()["fingerprint"]


@pytest.mark.parametrize("n", [1, 2, 50, 1000])
def test_a_pass_is_the_shuffle_of_the_list_of_prompts(n):
    batches = stream(PromptLoader(prompts(n), 1, seed=3), 2 * n)
    for number in range(2):
        expected = [prompt.id for prompt in prompts(n)]
        Random(f"3-{number}").shuffle(expected)
        assert list(chain.from_iterable(batches))[number * n : (number + 1) * n] == expected


def test_errors():
    state = PromptLoader(prompts(7), 3).state_dict()
    changed = [*prompts(6), Prompt(id="6", text="6!")]
    for other in (prompts(8), changed):
        with pytest.raises(
            UserError,
            match=f"data changed between save and resume .7 prompts then, {len(other)} "
            "now.*resume=null",
        ):
            PromptLoader(other, 3).load_state_dict(state)
    with pytest.raises(UserError, match="seed changed between save and resume; type seed=0"):
        PromptLoader(prompts(7), 3, seed=1).load_state_dict(state)
    with pytest.raises(UserError, match="batch of 5 prompts cannot be shared evenly by 2 ranks"):
        PromptLoader(prompts(7), 5, world_size=2)
    with pytest.raises(UserError, match="no prompts to train on"):
        PromptLoader([], 1)


class Recorder(L.LightningModule):
    """Module that records the ids passed to `training_step`, and may write a checkpoint inside
    one."""

    def __init__(self, save_in=None, path=None):
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.batches_seen, self.save_in, self.path = [], save_in, path

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def training_step(self, batch, batch_idx):
        self.batches_seen.append([p.id for p in batch])
        if len(self.batches_seen) == self.save_in:
            self.trainer.save_checkpoint(self.path)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.weight.sum())
        optimizer.step()


class Stop(Callback):
    def __init__(self, after, save_at=None, path=None):
        self.after, self.save_at, self.path = after, save_at, path

    def on_train_batch_end(self, trainer, module, *args):
        if len(module.batches_seen) == self.save_at:
            trainer.save_checkpoint(self.path)
        trainer.should_stop = trainer.should_stop or len(module.batches_seen) == self.after


def fit(batches, *, n=7, max_steps=-1, resume=None, save_in=None, save_at=None, path=None):
    module = Recorder(save_in, path)
    trainer = L.Trainer(
        max_epochs=-1,
        max_steps=max_steps,
        use_distributed_sampler=False,
        callbacks=[Stop(batches, save_at, path)],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        module,
        datamodule=PromptModule(Splits(prompts(n), ()), batch_size=3, seed=4),
        ckpt_path=resume,
    )
    return module.batches_seen


LIGHTNING_WARNINGS = [
    "ignore:.*does not have many workers",
    "ignore:.*LeafSpec.*",
    "ignore:.*isinstance.treespec.*",
]
pytestmark = [pytest.mark.filterwarnings(w) for w in LIGHTNING_WARNINGS]


@pytest.mark.parametrize("save_point", ["save_in", "save_at"])
@pytest.mark.parametrize("at", range(1, 8))
@pytest.mark.parametrize("stop", ["should_stop", "max_steps"])
def test_lightning_resumes_without_repeating_or_skipping(tmp_path, save_point, at, stop):
    """7 prompts in batches of 3 give epochs of 3 batches: batches 4 to 6 are in epoch 2, and
    batches 3 and 6 end an epoch."""
    total, path = 14, tmp_path / "stopped.ckpt"
    uninterrupted = fit(total)
    assert uninterrupted == stream(PromptLoader(prompts(7), 3, seed=4), total)
    assert fit(at, path=path, **{save_point: at}) == uninterrupted[:at]
    # saved inside training_step before its optimizer step, so Lightning's step counter is one lower
    limit = {"max_steps": total - (save_point == "save_in")} if stop == "max_steps" else {}
    assert fit(total - at, resume=path, **limit) == uninterrupted[at:]


def test_module_gets_its_ranks_from_the_strategy():
    module = PromptModule(Splits(prompts(7), ()), batch_size=4)
    assert (module.train_dataloader().rank, module.train_dataloader().world_size) == (0, 1)

    class Trainer:
        distributed_sampler_kwargs = {"num_replicas": 2, "rank": 1}  # noqa: RUF012

    module.trainer = Trainer()
    assert (module.train_dataloader().rank, module.train_dataloader().world_size) == (1, 2)


def test_time_is_the_number_of_the_pass() -> None:
    """Repeated occurrences of a prompt get different ids, without communication between ranks."""
    loader = PromptLoader(prompts(5), batch_size=4)
    assert [[prompt.time for prompt in batch] for batch in (*loader, *loader)] == [
        [0, 0, 0, 0],
        [0, 1, 1, 1],
        [1, 1, 2, 2],
        [2, 2, 2, 3],
    ]


@pytest.mark.parametrize("column", ["response", "candidates", "steps"])
def test_changed_annotations_are_changed_data(column: str) -> None:
    before, after = ([Prompt(id="a", text="1+1=", meta={column: x})] for x in ("2", "3"))
    state = PromptLoader(before, 1).state_dict()
    with pytest.raises(UserError, match="the data changed"):
        PromptLoader(after, 1).load_state_dict(state)
