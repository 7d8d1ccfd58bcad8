"""Finds secrets in what is to be published: keys and tokens by their form, and this machine's own by their value.

Forms are those that the issuers document and gitleaks (github.com/gitleaks/gitleaks, ``config/gitleaks.toml``) collects. A form without a
prefix of its own counts only beside a word that says what it is: a sha256 and a commit are no keys. detect-secrets 1.5 was tried first:
it knows neither Hugging Face, Anthropic, Google nor W&B keys, and reads 0.2 MB a second of an attempt's log, where this reads 67.

Pattern texts are written for two engines: RE2 (in pyarrow) says whether a block holds anything at all, ``re`` then says
what and where. RE2 has no look-around.
"""

from __future__ import annotations

import functools
import json
import math
import netrc
import os
import re
import urllib.parse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from huggingface_hub import get_token

#: Shorter values of the environment are no secrets, or cannot be told from ordinary words.
_SHORTEST = 8
_SECRET_NAME = re.compile(r"(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASS|CREDENTIALS?)$", re.IGNORECASE)
_PLACEHOLDER = re.compile(rb"(?i)example|placeholder|redacted|your[-_]|dummy|changeme")
#: In file names.
_NAMES = re.compile(
    r"(?:^|/)(?:\.netrc|_netrc|\.git-credentials|\.pgpass|\.pypirc|\.npmrc|\.htpasswd|\.env|kaggle\.json|id_(?:rsa|dsa|ecdsa|ed25519)"
    r"|\.aws/credentials|[^/]+\.(?:pem|p12|pfx|kdbx|jks))(?:$|/)"
)


@dataclass(frozen=True)
class Finding:
    """A secret, without the secret."""

    what: str
    start: int
    end: int
    """Bytes within the block."""
    context: tuple[int, int]
    """Of all that the pattern took in, such as the word that says what it is."""


@dataclass(frozen=True)
class Pattern:
    """The form of one kind of secret."""

    what: str
    """As the refusal names it."""
    text: str
    """For ``re`` and RE2 alike. A group ``s`` is the secret itself, where the pattern holds more."""
    random: bool = False
    """The secret must look drawn by chance: words and names fit the form, too."""

    @functools.cached_property
    def regex(self) -> re.Pattern[bytes]:
        """For the exact search."""
        return re.compile(self.text.encode())

    def findings(self, block: bytes) -> Iterator[Finding]:
        """What of this form ``block`` holds; placeholders such as ``hf_xxxx`` are none."""
        for match in self.regex.finditer(block):
            group = "s" if "s" in self.regex.groupindex else 0
            secret = match[group]
            if len(set(secret)) < 6 or _PLACEHOLDER.search(match[0]) or (self.random and not _drawn(secret)):
                continue
            yield Finding(self.what, *match.span(group), match.span())


_ASSIGNED = r"""\\?["']{0,2}\s{0,3}(?::=|=>|[:=,])\s{0,3}\\?["']{0,2}"""
#: White space, also as JSON writes it.
_SPACE = r"(?:\s|\\[nrt]){1,9}"

