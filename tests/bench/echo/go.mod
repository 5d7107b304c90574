module gang-extender.dev/tests/echo

go 1.26.0
