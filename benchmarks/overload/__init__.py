"""The overload experiment: what retries do to a provider that becomes slow.

    python -m benchmarks.overload --only a,d --rates 70

`docs/overload.md` tells what is measured and how.
"""
