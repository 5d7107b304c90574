"""Plan pending trees and append what was decided: all trees in order, one tree, the search for victims."""
