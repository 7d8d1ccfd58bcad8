"""How a results folder stands: stages, runs, health, what waits for what, disk. Reads only; takes no lock; needs no network."""

from genselect.status.collect import collect
from genselect.status.model import Status
from genselect.status.render import render

__all__ = ["Status", "collect", "render"]
