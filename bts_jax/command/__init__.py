"""The command `bts-jax`, installed as `bts_jax_command`: it is in control while `bts_jax` is
imported, which takes a second.
"""

import signal
import sys


def main() -> None:
    """Ends at once on Ctrl-C, without a traceback; and with one line if a setting in the
    environment is wrong.
    """
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        # KeyboardInterrupt in an import may be lost; `bts_jax.signals` takes over.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from bts_jax import cli
    except ValueError as error:
        print(f"bts-jax: error: {error}", file=sys.stderr)
        sys.exit(2)
    cli.main()
