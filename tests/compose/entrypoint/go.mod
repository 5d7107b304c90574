module gang-extender.dev/tests/compose/entrypoint

go 1.26.0
