"""`python -m consumer` is the command line."""

from consumer.cli.main import run

if __name__ == "__main__":
    run()
