"""From the pending trees to verdicts: what a pass observes, requests, searches in worker processes, victims, capacity holds; imports `control.binding` and what is below it."""
