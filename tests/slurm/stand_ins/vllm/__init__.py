"""Stand-in for vLLM: its server, with a judge that answers at once (``vllm.entrypoints.cli.main``)."""
