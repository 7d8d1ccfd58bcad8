"""Value models that know where one packed row ends and the next begins.

Rows of different lengths are packed into one sequence. Full attention is kept apart by position ids, but the linear-attention
layers of Qwen3.5 carry a state along the sequence, and need the rows' boundaries (``cu_seqlens``) to reset it. verl 0.9.1 passes
them only to a model whose ``forward`` *names* the argument (``FSDPEngine._build_model_optimizer`` looks at its signature), and no
token-classification model does: a critic's state leaks from row to row. The study lost days to this. Can go when
``Qwen3_5ForTokenClassification.forward`` names ``cu_seqlens``; the proofs of every step would catch it coming back.
"""

from __future__ import annotations

import inspect
import types
from typing import Any


def name_boundaries(module: Any) -> Any:
    """Give ``module.forward`` the named arguments ``cu_seqlens`` and ``cu_seqlens_cpu``, handed on to the text layers.

    Args:
        module: A token-classification model (``torch.nn.Module``) whose ``forward`` passes keyword arguments on.

    Returns:
        The same module.
    """
    forward = module.forward
    if "cu_seqlens" in inspect.signature(forward).parameters:
        return module

    def forward_with_boundaries(
        self: Any,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        cu_seqlens: Any = None,
        cu_seqlens_cpu: Any = None,
        **others: Any,
    ) -> Any:
        if cu_seqlens is not None:
            others.update(cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu)
        return forward(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, **others)

    module.forward = types.MethodType(forward_with_boundaries, module)
    return module