PATTERNS: tuple[Pattern, ...] = (
    Pattern("Hugging Face token", r"\b(?:hf_|api_org_)[A-Za-z0-9]{30,}"),
    Pattern("OpenAI key", r"\bsk-(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{20,}"),
    Pattern("OpenAI key", r"\bsk-[A-Za-z0-9]{32,}\b"),
    Pattern("Anthropic key", r"\bsk-ant-[A-Za-z0-9_-]{20,}"),
    Pattern("OpenRouter key", r"\bsk-or-(?:v1-)?[A-Za-z0-9]{32,}"),
    Pattern("Groq, xAI or NVIDIA key", r"\b(?:gsk_|xai-|nvapi-)[A-Za-z0-9_-]{40,}"),
    Pattern("Replicate or Perplexity key", r"\b(?:r8_|pplx-)[A-Za-z0-9]{37,}"),
    Pattern("W&B key", r"\b(?:wandb_v1_[A-Za-z0-9_-]{40,}|local-[0-9a-f]{40}\b)"),
    Pattern("W&B key", r"(?i:wandb[_-]?(?:api)?[_-]?key)" + _ASSIGNED + r"(?P<s>[0-9a-f]{40})\b"),
    Pattern("W&B key", r"(?i:wandb\s{1,3}login)\s{1,3}(?:--[a-z-]{1,20}\s{1,3}){0,4}(?P<s>[0-9a-f]{40})\b"),
    Pattern("Comet, Neptune or Trackio key",
            r"(?i:(?:comet|neptune|trackio)[_-]api[_-]?(?:key|token))" + _ASSIGNED + r"(?P<s>[A-Za-z0-9+/=_-]{20,})"),
    Pattern("AWS access key", r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b"),
    Pattern("AWS secret key",
            r"(?i:aws.{0,20}(?:secret|key).{0,20}?)" + _ASSIGNED + r"(?P<s>[A-Za-z0-9/+]{40})(?:[^A-Za-z0-9/+=]|$)", random=True),
    Pattern("GitHub token", r"\bgh[pousr]_[A-Za-z0-9]{36,}"),
    Pattern("GitHub fine-grained token", r"\bgithub_pat_[A-Za-z0-9_]{40,}"),
    Pattern("GitLab token", r"\bgl(?:pat|dt|ft|soat|rt|cbt|ptt|agent|oas)-[A-Za-z0-9_.-]{20,}"),
    Pattern("Slack token", r"\bxox[abeoprs]-(?:[0-9]{1,3}-)?[A-Za-z0-9-]{10,}"),
    Pattern("Slack token", r"\bxapp-[0-9]-[A-Z0-9]{5,}-[0-9]{5,}-[A-Za-z0-9]{10,}"),
    Pattern("Slack webhook", r"hooks\.slack\.com/(?:services|workflows|triggers)/(?P<s>[A-Za-z0-9+/]{40,})"),
    Pattern("Google API key", r"\bAIza[A-Za-z0-9_-]{35}"),
    Pattern("Google OAuth secret", r"\b(?:GOCSPX-[A-Za-z0-9_-]{20,}|ya29\.[A-Za-z0-9_-]{20,})"),
    Pattern("Azure storage key", r"(?i:AccountKey)\s{0,3}=\s{0,3}(?P<s>[A-Za-z0-9+/]{80,}={0,2})"),
    Pattern("Databricks token", r"\bdapi[0-9a-f]{32}\b"),
    Pattern("PyPI token", r"\bpypi-AgE[A-Za-z0-9_-]{40,}"),
    Pattern("npm token", r"\bnpm_[A-Za-z0-9]{36}\b"),
    Pattern("Stripe key", r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}"),
    Pattern("SendGrid key", r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    Pattern("DigitalOcean token", r"\bdo[opr]_v1_[0-9a-f]{40,}"),
    Pattern("Docker token", r"\bdckr_(?:pat|oat)_[A-Za-z0-9_-]{20,}"),
    Pattern("Kaggle key",
            r"""["']username\\?["']\s{0,3}:\s{0,3}\\?["'][^"'\\]{1,60}\\?["']\s{0,3},\s{0,3}\\?["']key\\?["']\s{0,3}:\s{0,3}\\?["'](?P<s>[0-9a-f]{32})\b"""),
    Pattern("private key", r"-----BEGIN (?:[A-Z0-9]{2,10} ){0,3}PRIVATE KEY(?: BLOCK)?-----"),
    Pattern("age or PuTTY private key", r"AGE-SECRET-KEY-1[A-Z0-9]{40,}|PuTTY-User-Key-File-[0-9]"),
    Pattern("JSON web token", r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    Pattern("password in an address",
            r"\b[a-zA-Z][a-zA-Z0-9+.-]{1,20}://[^\s/:@\"'<>{}$*\\]{0,80}:(?P<s>[^\s/:@\"'<>{}$*\\]{6,120})@[A-Za-z0-9\[]"),
    Pattern("netrc entry",
            r"\bmachine\s{1,9}\S{1,120}" + _SPACE + r"login\s{1,9}\S{1,120}" + _SPACE + r"password\s{1,9}(?P<s>[^\s*<$\"\\]{6,})"),
    Pattern("authorization header",
            r"(?i:authorization)\\?[\"']?\s{0,3}[:=]\s{0,3}\\?[\"']?(?i:bearer|token|basic)\s{1,3}(?P<s>[A-Za-z0-9._~+/=-]{16,})"),
    Pattern("secret assigned by name",
            r"(?i:\b[a-z0-9_-]{0,30}(?:(?:api|access|secret)[_-]?key|client[_-]?secret|(?:auth|access|hf)[_-]?token|password|passwd))"
            + _ASSIGNED + r"(?P<s>[A-Za-z0-9/+_.=-]{16,})", random=True),
)  # fmt: skip


class SecretSearch:
    """Looks for :data:`PATTERNS` and for this machine's own tokens. Make one and use it for all files."""

    def __init__(self, own: Mapping[str, str] | None = None) -> None:
        values = own_secrets() if own is None else own
        # The own values come first: whoever's a key is says more than its form.
        exact = [
            Pattern(f"the value of {name}", re.escape(form)) for name, value in values.items() for form in _forms(value)
        ]
        self._patterns = (*exact, *PATTERNS)
        self._filter = "|".join(f"(?:{_loosened(pattern.text)})" for pattern in self._patterns)

    def suspicious(self, blocks: Sequence[bytes]) -> list[int]:
        """The blocks that may hold something, by number. Many at once: the pattern is compiled in each call."""
        fits = pc.match_substring_regex(pa.array(blocks, pa.large_binary()), self._filter)
        return pc.indices_nonzero(fits).to_pylist()

    def in_block(self, block: bytes) -> list[Finding]:
        """Everything in a suspicious block, by place."""
        whole = pa.array([block], pa.large_binary())
        found: list[Finding] = []
        for pattern in self._patterns:
            if pc.match_substring_regex(whole, _loosened(pattern.text))[0].as_py():
                # What an earlier pattern has named is not named again by a more general one.
                taken = list(found)
                found += [
                    finding
                    for finding in pattern.findings(block)
                    if not any(other.start < finding.end and finding.start < other.end for other in taken)
                ]
        return sorted(found, key=lambda finding: (finding.start, finding.end))

    def in_names(self, paths: Sequence[str]) -> dict[str, tuple[str, list[str]]]:
        """The names of files that give something away: each with that hidden, and what it is."""
        found = {}
        names = [path.encode() for path in paths]
        for number in self.suspicious(names):
            findings = self.in_block(names[number])
            if findings:
                shown = _hidden(names[number], findings).decode(errors="replace")
                found[paths[number]] = (shown, [finding.what for finding in findings])
        for path in paths:
            if _NAMES.search(path):
                shown_so_far, what = found.get(path, (path, []))
                found[path] = (shown_so_far, [*what, "name of a file of credentials"])
        return found


def own_secrets(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """This machine's tokens by where they stand: the environment, the Hub's client, netrc. They are compared and never shown."""
    environment = os.environ if environment is None else environment
    found = {
        name: value
        for name, value in environment.items()
        if _SECRET_NAME.search(name) and len(value) >= _SHORTEST and not os.path.exists(value)  # noqa: PTH110 (any text)
    }
    if token := get_token():
        found.setdefault("the Hub's token of this account", token)
    try:
        hosts = netrc.netrc().hosts
    except (OSError, netrc.NetrcParseError):
        hosts = {}
    found |= {f"the netrc password for {host}": entry[2] for host, entry in hosts.items() if len(entry[2]) >= _SHORTEST}
    return {name: value for name, value in found.items() if len(set(value)) > 1}


def _hidden(name: bytes, findings: Sequence[Finding]) -> bytes:
    """``name`` with every byte of the findings behind stars; they may overlap."""
    shown, until = b"", 0
    for finding in findings:
        if finding.start >= until:
            shown += name[until : finding.start] + b"***"
        until = max(until, finding.end)
    return shown + name[until:]


def _forms(value: str) -> Sequence[str]:
    """A value as it is, in JSON, and in an address."""
    return tuple(dict.fromkeys((value, json.dumps(value)[1:-1], urllib.parse.quote(value, safe=""))))


def _loosened(text: str) -> str:
    """The pattern with short counts: it fits whatever the pattern fits, and RE2 runs through it with few states."""
    return re.sub(r"\{(\d+)(?:,\d*)?\}", lambda count: f"{{{min(int(count[1]), 5)},}}", text)


def _drawn(secret: bytes) -> bool:
    """Whether letters and digits are mixed as in a key: a digit, a letter, and 3.7 bits of Shannon entropy a character."""
    counts = Counter(secret)
    entropy = -sum(count / len(secret) * math.log2(count / len(secret)) for count in counts.values())
    return entropy >= 3.7 and bool(re.search(rb"[0-9]", secret)) and bool(re.search(rb"[A-Za-z]", secret))
