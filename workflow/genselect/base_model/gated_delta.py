"""A faster gated delta rule for training the miniature on a CPU.

Without flash-linear-attention, transformers computes Qwen3.5's linear attention in chunks of 64 with a Python loop over the 63
rows of each chunk, which inverts a unit lower triangular matrix. Here that is one triangular solve, in chunks of 32: the same
mathematics (Yang, Kautz, Hatamizadeh 2024, "Gated Delta Networks: Improving Mamba2 with Delta Rule", arXiv:2412.06464), the
same arithmetic in 32-bit floats. It agrees with transformers 5.9's ``torch_chunk_gated_delta_rule`` to the last few bits.
"""

from __future__ import annotations

import torch
import transformers.models.qwen3_5.modeling_qwen3_5 as modeling
from torch import Tensor
from torch.nn import functional

CHUNK = 32


def install() -> None:
    """Let Qwen3.5 models built from now on use it, unless flash-linear-attention is there. Doing it twice does no harm."""
    # Each layer looks the function up in the module when it is built.
    modeling.torch_chunk_gated_delta_rule = chunk_gated_delta_rule


def chunk_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = CHUNK,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The gated delta rule over whole sequences.

    The function that it replaces takes ``cu_seqlens`` and ignores them, so that packed rows leak into each other; here they hold,
    and packed rows are exact on a CPU too.

    Args:
        query: Shape (batch, time, heads, key size), like ``key``.
        key: See ``query``.
        value: Shape (batch, time, heads, value size).
        g: Logarithm of each step's decay, shape (batch, time, heads).
        beta: Strength of each step's write, shape (batch, time, heads).
        chunk_size: Steps solved together; changes rounding only.
        initial_state: Shape (batch, heads, key size, value size); None is zero.
        output_final_state: Also return the state after the last step.
        use_qk_l2norm_in_kernel: Normalise queries and keys first.
        cu_seqlens: Where packed rows begin, and the end of the last: shape (rows + 1,). The batch is then 1, and there is no
            initial state.

    Returns:
        The outputs, shaped like ``value`` in the queries' type, and the final state or None.
    """
    if cu_seqlens is not None:
        lengths = cu_seqlens.diff().tolist()
        rows = zip(*(part.split(lengths, dim=1) for part in (query, key, value, g, beta)), strict=True)
        packed = [
            chunk_gated_delta_rule(q, k, v, decay, strength, chunk_size, None, False, use_qk_l2norm_in_kernel)[0]
            for q, k, v, decay, strength in rows
        ]
        return torch.cat(packed, dim=1), None
    kind = query.dtype
    if use_qk_l2norm_in_kernel:
        query, key = _normalised(query), _normalised(key)
    time = query.shape[1]
    query, key, value, beta, g = (_in_chunks(part, chunk_size) for part in (query, key, value, beta, g))
    query = query * query.shape[-1] ** -0.5
    decayed = g.cumsum(-1)
    mixing = _decay_between_steps(decayed)

    # Each step's write, with what earlier steps of its chunk wrote at its key taken away: (I + L) written = beta * wanted.
    overlap = ((key * beta.unsqueeze(-1)) @ key.transpose(-1, -2) * mixing).tril(-1)
    wanted = torch.cat([value, key * decayed.exp().unsqueeze(-1)], dim=-1) * beta.unsqueeze(-1)
    solved = torch.linalg.solve_triangular(
        overlap + torch.eye(chunk_size, device=overlap.device), wanted, upper=False, unitriangular=True
    )
    written, read_before = solved.split([value.shape[-1], key.shape[-1]], dim=-1)

    inside = (query @ key.transpose(-1, -2)) * mixing
    outputs, state = _across_chunks(query, key, written, read_before, inside, decayed, initial_state)
    outputs = outputs.flatten(2, 3)[:, :, :time].transpose(1, 2).contiguous().to(kind)
    return outputs, state if output_final_state else None


def _normalised(part: Tensor) -> Tensor:
    return part * torch.rsqrt((part * part).sum(-1, keepdim=True) + 1e-6)


def _in_chunks(part: Tensor, chunk: int) -> Tensor:
    """(batch, time, heads, ...) to 32-bit (batch, heads, chunks, chunk, ...), padded with zeros."""
    part = part.transpose(1, 2).float()
    missing = -part.shape[2] % chunk
    part = functional.pad(part, (0, 0, 0, missing) if part.dim() == 4 else (0, missing))
    return part.unflatten(2, (-1, chunk))


def _decay_between_steps(decayed: Tensor) -> Tensor:
    """What is left at step i (rows) of what was written at step j (columns) of the same chunk; zero for later j."""
    chunk = decayed.shape[-1]
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=decayed.device).triu(1)
    return (decayed.unsqueeze(-1) - decayed.unsqueeze(-2)).masked_fill(later, float("-inf")).exp()


def _across_chunks(
    query: Tensor,
    key: Tensor,
    written: Tensor,
    read_before: Tensor,
    inside: Tensor,
    decayed: Tensor,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Carry the state from chunk to chunk: outputs (batch, heads, chunks, chunk, value size), and the last state."""
    from_state = query * decayed.exp().unsqueeze(-1)
    to_state = (key * (decayed[..., -1:] - decayed).exp().unsqueeze(-1)).transpose(-1, -2)
    kept = decayed[..., -1].exp()[..., None, None]
    if initial_state is None:
        state = query.new_zeros(*query.shape[:2], key.shape[-1], written.shape[-1])
    else:
        state = initial_state.float()
    outputs = []
    for chunk in range(query.shape[2]):
        new = written[:, :, chunk] - read_before[:, :, chunk] @ state
        outputs.append(from_state[:, :, chunk] @ state + inside[:, :, chunk] @ new)
        state = state * kept[:, :, chunk] + to_state[:, :, chunk] @ new
    return torch.stack(outputs, dim=2), state
