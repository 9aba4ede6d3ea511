"""Sweeps: a grid of policies, bandits, budgets and seeds, saved as it is computed.

run             `sweep`: compiles, plays and saves
grid            the checked arguments of a sweep: policies, bandits, budgets, seeds
gridfile        a sweep as a TOML file
classes         user-defined classes, given by name
specification   the grid as JSON, in the store
schedule        divides chunks among processes, batches and programs
playing         plays chunks on the devices of this process
executors       plays chunks with the workers of an executor
worker          a worker of an executor
clusters        executors and shards for the command line
machine         divides a machine among worker processes
results         the labelled numbers, in memory and in a store
store           the files of a store
opening         opens a store, to read it or to fill it in
growth          stores that grow, and stores that are merged
accessor        `results.bts`
bar             progress bars
"""
