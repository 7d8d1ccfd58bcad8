"""Where results come from, and proof that they are what they were: the circumstances of a run, and seals over files."""

from genselect.provenance.circumstances import collect, redact, source_root
from genselect.provenance.seal import Seal, SealedFile, check_seal, file_sha256, read_seal, seal_path, write_seal

__all__ = [
    "Seal",
    "SealedFile",
    "check_seal",
    "collect",
    "file_sha256",
    "read_seal",
    "redact",
    "seal_path",
    "source_root",
    "write_seal",
]
