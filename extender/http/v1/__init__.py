"""The read API under `/v1` and its OpenAPI document; reads `queries` only, changes nothing."""
