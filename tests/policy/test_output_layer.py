"""The output layer outside of the forward of a sharded network."""

from __future__ import annotations

import socket

import torch
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from rlmods.distributed import sharding
from rlmods.policy import Tiny


def _on_rank(rank: int, port: int) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.manual_seed(0)
    policy = Tiny(pretrained=False, hidden_size=32, num_layers=1)()
    policy.model.get_output_embeddings().weight.data *= 20  # logits that 16 bits round visibly
    sharding.shard(policy, init_device_mesh("cpu", (2,)), dtype=torch.bfloat16)
    tokens = torch.randint(5, 90, (3, 10))
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[:, :4] = False
    with torch.no_grad():
        output = policy(tokens, mask, states=True)
        layer = policy.output_layer()
        assert isinstance(policy.model.get_output_embeddings().weight, DTensor)
        logits = layer(output.states)
    assert output.states.dtype == torch.bfloat16
    assert logits.dtype == torch.float32
    assert (logits.bfloat16() - logits).abs().max() > 1e-2
    logprobs = logits.log_softmax(-1).gather(-1, tokens[mask][:, None]).squeeze(-1)
    torch.testing.assert_close(logprobs, output.logprobs[mask], rtol=0, atol=1e-5)
    if rank == 0:  # by one rank alone
        torch.testing.assert_close(layer(output.states[:2]), logits[:2])
    torch.distributed.destroy_process_group()


def test_gathered_weights_give_the_logits_of_a_forward_in_16_bits() -> None:
    """Float32 shards are cast as in the forward, and logits are not rounded."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ranks = mp.spawn(_on_rank, (port,), nprocs=2, join=False)
    assert ranks is not None
    while not ranks.join(timeout=60):
        pass
