"""The policy's base model: made from nothing for the miniature (tokenizer, network, warm start), or fetched from the Hub.

Modules are imported by name (``genselect.base_model.fetch``), because all but ``fetch``, ``folder`` and ``settings`` import torch.
"""
