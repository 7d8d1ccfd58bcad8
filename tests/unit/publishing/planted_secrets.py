"""Secrets of every kind, put together when the test runs: written out, other people's scanners would report this file."""

from __future__ import annotations

import random
import string

_DRAW = random.Random(7)
_LETTERS = string.ascii_letters + string.digits


def _drawn(count: int, alphabet: str = _LETTERS) -> str:
    return "".join(_DRAW.choices(alphabet, k=count))


_HEX = "0123456789abcdef"

#: What the refusal must say, and the text that holds the secret.
SECRETS: dict[str, tuple[str, str]] = {
    "huggingface": ("Hugging Face token", "hf" + "_" + _drawn(34)),
    "openai_old": ("OpenAI key", "sk" + "-" + _drawn(48)),
    "openai_project": ("OpenAI key", "sk" + "-proj-" + _drawn(48) + "T3BlbkFJ" + _drawn(48)),
    "anthropic": ("Anthropic key", "sk" + "-ant-api03-" + _drawn(80)),
    "openrouter": ("OpenRouter key", "sk" + "-or-v1-" + _drawn(64, _HEX)),
    "aws": ("AWS access key", "AK" + "IA" + _drawn(16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")),
    "aws_secret": ("AWS secret key", 'aws_secret_access_key = "' + _drawn(38) + '+/"'),
    "github": ("GitHub token", "gh" + "p_" + _drawn(36)),
    "github_fine": ("GitHub fine-grained token", "github" + "_pat_" + _drawn(22) + "_" + _drawn(59)),
    "gitlab": ("GitLab token", "gl" + "pat-" + _drawn(20)),
    "slack": ("Slack token", "xo" + "xb-" + _drawn(12, string.digits) + "-" + _drawn(12, string.digits) + "-" + _drawn(24)),
    "slack_webhook": ("Slack webhook", "https://hooks.slack.com/" + "services/T" + _drawn(10) + "/B" + _drawn(10) + "/" + _drawn(24)),
    "google": ("Google API key", "AI" + "za" + _drawn(35)),
    "wandb_old": ("W&B key", "WANDB_API" + "_KEY=" + _drawn(40, _HEX)),
    "wandb_login": ("W&B key", "$ wandb login --relogin " + _drawn(40, _HEX)),
    "wandb_new": ("W&B key", "wandb" + "_v1_" + _drawn(77)),
    "private_key": ("private key", "-----BEGIN OPENSSH " + "PRIVATE KEY-----"),
    "jwt": ("JSON web token", "ey" + "J" + _drawn(30) + ".ey" + "J" + _drawn(60) + "." + _drawn(43)),
    "basic_auth": ("password in an address", "https://" + "someone:" + _drawn(16) + "@example-index.org/simple"),
    "git_config": ("password in an address",
                   '[remote "origin"]\n\turl = https://' + "x-access-token:" + _drawn(24) + "@git.somewhere.org/a/b.git"),
    "netrc": ("netrc entry", "machine api.wandb.ai\n  login user\n  password " + _drawn(20)),
    "bearer": ("authorization header", "Authorization" + ": Bearer " + _drawn(40)),
    "extra_header": ("authorization header", "extraheader = AUTHORIZATION" + ": basic " + _drawn(40)),
    "kaggle": ("Kaggle key", '{"username": "someone", "key": "' + _drawn(32, _HEX) + '"}'),
    "azure": ("Azure storage key", "AccountName=a;AccountKey" + "=" + _drawn(86) + "=="),
    "pypi": ("PyPI token", "pypi" + "-AgEIcHlwaS5vcmc" + _drawn(60)),
    "by_name": ("secret assigned by name", '"client_secret": "' + _drawn(32) + '1a"'),
    "nvidia": ("Groq, xAI or NVIDIA key", "nvapi" + "-" + _drawn(64)),
}  # fmt: skip

#: What is none, though it looks a little like one.
HARMLESS = (
    "sha256 " + _drawn(64, _HEX),
    '"git_commit": "' + _drawn(40, _HEX) + '"',
    "wandb: run at commit " + _drawn(40, _HEX),
    "the task-" + "specific-and-very-long-name-of-a-risk-averse-policy-0123456789abcdef",
    "HF_TOKEN=" + "hf" + "_" + "x" * 34,
    "export OPENAI_API_KEY=sk-your-key-goes-here-0123456789abcdef012",
    "--redis-password=5241590000000000 --node-ip-address=127.0.0.1",
    "Authorization: Bearer ***",
    "https://user:***@host/path and https://user:${TOKEN}@host/path and http://127.0.0.1:8000/v1@now",
    "api_key=None, access_token_expires_in_seconds=3600",
    "password: the word that the question asks for is in the second line of the problem",
    "let AKIA be a triangle; ASIA and AFRICA are continents",
    "eyJ is how a header begins",
)
