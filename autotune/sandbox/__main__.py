"""Entry of the child process; not meant to be started by hand."""

from autotune.sandbox.child import main

if __name__ == "__main__":
    main()
