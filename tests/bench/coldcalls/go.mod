module gang-extender.dev/tests/coldcalls

go 1.26.0
