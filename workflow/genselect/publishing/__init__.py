"""The experiment as others receive it: staged trees, packed folders, the Hub, trackers. Needs no torch.

``results/publication/<name>/<target>/`` is a staged tree, ready to be copied or uploaded as it is: same paths as under
``results/``, beside them ``README.md`` (the front page) and ``publication.json`` (every file with its sum, what was packed, what
was left out).
"""
