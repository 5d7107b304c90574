"""The pure core: values in, values out; no await, clock, chance, diagnostics or I/O."""
