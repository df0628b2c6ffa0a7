"""Checks of the device: `python -m tests.support.simulated_cuda.itself`."""

from collections.abc import Callable

from tests.support.simulated_cuda.device import install

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.simulated_cuda.counts import Counts, counted

WAITING: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x[0].item(),
    "float": lambda x: float(x[0]),
    "bool": lambda x: bool(x.any()),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "copy to the host": lambda x: torch.zeros(3).copy_(x),
    "rows of a mask": lambda x: x[x > 1],
    "assignment by a mask": lambda x: x.clone().__setitem__(x > 1, torch.zeros(2, device="cuda")),
    "nonzero": lambda x: x.nonzero(),
    "unique": lambda x: torch.unique(x),
    "masked_select": lambda x: x.masked_select(x > 1),
    "repeat_interleave": lambda x: x.repeat_interleave(torch.ones(3, device="cuda").long()),
    "equal": lambda x: torch.equal(x, x),
}
ASYNCHRONOUS: dict[str, Callable[[Tensor], object]] = {
    "arithmetic": lambda x: (x + 1).exp().sum(),
    "where": lambda x: torch.where(x > 1, x, 0.0),
    "rows of an index": lambda x: x[torch.zeros(2, dtype=torch.long, device="cuda")],
    "masked_scatter": lambda x: x.masked_scatter(x > 1, x),
    "a view": lambda x: x.view(3, 1)[1:],
    "a factory": lambda x: torch.zeros(3, device="cuda"),
}
MIXED: dict[str, Callable[[Tensor], object]] = {
    "sum": lambda x: x + torch.ones(3),
    "where": lambda x: torch.where(x > 1, x, torch.zeros(3)),
    "assignment": lambda x: x.index_put_((torch.tensor([0, 1], device="cuda"),), torch.ones(2)),
    "product": lambda x: torch.eye(3) @ x,
    "index on the device": lambda x: torch.ones(3)[x.long() - 1],
}


def count(call: Callable[[Tensor], object]) -> Counts:
    x = torch.tensor([1.0, 2.0, 3.0], device="cuda")
    with counted() as counts:
        call(x)
    return counts


def check_counts() -> None:
    for name, call in WAITING.items():
        assert count(call).num_waits == 1, name
    for name, call in ASYNCHRONOUS.items():
        assert count(call).num_waits == 0, name
    assert count(lambda x: x * 2).launches == {"mul": 1}
    assert count(lambda x: x.view(3, 1).t()).num_launches == 0
    assert count(lambda x: x + 1).num_copies == 0
    assert count(lambda x: torch.tensor([1, 2], device="cuda")).num_copies == 1
    assert count(lambda x: x[torch.zeros(1, dtype=torch.long)]).num_copies == 1
    [place] = count(lambda x: x[0].item()).waits
    assert "itself.py" in place, place


def check_mixed_devices() -> None:
    for name, call in MIXED.items():
        print(name)  # the last one is the one at fault
        with pytest.raises(RuntimeError, match="two devices"):
            count(call)


def check_training() -> None:
    """A step with tied weights is that of the CPU, in the same places of memory."""
    weights = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        network[2].weight = network[0].weight
        network.to(device)
        assert network[2].weight is network[0].weight
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.1, fused=True)
        network(torch.eye(4).to(device)).square().sum().backward()
        optimizer.step()
        weights.append(network.to("cpu").state_dict())
    for name, x in weights[0].items():
        torch.testing.assert_close(weights[1][name], x)


def check_attention() -> None:
    def attend(heads: int, keys: int, dtype: torch.dtype, mask: Tensor | None = None) -> str:
        query = torch.ones(2, 4, 3, 8, device="cuda", dtype=dtype)
        key = torch.ones(2, heads, keys, 8, device="cuda", dtype=dtype)
        options = {"attn_mask": mask, "enable_gqa": heads != 4}
        with counted() as counts:
            functional.scaled_dot_product_attention(query, key, key, **options)
        [kernel] = counts.kernels
        return kernel

    mask = torch.ones(3, 5, dtype=torch.bool, device="cuda")
    assert attend(4, 5, torch.bfloat16) == "bfloat16 flash"
    assert attend(2, 5, torch.bfloat16) == "bfloat16 flash"
    assert attend(4, 5, torch.bfloat16, mask) == "bfloat16 efficient"
    assert attend(2, 5, torch.bfloat16, mask) == "bfloat16 math"
    assert attend(4, 5, torch.float32) == "float32 efficient"
    assert attend(2, 5, torch.float32) == "float32 math"


if __name__ == "__main__":
    with install():
        check_counts()
        check_mixed_devices()
        check_training()
        check_attention()
