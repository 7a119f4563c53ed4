"""Adapters to other engines and scripts; a module here is imported only when it is used."""
