"""The documentation, as a package: a `docs` package that some dependency installs cannot take the generator's place."""
