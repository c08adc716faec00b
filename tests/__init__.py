"""The tests, as a package: a `tests` package that some dependency installs cannot take their place."""
