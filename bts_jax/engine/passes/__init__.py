"""The passes that `bts_jax.engine.pipeline` lists, one per file."""
