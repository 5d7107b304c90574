"""Writes what users apply: CustomResourceDefinitions of `gang-extender.dev`, admission policies and roles, from types of the service."""
