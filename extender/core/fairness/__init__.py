"""What each namespace gets of what all share: new gangs of the log, searches."""
