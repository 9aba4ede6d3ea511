"""Sweeps: a grid of policies, bandits, budgets and seeds, saved as it is computed.

grid            what is played, checked
specification   the same as JSON, in the store
schedule        how chunks are divided among processes, batches and programs
run             `sweep`: compiles, plays and saves
results         the labelled numbers, in memory and in a store
store           the files of a store
gridfile        a sweep as a TOML file
processes       several processes that divide a sweep
"""
