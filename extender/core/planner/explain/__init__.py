"""Turn the result of a search into a plan or into the reasons of a refusal; imports `planner.solve` and `planner.model`."""
