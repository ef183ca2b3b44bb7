"""`python -m blockyard` is the `blockyard` command."""

from blockyard.cluster.cli import main

if __name__ == "__main__":
    main()
