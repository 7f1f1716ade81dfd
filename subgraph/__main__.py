"""`python -m subgraph` is `subcut`."""

from subgraph.cli import main

if __name__ == "__main__":
    main()
