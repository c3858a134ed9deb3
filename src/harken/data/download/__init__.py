"""Downloads for the catalogue: HTTP with pinned digests, package registries, archives, and the kinds of sources."""
