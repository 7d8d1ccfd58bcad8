"""From raw shards to rows: prompt parser, merge, build."""
