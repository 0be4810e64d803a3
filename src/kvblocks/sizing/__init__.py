"""From a model's config, a device and flags to bytes, blocks, tokens and concurrency."""
