"""Compiling: programs and their registry, compiler options, the cache on disk, and threads that
compile ahead.
"""
