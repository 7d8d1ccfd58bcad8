"""The library under the genselect workflow: from raw GenSelect shards to a published verdict."""

__version__ = "0.1.0"
