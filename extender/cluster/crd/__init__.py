"""The CustomResourceDefinitions of `gang-extender.dev`, rendered from types."""
