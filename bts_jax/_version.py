"""The version of the package, alone so that building it imports nothing else."""

__version__ = "0.3.0.dev0"
