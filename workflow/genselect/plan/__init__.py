"""What the rules ask of the library while Snakemake reads them: names of shards, the resolved configuration, banners."""
