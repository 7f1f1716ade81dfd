"""One region on one candidate: run, judge, attribute, diagnose."""
